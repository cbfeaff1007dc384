// Writes a streamed text: shades accepted drafts, and sets fenced code in a block of its own.
// Every character stays as the model wrote it, in text nodes.

import { make } from "./dom.js";

const MAYBE_FENCE = /^ {0,3}(`{0,2}|`{3,}[^`\n]*)$/;
const OPENING = /^ {0,3}`{3,}[^`\n]*\n?$/;
const CLOSING = /^ {0,3}`{3,}[ \t]*\n?$/;

/** Cut [text, drafted] pieces behind a number of characters. */
function cut(pieces, length) {
  const parts = [[], []];
  let rest = length;
  for (const [text, drafted] of pieces) {
    parts[0].push([text.slice(0, rest), drafted]);
    parts[1].push([text.slice(rest), drafted]);
    rest = Math.max(0, rest - text.length);
  }
  return parts;
}

/** The pieces of a chunk's reasoning and of its content; texts that the pieces do not cover stay unshaded. */
export function piecesOf(choice) {
  const reasoning = choice.delta?.reasoning_content ?? "";
  const content = choice.delta?.content ?? "";
  const pieces = choice.pieces ?? [];
  if (pieces.map(([text]) => text).join("") === reasoning + content) return cut(pieces, reasoning.length);
  return [[[reasoning, false]], [[content, false]]];
}

/** Appends pieces to an element, and knows the text so far. */
export class Writer {
  constructor(root) {
    this.root = root;
    this.text = "";
    this.held = []; // the pieces of a line that may become a fence
    this.heldText = "";
    this.atLineStart = true;
    this.code = false;
    this.block = null; // the element that text goes into
    this.run = null; // its last span, if the next piece may join it
  }

  /** Append one piece. */
  write(text, drafted) {
    this.text += text;
    for (const line of text.split(/(?<=\n)/)) {
      if (line) this.#writeInLine(line, drafted);
    }
  }

  /** Write what was held back: the text is complete. */
  end() {
    this.#decide();
  }

  #writeInLine(text, drafted) {
    if (this.atLineStart) {
      this.held.push([text, drafted]);
      this.heldText += text;
      if (!MAYBE_FENCE.test(this.heldText)) this.#decide();
    } else {
      this.#append(text, drafted);
    }
    if (text.endsWith("\n")) {
      this.#decide();
      this.atLineStart = true;
    }
  }

  /** The held line is a fence or it is not; write it. */
  #decide() {
    if (!this.held.length) return;
    const opens = !this.code && OPENING.test(this.heldText);
    const closes = this.code && CLOSING.test(this.heldText);
    if (opens) this.#open(make("pre", "code"));
    const into = opens || closes ? this.#line() : null;
    for (const [text, drafted] of this.held) this.#append(text, drafted);
    if (into) {
      this.block = into.parentElement;
      this.run = null;
    }
    if (closes) this.block = null; // what follows begins a block of prose
    this.code = opens || (this.code && !closes);
    this.held = [];
    this.heldText = "";
    this.atLineStart = false;
  }

  /** The fence's own line, inside the block of code. */
  #line() {
    const line = make("span", "fence");
    this.block.append(line);
    this.block = line;
    this.run = null;
    return line;
  }

  #open(block) {
    this.root.append(block);
    this.block = block;
    this.run = null;
  }

  #append(text, drafted) {
    if (!this.block) this.#open(make("div", "prose"));
    if (this.run?.drafted === drafted) {
      this.run.node.appendData(text);
      return;
    }
    const node = document.createTextNode(text);
    this.block.append(drafted ? make("span", "accepted", node) : node);
    this.run = { drafted, node };
  }
}
