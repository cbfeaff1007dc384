// Asks /stats once a second, and tells how the server is.

import { explain, getJson, KEY_CHANGED, ServerError } from "./api.js";
import { byId, tell } from "./dom.js";
import { askKey } from "./key.js";

const EVERY = 1000;
const LONGEST = 15000; // milliseconds between two tries while the server does not answer

/** Show the state of the server in a word or two. */
function showState(kind, text) {
  const state = byId("state");
  state.dataset.kind = kind;
  byId("state-text").textContent = text;
}

function stateOf({ running, waiting }) {
  if (!running && !waiting) return ["idle", "idle"];
  return ["busy", `${running} running${waiting ? `, ${waiting} waiting` : ""}`];
}

export class Poll {
  /** @param {(stats: object) => void} take gets each answer */
  constructor(take) {
    this.take = take;
    this.wait = EVERY;
    this.timer = null;
    this.asked = false; // for a key, once; later the chat asks
    document.addEventListener("visibilitychange", () => !document.hidden && this.#again(0));
    for (const event of ["online", KEY_CHANGED]) window.addEventListener(event, () => this.#again(0));
    this.#again(0);
  }

  #again(wait) {
    clearTimeout(this.timer);
    this.timer = document.hidden ? null : setTimeout(() => this.#ask(), wait);
  }

  async #ask() {
    try {
      const stats = await getJson("stats");
      this.wait = EVERY;
      this.asked = false;
      showState(...stateOf(stats));
      tell(byId("live-notice"), null);
      this.take(stats);
    } catch (failure) {
      await this.#failed(failure);
    }
    this.#again(this.wait);
  }

  async #failed(failure) {
    const refused = failure instanceof ServerError;
    const status = refused ? failure.status : null;
    showState(status === 401 ? "locked" : refused ? "trouble" : "offline", stateText(status));
    tell(byId("live-notice"), explain(failure));
    this.wait = Math.min(LONGEST, Math.max(EVERY, this.wait * 2));
    if (status === 401 && !this.asked) {
      this.asked = true;
      if (await askKey()) {
        this.asked = false;
        this.wait = 0;
      }
    }
  }
}

const STATES = new Map([
  [null, "no answer"],
  [401, "needs a key"],
  [404, "no figures"],
  [503, "not ready"],
]);

function stateText(status) {
  return STATES.get(status) ?? "trouble";
}
