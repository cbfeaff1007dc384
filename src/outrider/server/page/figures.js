// The line of figures below an answer.

import { make } from "./dom.js";
import { count, duration, number, percent } from "./format.js";

const ENDS = { length: "cut at max tokens", content_filter: "filtered", tool_calls: "asked for a tool" };

/** Speed: tokens per second, beside an estimate of plain decoding. */
function speed(timings) {
  const found = [];
  if (timings?.tokens_per_second > 0) {
    found.push([`${number(timings.tokens_per_second)} tokens/s`, "Tokens per second of this answer", "first"]);
  }
  if (timings?.plain_tokens_per_second > 0) {
    const plain = timings.plain_tokens_per_second;
    found.push([`plain about ${number(plain, 2)}`, "Estimated tokens per second without speculation"]);
    const gain = timings.tokens_per_second / plain;
    if (gain > 0) found.push([`${gain.toFixed(1)}×`, "Estimated speedup over plain decoding", gain >= 1 ? "gain" : ""]);
  }
  return found;
}

function speculation(usage) {
  const drafted = usage?.speculation;
  if (!drafted?.rounds) return [];
  const found = [];
  if (drafted.tested) {
    found.push([
      `α ${drafted.acceptance_rate.toFixed(2)}`,
      `Acceptance rate: ${drafted.accepted} of ${drafted.tested} tested draft tokens (${drafted.algorithm})`,
    ]);
  }
  found.push([`τ ${drafted.accepted_length.toFixed(1)}`, "Tokens per round; plain decoding has 1"]);
  found.push([count(drafted.rounds, "round"), "Passes of the model that decoded"]);
  return found;
}

function times(timings) {
  if (!timings) return [];
  const found = [[`first token ${duration(timings.first_token_s)}`, "Time to first token"]];
  if (timings.queue_s >= 0.05) found.push([`queued ${duration(timings.queue_s)}`, "Time in the queue"]);
  return found;
}

function tokens(usage) {
  if (!usage) return [];
  const found = [[count(usage.completion_tokens, "token"), "Tokens of the answer"]];
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  found.push([
    cached ? `${cached} of ${count(usage.prompt_tokens, "prompt token")} cached` : count(usage.prompt_tokens, "prompt token"),
    cached ? `${percent(cached / usage.prompt_tokens)} of the prompt came from the prefix cache` : "Tokens of the prompt",
  ]);
  return found;
}

/** Fill the list of figures with what the stream told; ends such as "stopped" come last. */
export function showFigures(list, { usage, timings, finish, note }) {
  const end = note ?? ENDS[finish];
  const found = [...speed(timings), ...speculation(usage), ...times(timings), ...tokens(usage)];
  if (end) found.push([end, "How the answer ended", "end"]);
  list.replaceChildren(
    ...found.map(([text, title, className]) => {
      const item = make("li", className, text);
      item.title = title;
      return item;
    }),
  );
}
