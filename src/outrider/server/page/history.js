// What /stats told in the last two minutes.  It tells totals; what happened is their differences.

export const SPAN = 120; // seconds that are kept
const SHORTER = [30, 60]; // seconds on the page while the history is young
export const BUCKET = 5; // seconds of one bar
const GAP = 4; // seconds between two samples that hide what happened in between

const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);
/** The sum of a list of totals by position, or of totals by name. */
export const sumOf = (totals) => sum(Object.values(totals ?? {}));

export class History {
  constructor() {
    this.samples = [];
  }

  /** Add an answer of /stats. A server that started again begins a new history. */
  add(sample) {
    const last = this.latest;
    if (last && (sample.time < last.time || sample.tokens < last.tokens || sample.rounds < last.rounds)) {
      this.samples = [];
    } else if (last && sample.time === last.time) {
      this.samples.pop();
    }
    this.samples.push(sample);
    // One sample before the span stays: the first difference needs it.
    while (this.samples.length > 2 && this.samples[1].time < sample.time - SPAN) this.samples.shift();
  }

  get latest() {
    return this.samples.at(-1) ?? null;
  }

  /** The seconds that charts over time show. */
  get span() {
    const age = this.latest.time - this.samples[0].time;
    return SHORTER.find((seconds) => age <= seconds) ?? SPAN;
  }

  /** How much a total grew over the whole span. */
  growth(read) {
    return this.samples.length < 2 ? 0 : read(this.latest) - read(this.samples[0]);
  }

  /** How much each of a list of totals grew over the whole span. */
  growthByPosition(read) {
    const before = this.samples.length ? read(this.samples[0]) : [];
    return this.latest ? read(this.latest).map((value, position) => value - (before[position] ?? 0)) : [];
  }

  /** The growth of a total per second, at each sample: `{ago, value}`, with null where samples are missing. */
  rates(read) {
    return this.#steps().map(({ before, after, seconds }) => ({
      ago: this.latest.time - after.time,
      value: seconds > GAP ? null : (read(after) - read(before)) / seconds,
    }));
  }

  /** A value at each sample: `{ago, value}`. */
  values(read) {
    return this.samples.map((sample) => ({ ago: this.latest.time - sample.time, value: read(sample) }));
  }

  /** The growth of a total per second in the last few seconds. */
  rateNow(read, seconds = 3) {
    const first = this.samples.find((sample) => sample.time >= this.latest.time - seconds - 0.5);
    const span = first ? this.latest.time - first.time : 0;
    return span > 0 ? (read(this.latest) - read(first)) / span : 0;
  }

  /**
   * The growth of several totals in bars of BUCKET seconds.
   *
   * @param {Array<(sample: object) => number>} reads
   * @returns {Array<{ago: number, seconds: number, values: number[]}>} `ago` is where the bar begins
   */
  buckets(reads) {
    const found = new Map();
    for (const { before, after, seconds } of this.#steps()) {
      const start = Math.floor(after.time / BUCKET) * BUCKET;
      const bar = found.get(start) ?? { ago: this.latest.time - start, seconds: 0, values: reads.map(() => 0) };
      bar.seconds += seconds;
      bar.values = bar.values.map((value, index) => value + reads[index](after) - reads[index](before));
      found.set(start, bar);
    }
    return [...found.values()].filter((bar) => bar.ago - BUCKET <= SPAN);
  }

  #steps() {
    return this.samples.slice(1).map((after, index) => {
      const before = this.samples[index];
      return { before, after, seconds: after.time - before.time };
    });
  }
}
