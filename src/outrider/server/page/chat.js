// The conversation: what was asked, what was answered, and the box to ask in.

import { explain, ServerError, streamChat } from "./api.js";
import { Answer } from "./answer.js";
import { byId, fromTemplate, tell } from "./dom.js";
import { askKey } from "./key.js";
import { forLong } from "./store.js";

const MOST_ROWS = 8; // where the browser cannot fit the box to its text by itself

export class Chat {
  /** @param {Settings} settings @param {(element: HTMLElement) => void} showSetting brings a field into view */
  constructor(settings, showSetting) {
    this.settings = settings;
    this.showSetting = showSetting;
    this.exchanges = []; // { question, answer }: a text and an Answer
    this.running = null; // the AbortController of the answer that is being written
    this.message = byId("message");
    this.system = byId("system-prompt");
    this.#setUpComposer();
    this.#setUpSystemPrompt();
    byId("new-chat").addEventListener("click", () => this.clear());
    for (const button of byId("welcome").querySelectorAll("button")) {
      button.addEventListener("click", () => {
        this.send(button.textContent);
        this.#focusTranscript();
      });
    }
    settings.form.addEventListener("input", () => tell(byId("notice"), null));
  }

  /** Ask a question; false if it cannot be asked now. */
  send(question) {
    const problem = this.settings.problem();
    tell(byId("notice"), problem?.sentence);
    if (problem) this.showSetting(problem.field);
    if (problem || this.running || !question.trim()) return false;
    const element = fromTemplate("question-template");
    element.querySelector(".text").textContent = question;
    byId("messages").append(element);
    byId("welcome").hidden = true;
    const exchange = { question, answer: null };
    this.exchanges.push(exchange);
    this.#answer(exchange);
    return true;
  }

  /** End the answer that is being written; its text so far stays. */
  stop() {
    this.running?.abort();
  }

  /** Forget the conversation. */
  clear() {
    this.stop();
    this.exchanges = [];
    byId("messages").replaceChildren();
    byId("welcome").hidden = false;
    tell(byId("notice"), null);
    this.message.focus();
  }

  /** The messages before and with an exchange; those without an answer are left out. */
  #messages(exchange) {
    const before = this.exchanges.filter((each) => each !== exchange && each.answer?.text);
    const system = this.system.value.trim();
    return [
      ...(system ? [{ role: "system", content: system }] : []),
      ...before.flatMap(({ question, answer }) => [
        { role: "user", content: question },
        { role: "assistant", content: answer.text },
      ]),
      { role: "user", content: exchange.question },
    ];
  }

  async #answer(exchange) {
    const answer = new Answer(() => this.#retry(exchange));
    exchange.answer?.element.remove();
    exchange.answer = answer;
    byId("messages").append(answer.element);
    byId("announcer").textContent = "Writing the answer";
    const controller = new AbortController();
    this.#setRunning(controller);
    try {
      const body = { messages: this.#messages(exchange), ...this.settings.body() };
      for await (const chunk of streamChat(body, controller.signal)) answer.take(chunk);
      answer.end();
      byId("announcer").textContent = `Answer: ${answer.text}`;
    } catch (failure) {
      await this.#failed(exchange, failure, controller);
    } finally {
      if (this.running === controller) this.#setRunning(null);
    }
  }

  async #failed(exchange, failure, controller) {
    if (failure.name === "AbortError") {
      exchange.answer.end({ note: "stopped" });
      byId("announcer").textContent = "Stopped";
      return;
    }
    exchange.answer.end({ failure: explain(failure) });
    if (failure instanceof ServerError && failure.status === 401 && (await askKey())) {
      if (this.running === controller) this.#setRunning(null);
      this.#retry(exchange);
    }
  }

  #retry(exchange) {
    if (this.running || exchange !== this.exchanges.at(-1)) return;
    this.#answer(exchange);
    this.#focusTranscript();
  }

  /** The button that was pressed is gone; the box would open a phone's keyboard over the answer. */
  #focusTranscript() {
    byId("transcript").focus({ preventScroll: true });
  }

  #setRunning(controller) {
    this.running = controller;
    byId("send").hidden = controller !== null;
    if (!controller && document.activeElement === byId("stop")) this.message.focus();
    byId("stop").hidden = controller === null;
  }

  #setUpComposer() {
    const submit = () => {
      if (!this.send(this.message.value)) return;
      this.message.value = "";
      fit();
      this.message.focus();
    };
    const fit = () => (this.message.rows = Math.min(MOST_ROWS, this.message.value.split("\n").length));
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      submit();
    });
    byId("stop").addEventListener("click", () => {
      this.stop();
      this.message.focus();
    });
    this.message.addEventListener("input", fit);
    this.message.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      submit();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !byId("key").open) this.stop();
    });
  }

  #setUpSystemPrompt() {
    const kept = forLong("system");
    const changed = () => {
      kept.write(this.system.value);
      byId("system-hint").textContent = this.system.value.trim() || "none";
    };
    this.system.value = kept.read() ?? "";
    this.system.addEventListener("input", changed);
    changed();
  }
}
