// The charts of the server: what each shows of the history.

import { Chart, evenTop, niceTop } from "./charts.js";
import { count, number, percent } from "./format.js";
import { BUCKET, sumOf } from "./history.js";

const MOST_POSITIONS = 16;
const PHASES = ["verify", "draft", "mixed", "prefill", "other"]; // from the bottom up

const throughput = {
  about: {
    name: "throughput",
    title: "Throughput",
    unit: "tokens/s",
    empty: "Tokens per second of all requests, from the first answer on.",
  },
  draw(chart, history) {
    if (history.growth((stats) => stats.tokens) <= 0) {
      chart.clear();
      return;
    }
    const points = history.rates((stats) => stats.tokens);
    const plain = history.latest.one_row_seconds ? 1 / history.latest.one_row_seconds : 0;
    const now = history.rateNow((stats) => stats.tokens);
    chart.begin(niceTop(Math.max(plain, ...points.map(({ value }) => value ?? 0))), `${number(now)} tokens/s`);
    chart.timeAxis(history.span);
    chart.line(points, history.span, "ink", { filled: true });
    if (plain) chart.level(plain, `dashed: one request, plain, about ${number(plain, 2)}`);
  },
};

const acceptance = {
  about: {
    name: "acceptance",
    title: "Acceptance α",
    unit: "accepted ÷ tested",
    axis: "draft position",
    empty: "The share of draft tokens that the model accepts, by position.",
  },
  draw(chart, history) {
    const tested = history.growthByPosition((stats) => stats.tested);
    const accepted = history.growthByPosition((stats) => stats.accepted);
    const all = sumOf(tested);
    if (all <= 0) {
      chart.clear();
      return;
    }
    chart.begin(1, `α ${(sumOf(accepted) / all).toFixed(2)}`, (value) => value.toFixed(1));
    const positions = [...tested.keys()].filter((position) => tested[position] > 0).slice(0, MOST_POSITIONS);
    chart.bars(
      positions.map((position) => {
        const share = (accepted[position] ?? 0) / tested[position];
        return {
          label: position + 1,
          value: share,
          text: share.toFixed(2),
          title: `Position ${position + 1}: ${accepted[position] ?? 0} of ${tested[position]} accepted`,
          className: "draft",
        };
      }),
    );
  },
};

const budget = {
  about: {
    name: "budget",
    title: "Draft budget",
    unit: "rows per round",
    axis: "running requests",
    empty: "How many draft rows a round carries, by the number of running requests.",
  },
  draw(chart, history) {
    const loads = Object.entries(history.latest.budget ?? {}).map(([running, rows]) => [Number(running), rows]);
    if (!loads.length) {
      chart.clear();
      return;
    }
    loads.sort(([one], [other]) => one - other);
    const now = loads.find(([running]) => running === history.latest.running);
    chart.begin(niceTop(Math.max(...loads.map(([, rows]) => rows))), now ? `${number(now[1], 2)} now` : "");
    chart.bars(
      loads.map(([running, rows]) => ({
        label: running,
        value: rows,
        text: number(rows, 2),
        title: `${count(running, "running request")}: ${number(rows, 3)} draft rows per round`,
        className: now && running === now[0] ? "draft" : "draft faint",
      })),
    );
  },
};

const queue = {
  about: { name: "queue", title: "Queue", unit: "requests", empty: "Running and waiting requests." },
  draw(chart, history) {
    const { running, waiting, kv_use: use } = history.latest;
    const values = (name) => history.values((stats) => stats[name]);
    const most = Math.max(...[...values("running"), ...values("waiting")].map(({ value }) => value));
    if (history.samples.length < 2) {
      chart.clear();
      return;
    }
    chart.begin(evenTop(most), `KV cache ${percent(use ?? 0)}`);
    chart.timeAxis(history.span);
    chart.line(values("running"), history.span, "ink", { filled: true, stepped: true });
    chart.line(values("waiting"), history.span, "second", { stepped: true });
    chart.keys([
      { className: "ink", name: "running", figure: running },
      { className: "second", name: "waiting", figure: waiting },
    ]);
  },
};

const cache = {
  about: {
    name: "cache",
    title: "Prefix cache",
    unit: `prompt tokens per ${BUCKET} s`,
    empty: "Prompt tokens that the prefix cache had already, beside those computed.",
  },
  draw(chart, history) {
    const cachedOf = (stats) => stats.cached_tokens;
    const computedOf = (stats) => stats.prompt_tokens - stats.cached_tokens;
    const [cached, computed] = [history.growth(cachedOf), history.growth(computedOf)];
    if (cached + computed <= 0) {
      chart.clear();
      return;
    }
    const bars = history.buckets([cachedOf, computedOf]).map((bar) => ({
      ...bar,
      title: `${bar.values[0]} cached, ${bar.values[1]} computed`,
    }));
    chart.begin(niceTop(Math.max(...bars.map(({ values }) => sumOf(values)))), `${percent(cached / (cached + computed))} hits`);
    chart.timeAxis(history.span);
    chart.stacks(bars, BUCKET, history.span, ["ink", "pale"]);
    chart.keys([
      { className: "ink", name: "cached", figure: number(cached) },
      { className: "pale", name: "computed", figure: number(computed) },
    ]);
  },
};

const seconds = {
  about: {
    name: "seconds",
    title: "Where the seconds go",
    unit: "share of the time",
    empty: "How the engine spends its time: the model’s passes, drafting, prompts, and the rest.",
  },
  draw(chart, history) {
    const reads = PHASES.map((phase) => (stats) => stats.seconds[phase] ?? 0);
    const totals = reads.map((read) => history.growth(read));
    const busy = sumOf(totals);
    if (busy <= 0) {
      chart.clear();
      return;
    }
    const bars = history.buckets(reads).map(({ ago, seconds: covered, values }) => {
      const shares = values.map((value) => value / covered);
      const told = PHASES.map((phase, index) => `${phase} ${percent(shares[index])}`);
      return { ago, values: shares, title: told.join(", ") };
    });
    const [first, last] = [history.samples[0], history.latest];
    chart.begin(1, `${percent(Math.min(1, busy / (last.time - first.time)))} busy`, percent);
    chart.timeAxis(history.span);
    chart.stacks(bars, BUCKET, history.span, PHASES);
    chart.keys(PHASES.map((name, index) => ({ className: name, name, figure: percent(totals[index] / busy) })));
  },
};

/** The charts, in an element that gets a card for each. */
export class Live {
  constructor(root) {
    this.root = root;
    this.parts = [throughput, acceptance, budget, queue, cache, seconds].map((part) => ({
      chart: new Chart(part.about),
      draw: part.draw,
    }));
    root.replaceChildren(...this.parts.map(({ chart }) => chart.element));
    for (const { chart } of this.parts) chart.clear();
  }

  /** Draw the history; nothing is drawn while the charts are out of sight. */
  show(history) {
    if (!history.latest || !this.root.offsetParent) return;
    for (const { chart, draw } of this.parts) draw(chart, history);
  }
}
