// Small charts in SVG.  A plot is drawn anew each time; at this size that costs less than a millisecond.

import { make } from "./dom.js";
import { number } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 124;
const MARGIN = { top: 24, right: 4, bottom: 18, left: 40 };
const AXIS_TITLE = 13; // pixels below the labels
const LABEL = 26; // pixels that a label of a bar needs

function shape(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** The next number at or above that is easy to read and to halve. */
export function niceTop(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((step) => step * unit >= value * (1 - 1e-9)) * unit;
}

/** The same for counts, whose half must be whole. */
export const evenTop = (value) => 2 * Math.ceil(niceTop(Math.max(1, value / 2)));

const minutes = (seconds) => (seconds < 60 ? `${seconds} s` : `${seconds / 60} min`);
const rounded = (value) => Math.round(value * 10) / 10;

/** A card with a title, the figure of the moment, a plot, a key, and what it says while it is empty. */
export class Chart {
  /** @param {{name: string, title: string, unit: string, empty: string, axis?: string}} about */
  constructor(about) {
    this.about = about;
    this.value = make("span", "value");
    this.svg = shape("svg", { class: "plot", role: "img" });
    this.key = make("ul", "key");
    this.empty = make("p", "empty", about.empty);
    const caption = make("figcaption", "", make("h3", "", about.title), this.value);
    this.element = make("figure", `chart ${about.name}`, caption, this.svg, this.empty, this.key);
  }

  /** Show the sentence for an empty chart. */
  clear() {
    this.element.classList.add("is-empty");
    this.value.textContent = "";
    this.svg.replaceChildren();
    this.key.replaceChildren();
  }

  /**
   * Begin a drawing.
   *
   * @param {number} top the highest value
   * @param {string} value the figure of the moment
   * @param {(value: number) => string} label how the axis writes a value
   */
  begin(top, value, label = number) {
    this.element.classList.remove("is-empty");
    this.value.textContent = value;
    this.width = Math.max(120, this.element.clientWidth - 2);
    this.bottom = HEIGHT - MARGIN.bottom - (this.about.axis ? AXIS_TITLE : 0);
    this.top = top;
    this.right = this.width - MARGIN.right;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.svg.setAttribute("height", HEIGHT);
    this.svg.setAttribute("aria-label", `${this.about.title}: ${value}`);
    this.svg.replaceChildren();
    for (const share of [0, 0.5, 1]) {
      const y = this.y(share * top);
      this.#add("line", { class: share ? "grid" : "axis", x1: MARGIN.left, x2: this.right, y1: y, y2: y });
      this.#add("text", { class: "tick", x: MARGIN.left - 6, y: y + 3.5, "text-anchor": "end" }, label(share * top));
    }
    this.#add("text", { class: "tick", x: 0, y: 10 }, this.about.unit);
    if (this.about.axis) {
      const middle = (MARGIN.left + this.right) / 2;
      this.#add("text", { class: "tick", x: middle, y: HEIGHT - 2, "text-anchor": "middle" }, this.about.axis);
    }
  }

  y(value) {
    const share = Math.min(1, Math.max(0, value / this.top));
    return rounded(this.bottom - share * (this.bottom - MARGIN.top));
  }

  /** Where a moment lies on a time axis. */
  x(ago, span) {
    return rounded(this.right - (Math.min(ago, span) / span) * (this.right - MARGIN.left));
  }

  /** Label a time axis. */
  timeAxis(span) {
    const marks = [
      [span, `${minutes(span)} ago`, "start"],
      [span / 2, minutes(span / 2), "middle"],
      [0, "now", "end"],
    ];
    for (const [ago, text, anchor] of marks) {
      this.#add("text", { class: "tick", x: this.x(ago, span), y: this.bottom + 14, "text-anchor": anchor }, text);
    }
  }

  /** A line over time; `filled` shades what is below, `stepped` holds each value until the next. */
  line(points, span, className, { filled = false, stepped = false } = {}) {
    for (const run of runsOf(points)) {
      let path = "";
      run.forEach(({ ago, value }, index) => {
        const [x, y] = [this.x(ago, span), this.y(value)];
        path += index === 0 ? `M${x} ${y}` : `${stepped ? `H${x}` : ""}L${x} ${y}`;
      });
      if (filled) {
        const [first, last] = [this.x(run[0].ago, span), this.x(run.at(-1).ago, span)];
        this.#add("path", { class: `area ${className}`, d: `${path}L${last} ${this.bottom}L${first} ${this.bottom}Z` });
      }
      this.#add("path", { class: `line ${className}`, d: path });
    }
  }

  /** A level to compare with; what it is stands beside the unit, where no line crosses it. */
  level(value, text) {
    const y = this.y(value);
    this.#add("line", { class: "level", x1: MARGIN.left, x2: this.right, y1: y, y2: y });
    this.#add("text", { class: "tick", x: this.right, y: 10, "text-anchor": "end" }, text);
  }

  /** Bars with a label each below, and their value above if there is room. */
  bars(items) {
    const step = (this.right - MARGIN.left) / Math.max(items.length, 4);
    const width = Math.min(28, step * 0.7);
    const every = Math.ceil(LABEL / 2 / step);
    const told = [this.svg.getAttribute("aria-label"), ...items.map(({ title }) => title)];
    this.svg.setAttribute("aria-label", told.join(". ")); // the marks themselves are not read out
    items.forEach(({ label, value, text, title, className }, index) => {
      const middle = rounded(MARGIN.left + step * (index + 0.5));
      const bar = this.#bar(middle - width / 2, width, 0, value, className);
      bar.append(shape("title", {}, title));
      if (step >= LABEL) this.#add("text", { class: "mark", x: middle, y: this.y(value) - 3, "text-anchor": "middle" }, text);
      if (index % every) return;
      this.#add("text", { class: "tick", x: middle, y: this.bottom + 13, "text-anchor": "middle" }, label);
    });
  }

  /** Stacked bars over time: `{ago, values, title}`, the bar `seconds` wide. */
  stacks(bars, seconds, span, classNames) {
    for (const { ago, values, title } of bars) {
      const left = this.x(ago, span);
      const width = Math.max(1, this.x(Math.max(0, ago - seconds), span) - left - 1.5);
      let base = 0;
      values.forEach((value, index) => {
        if (value <= 0) return;
        this.#bar(left, width, base, base + value, classNames[index]).append(shape("title", {}, title));
        base += value;
      });
    }
  }

  /** What the colors mean, with a figure each. */
  keys(items) {
    this.key.replaceChildren(
      ...items.map(({ className, name, figure }) =>
        make("li", "", make("span", `swatch ${className}`), `${name} `, make("b", "", figure)),
      ),
    );
  }

  #bar(x, width, from, to, className) {
    const [low, high] = [this.y(from), this.y(to)];
    const height = Math.max(to > from ? 1 : 0, low - high);
    return this.#add("rect", { class: `bar ${className}`, x: rounded(x), y: low - height, width: rounded(width), height });
  }

  #add(tag, attributes, text) {
    const element = shape(tag, attributes, text);
    this.svg.append(element);
    return element;
  }
}

/** Runs of points that have a value. */
function runsOf(points) {
  const runs = [[]];
  for (const point of points) {
    if (point.value !== null) runs.at(-1).push(point);
    else if (runs.at(-1).length) runs.push([]);
  }
  return runs.filter((run) => run.length);
}
