// The question for an API key.

import { hasKey, setKey } from "./api.js";
import { byId } from "./dom.js";

let asked = null; // the question that is open, so that two failures ask once

/** Ask for the key that the server misses or refused; tells whether one was given. */
export function askKey() {
  return ask(hasKey() ? "The server refused the key." : "The server asks for an API key.");
}

/** Let the reader change the key. */
export function changeKey() {
  return ask("An empty key forgets the one in use.");
}

function ask(reason) {
  asked ??= new Promise((resolve) => {
    const dialog = byId("key");
    const input = byId("key-input");
    byId("key-reason").textContent = reason;
    input.value = "";
    dialog.returnValue = "";
    dialog.addEventListener(
      "close",
      () => {
        const given = dialog.returnValue === "given";
        if (given) setKey(input.value);
        input.value = "";
        asked = null;
        resolve(given);
      },
      { once: true },
    );
    dialog.showModal();
    input.focus();
  });
  return asked;
}

/** Make the dialog's buttons work. */
export function setUpKey() {
  const dialog = byId("key");
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close("given");
  });
  byId("key-cancel").addEventListener("click", () => dialog.close(""));
}
