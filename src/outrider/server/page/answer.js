// One answer on the page: its reasoning, its text, how it failed, and its figures.

import { copyText, fromTemplate, tell } from "./dom.js";
import { showFigures } from "./figures.js";
import { duration } from "./format.js";
import { piecesOf, Writer } from "./writer.js";

export class Answer {
  /** @param {() => void} retry what the retry button does */
  constructor(retry) {
    this.element = fromTemplate("answer-template");
    this.started = performance.now();
    this.told = {}; // usage, timings and finish, as the stream tells them
    const find = (selector) => this.element.querySelector(selector);
    this.parts = {
      reasoning: find(".reasoning"),
      seconds: find(".reasoning .hint"),
      waiting: find(".waiting"),
      failure: find(".failure"),
      foot: find(".foot"),
      figures: find(".figures"),
      copy: find(".copy"),
    };
    this.content = new Writer(find(".text"));
    this.thought = new Writer(find(".thought"));
    this.element.setAttribute("aria-busy", "true");
    this.parts.copy.addEventListener("click", () => this.#copy());
    find(".retry").addEventListener("click", retry);
  }

  /** The text so far, without reasoning. */
  get text() {
    return this.content.text;
  }

  /** Take one chunk of the stream. */
  take(chunk) {
    this.told.usage = chunk.usage ?? this.told.usage;
    this.told.timings = chunk.timings ?? this.told.timings;
    for (const choice of chunk.choices ?? []) {
      this.told.finish = choice.finish_reason ?? this.told.finish;
      const [reasoning, content] = piecesOf(choice);
      this.#write(this.thought, reasoning);
      if (this.thought.text) this.#showReasoning();
      this.#write(this.content, content);
      if (this.thought.text || this.content.text) this.parts.waiting.hidden = true;
    }
  }

  /** The stream has ended: with a note such as "stopped", a failure to tell, or neither. */
  end({ note, failure } = {}) {
    this.content.end();
    this.thought.end();
    this.#closeReasoning();
    this.parts.waiting.hidden = true;
    this.element.removeAttribute("aria-busy");
    tell(this.parts.failure, failure);
    showFigures(this.parts.figures, { ...this.told, note });
    this.parts.copy.hidden = !this.text;
    this.parts.foot.hidden = false;
  }

  #write(writer, pieces) {
    for (const [text, drafted] of pieces) if (text) writer.write(text, drafted);
  }

  #showReasoning() {
    const { reasoning, seconds } = this.parts;
    if (reasoning.hidden) {
      reasoning.hidden = false;
      reasoning.open = true;
    }
    if (this.content.text) this.#closeReasoning();
    else seconds.textContent = duration((performance.now() - this.started) / 1000);
  }

  /** Once: afterwards it is the reader's to open and close. */
  #closeReasoning() {
    if (this.reasoned) return;
    this.reasoned = true;
    this.parts.reasoning.open = false;
  }

  async #copy() {
    await copyText(this.text);
    const label = this.parts.copy.querySelector("span");
    label.textContent = "Copied";
    setTimeout(() => (label.textContent = "Copy"), 1500);
  }
}
