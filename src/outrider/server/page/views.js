// Which part is in view: on a wide screen the chat and one panel, on a narrow one a single part.

import { byId } from "./dom.js";

const WIDE = matchMedia("(min-width: 60rem)");

export class Views {
  /** @param {() => void} changed is called when another part comes into view */
  constructor(changed) {
    this.changed = changed;
    for (const part of ["chat", "live", "request"]) byId(`show-${part}`).addEventListener("click", () => this.show(part));
    WIDE.addEventListener("change", () => this.#mark());
    this.#mark();
  }

  /** Bring a part into view. */
  show(part) {
    const { dataset } = document.body;
    dataset.front = part === "chat" ? "chat" : "panel";
    if (part !== "chat") dataset.panel = part;
    this.#mark();
  }

  #mark() {
    const { front, panel } = document.body.dataset;
    const shown = { chat: WIDE.matches || front === "chat" };
    for (const part of ["live", "request"]) shown[part] = panel === part && (WIDE.matches || front === "panel");
    for (const [part, visible] of Object.entries(shown)) byId(`show-${part}`).setAttribute("aria-pressed", visible);
    this.changed();
  }
}
