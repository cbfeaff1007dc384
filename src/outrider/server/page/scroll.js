// Keeps the end of a growing text in view, until the reader scrolls up.

import { byId } from "./dom.js";

const NEAR = 48; // pixels from the end that still count as the end

export function followTranscript() {
  const view = byId("transcript");
  const latest = byId("latest");
  let following = true;
  let before = 0;
  const toEnd = () => {
    following = true;
    latest.hidden = true;
    view.scrollTop = view.scrollHeight;
  };
  view.addEventListener("scroll", () => {
    const end = view.scrollHeight - view.scrollTop - view.clientHeight < NEAR;
    // Text that grows while a scroll event is on its way must not look like a reader who scrolls up.
    if (end) following = true;
    else if (view.scrollTop < before) following = false;
    before = view.scrollTop;
    latest.hidden = following;
  });
  latest.addEventListener("click", toEnd);
  new ResizeObserver(() => following && toEnd()).observe(view.firstElementChild);
  new ResizeObserver(() => following && toEnd()).observe(view);
  new MutationObserver(toEnd).observe(byId("messages"), { childList: true }); // a new question or answer
}
