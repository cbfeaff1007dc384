// What the browser remembers.  A browser may forbid it, and then the page simply forgets.

/** A value by name in `localStorage` or `sessionStorage`. */
export class Remembered {
  constructor(storage, name) {
    this.storage = storage; // a function: even naming the storage may throw
    this.name = `outrider.${name}`;
  }

  /** The value, or null. */
  read() {
    try {
      return this.storage().getItem(this.name);
    } catch {
      return null;
    }
  }

  /** Keep a value; an empty one is forgotten. */
  write(value) {
    try {
      if (value) this.storage().setItem(this.name, value);
      else this.storage().removeItem(this.name);
    } catch {
      // nothing to do: the page works without
    }
  }

  /** The value of a JSON text, or a fallback. */
  readJson(fallback) {
    try {
      return JSON.parse(this.read()) ?? fallback;
    } catch {
      return fallback;
    }
  }
}

/** Kept by the browser until it is cleared. */
export const forLong = (name) => new Remembered(() => window.localStorage, name);
/** Kept until the tab is closed. */
export const forTab = (name) => new Remembered(() => window.sessionStorage, name);
