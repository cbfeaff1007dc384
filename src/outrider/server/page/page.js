// Puts the page together.

import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { History } from "./history.js";
import { changeKey, setUpKey } from "./key.js";
import { Live } from "./live.js";
import { Poll } from "./poll.js";
import { followTranscript } from "./scroll.js";
import { Settings } from "./settings.js";
import { forLong } from "./store.js";
import { Views } from "./views.js";

const history = new History();
const live = new Live(byId("charts"));
const settings = new Settings();
const views = new Views(() => live.show(history));

setUpKey();
setUpShade();
followTranscript();
new Chat(settings, (field) => {
  views.show("request");
  field.focus();
  field.reportValidity(); // on a narrow screen the chat's own notice is out of sight
});
byId("change-key").addEventListener("click", changeKey);
new ResizeObserver(() => live.show(history)).observe(byId("charts"));
new Poll((stats) => {
  history.add(stats);
  live.show(history);
  showServed(stats);
});

let served = null;

function showServed({ model, algorithm, backend, algorithms }) {
  const told = [model, algorithm, backend].filter(Boolean).join(" · ");
  if (told === served) return;
  served = told;
  byId("served").textContent = told;
  byId("served").title = told;
  document.title = model ? `${model} · Outrider` : "Outrider";
  settings.offerAlgorithms(algorithms);
}

function setUpShade() {
  const box = byId("shade");
  const kept = forLong("shade");
  const show = () => document.body.classList.toggle("unshaded", !box.checked);
  box.checked = kept.read() !== "off";
  box.addEventListener("change", () => {
    kept.write(box.checked ? "" : "off");
    show();
  });
  show();
}
