"""Write ``docs/metrics.md`` from the metrics that the server exports; run it after changing one.

python docs/generate_metrics.py
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prometheus_client.core import Metric as Family

from outrider.server.metrics import Exposition, RequestMetrics, RoundTotals, ServerFacts
from outrider.server.metrics.catalogue import COUNTERS, GAUGES

TARGET = Path(__file__).with_name("metrics.md")
FACTS = ServerFacts("small", "suffix", "coupled", "native", 256, "0.1.0")
GROUPS = {
    "Load and throughput": (
        *("vllm:num_requests_running", "vllm:num_requests_waiting", "outrider:max_running_requests"),
        *("vllm:prompt_tokens", "vllm:generation_tokens", "vllm:request_success", "vllm:num_preemptions"),
        *("vllm:iteration_tokens_total", "outrider:rounds", "outrider:build_info"),
    ),
    "Latency and size of requests": (
        *("vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        *("vllm:request_time_per_output_token_seconds", "vllm:e2e_request_latency_seconds"),
        *("vllm:request_queue_time_seconds", "vllm:request_prompt_tokens", "vllm:request_generation_tokens"),
    ),
    "KV cache": (
        *("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "vllm:prefix_cache_queries"),
        "vllm:prefix_cache_hits",
    ),
    "Speculation": (
        *("vllm:spec_decode_num_drafts", "vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens"),
        *("vllm:spec_decode_num_accepted_tokens_per_pos", "outrider:spec_decode_num_tested_tokens_per_pos"),
        *("outrider:spec_decode_num_draft_tokens_per_pos", "outrider:acceptance_rate", "outrider:accepted_length"),
        *("outrider:decode_turns", "outrider:decode_tokens", "outrider:rows", "outrider:draft_budget"),
        *("outrider:draft_turns", "outrider:draft_rows_granted", "outrider:draft_rows_used"),
        "outrider:drafting_switched_off",
    ),
    "Where the time goes": (
        *("outrider:stage_seconds", "outrider:one_row_seconds", "outrider:estimated_speedup"),
        *("outrider:measured_decode_seconds", "outrider:estimated_plain_decode_seconds"),
    ),
    "HTTP": ("outrider:http_requests", "outrider:refused_requests"),
}
"""The families of each table."""
PAGE = """# Metrics

`GET /metrics` answers in the text format of Prometheus. Where vLLM has a metric of the same meaning, the name is
vLLM's, so most panels and alerts made for vLLM work; panels for metrics that this page does not list stay empty. The
others begin with `outrider:`. Every metric has the label `model_name`.
[grafana_dashboard.json](grafana_dashboard.json) is a dashboard for Grafana 10 and later: import it and choose your
Prometheus.

```yaml
scrape_configs:
  - job_name: outrider
    static_configs:
      - targets: ["localhost:8000"]
```

{tables}
## How to read them

**Acceptance rate.** Divide accepted drafts by *tested* drafts. A draft behind a rejected one is never tested, so
dividing by all drafts, as is usual with vLLM's names, gives a lower number that falls with the draft length:

```text
  sum by (position) (rate(vllm:spec_decode_num_accepted_tokens_per_pos_total[5m]))
/ sum by (position) (rate(outrider:spec_decode_num_tested_tokens_per_pos_total[5m]))
```

**Accepted length.** Divide the tokens of decoding rounds by the decoding rounds, `outrider:decode_tokens_total` by
`outrider:decode_turns_total`. Plain decoding has 1.

**Inter-token latency.** As in vLLM, all tokens that one round gives a request are one chunk and count once. So drafts
do not shorten this latency: they put more tokens into a chunk. `vllm:request_time_per_output_token_seconds` counts
per token. Only streaming requests have inter-token latencies.

**Latencies** begin when the engine queues a request. Reading the request and encoding its prompt come before.
Requests that were cancelled or failed count in no latency of whole requests.

**Iteration tokens** are the prompt rows that a round computes and the tokens that it emits. Cached prompt tokens are
not computed, so they do not count.

**Estimated speedup.** For each round that only decodes, the server asks what plain decoding would have taken: as many
rounds of one row per request as the round emitted tokens per request. It times plain rounds whenever nothing is
drafted, and also uses other rounds with the same number of rows. It needs eight of them. The estimate is the sum of
these seconds ÷ the seconds spent, drafting included:

```text
rate(outrider:estimated_plain_decode_seconds_total[5m]) / rate(outrider:measured_decode_seconds_total[5m])
```

It is an estimate. Rounds for which no plain round was measured are left out, and so are rounds that compute a prompt
beside decoding. Passes get slower as texts get longer, and other work on the machine slows some rounds more than
others. `outrider bench` measures the speedup itself.

**Running requests** in the label `running` are the bucket's upper bound: 1, 2, 4 (3 to 4), 8 (5 to 8) and so on.

`GET /stats` has the main totals as JSON: tokens, rounds, drafts, cached tokens, rows and seconds. The chat page draws
them. Unlike `/metrics`, it needs the API key if there is one.
"""


def families() -> list[Family]:
    """All families, as a server that has done nothing exports them."""
    return list(Exposition(FACTS, RoundTotals(), RequestMetrics(FACTS.model, 4096)).collect())


def exported(family: Family) -> list[str]:
    """The names of a family's samples."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    return [family.name + suffix for suffix in suffixes[family.type]]


def labels() -> dict[str, tuple[str, ...]]:
    """The labels of each family, besides the model's name."""
    return {metric.name: metric.labels for metric in (*GAUGES, *COUNTERS)}


def table(found: Iterable[Family]) -> str:
    """One row per family."""
    lines = ["| metric | type | labels | |", "|---|---|---|---|"]
    for family in found:
        name = exported(family)[0].removesuffix("_bucket")
        named = ", ".join(f"`{label}`" for label in labels().get(family.name, ()))
        lines.append(f"| `{name}` | {family.type} | {named} | {family.documentation} |")
    return "\n".join(lines)


def render() -> str:
    """The whole page."""
    known = {family.name: family for family in families()}
    parts = [f"## {title}\n\n{table(known[name] for name in names)}\n" for title, names in GROUPS.items()]
    return PAGE.replace("{tables}", "\n".join(parts))


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
