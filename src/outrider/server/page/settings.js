// The switches of a request: a form whose empty fields are left to the server.

import { byId } from "./dom.js";
import { forLong } from "./store.js";

const SPECULATES = { on: true, off: false }; // auto is the server's default and is not sent

export class Settings {
  constructor() {
    this.form = byId("settings");
    this.kept = forLong("request");
    this.#restore(this.kept.readJson({}));
    this.form.addEventListener("input", () => this.#changed());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    byId("reset-settings").addEventListener("click", () => {
      this.form.reset();
      this.#changed();
    });
    this.#changed();
  }

  /** Offer the server's drafting algorithms; one alone is no choice. */
  offerAlgorithms(names) {
    const select = this.form.elements.algorithm;
    const wanted = select.value;
    select.replaceChildren(select.options[0], ...names.map((name) => new Option(name, name)));
    select.value = names.includes(wanted) ? wanted : "";
    byId("algorithm-field").hidden = names.length < 2;
    this.#changed();
  }

  /** The first field with a value that cannot be sent, and what is wrong with it; null if all is well. */
  problem() {
    const field = this.#fields().find((each) => !each.disabled && !each.validity.valid);
    return field ? { field, sentence: `${this.#nameOf(field)}: ${field.validationMessage}` } : null;
  }

  /** The request without its messages. */
  body() {
    const body = {
      stream: true,
      stream_options: { include_usage: true },
      return_pieces: true,
      timings: true,
    };
    const speculation = {};
    if (this.#enabled() in SPECULATES) speculation.enabled = SPECULATES[this.#enabled()];
    for (const field of this.#fields()) {
      if (field.value === "" || field.disabled || !field.validity.valid) continue;
      const group = field.dataset.group === "speculation" ? speculation : body;
      group[field.name] = field.type === "number" ? field.valueAsNumber : field.value;
    }
    if (body.stop !== undefined) body.stop = body.stop.split("\n").filter((line) => line !== "");
    if (body.stop?.length === 0) delete body.stop;
    if (Object.keys(speculation).length) body.speculation = speculation;
    return body;
  }

  #enabled() {
    return this.form.elements.enabled.value;
  }

  #fields() {
    return [...this.form.elements].filter((each) => each.name && each.type !== "radio");
  }

  #nameOf(field) {
    return field.closest("label").firstChild.textContent.trim();
  }

  #restore(values) {
    const { algorithm } = this.form.elements;
    if (values.algorithm) algorithm.append(new Option(values.algorithm, values.algorithm)); // until the server tells its own
    for (const [name, value] of Object.entries(values)) {
      const field = this.form.elements.namedItem(name);
      if (field && typeof value === "string") field.value = value;
    }
  }

  #changed() {
    const off = this.#enabled() === "off";
    for (const field of byId("speculation-fields").querySelectorAll("input, select")) field.disabled = off;
    const fields = this.#fields();
    for (const field of fields) field.setAttribute("aria-invalid", String(!field.disabled && !field.validity.valid));
    const values = fields.filter((each) => each.value !== "").map((each) => [each.name, each.value]);
    if (this.#enabled() !== "auto") values.push(["enabled", this.#enabled()]);
    this.kept.write(values.length ? JSON.stringify(Object.fromEntries(values)) : "");
    const shown = { messages: [{ role: "user", content: "…" }], ...this.body() };
    byId("preview").textContent = JSON.stringify(shown, null, 2);
  }
}
