// Writes a streamed text: shades accepted drafts, and sets fenced code in a block of its own.
// Every character stays as the model wrote it, in text nodes.

import { make } from "./dom.js";

const MAYBE_FENCE = /^ {0,3}(`{0,2}|`{3,}[^`\n]*)$/;
const OPENING = /^ {0,3}(`{3,})[^`\n]*\n?$/;
const CLOSING = /^ {0,3}(`{3,})[ \t]*\n?$/;

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
    this.fence = 0; // backticks of the open fence; as many close it
    this.block = null; // the element that text goes into
    this.tail = ""; // the last two characters in it
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
    const ticks = (this.fence ? CLOSING : OPENING).exec(this.heldText)?.[1].length ?? 0;
    const opens = !this.fence && ticks > 0;
    const closes = this.fence > 0 && ticks >= this.fence;
    if (opens) this.#open("pre", "code", this.tail === "\n\n");
    const into = opens || closes ? this.#line() : null;
    for (const [text, drafted] of this.held) this.#append(text, drafted);
    if (into) {
      this.block = into.parentElement;
      this.run = null;
    }
    if (closes) this.block = null; // what follows begins a block of prose
    if (opens || closes) this.fence = opens ? ticks : 0;
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

  #open(tag, className, afterGap) {
    this.block = make(tag, afterGap ? `${className} after-gap` : className);
    this.root.append(this.block);
    this.run = null;
  }

  #append(text, drafted) {
    if (!this.block) this.#open("div", "prose", this.root.hasChildNodes() && text.startsWith("\n"));
    this.tail = (this.tail + text).slice(-2);
    if (this.run?.drafted === drafted) {
      this.run.node.appendData(text);
      return;
    }
    const node = document.createTextNode(text);
    this.block.append(drafted ? make("span", "accepted", node) : node);
    this.run = { drafted, node };
  }
}
