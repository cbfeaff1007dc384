"""Write ``docs/grafana_dashboard.json``; run it after changing a panel.

python docs/generate_dashboard.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

TARGET = Path(__file__).with_name("grafana_dashboard.json")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
MODEL = 'model_name=~"$model"'
COLUMNS, HEIGHT = 24, 8


class Panel(NamedTuple):
    """One panel."""

    title: str
    about: str
    lines: tuple[tuple[str, str], ...]
    """Expressions and their legends."""
    unit: str = "short"
    width: int = 8
    stacked: bool = False
    highest: float | None = None
    kind: str = "timeseries"


def grew(name: str, *by: str, where: str = "") -> str:
    """How fast a counter grows, over all instances."""
    kept = f" by ({', '.join(by)})" if by else ""
    matched = MODEL + (f", {where}" if where else "")
    return f"sum{kept} (rate({name}{{{matched}}}[$__rate_interval]))"


def now(name: str, how: str = "sum") -> str:
    """A gauge over all instances."""
    return f"{how}({name}{{{MODEL}}})"


def quantiles(name: str) -> tuple[tuple[str, str], ...]:
    """Median and 99th percentile of a histogram."""
    buckets = grew(f"{name}_bucket", "le")
    return tuple((f"histogram_quantile({part}, {buckets})", f"p{part * 100:.0f}") for part in (0.5, 0.99))


SPEEDUP = f"{grew('outrider:estimated_plain_decode_seconds_total')} / {grew('outrider:measured_decode_seconds_total')}"
LENGTH = f"{grew('outrider:decode_tokens_total')} / {grew('outrider:decode_turns_total')}"
ACCEPTED, TESTED = (
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "outrider:spec_decode_num_tested_tokens_per_pos_total",
)
RATE = f"{grew(ACCEPTED)} / {grew(TESTED)}"
HITS = f"{grew('vllm:prefix_cache_hits_total')} / {grew('vllm:prefix_cache_queries_total')}"
WASTED = grew("outrider:rows_total", where='kind="wasted"')
TURNS = grew("outrider:draft_turns_total", "running")

ROWS: dict[str, tuple[Panel, ...]] = {
    "Now": (
        Panel(
            "Tokens per second", "Emitted tokens.", ((grew("vllm:generation_tokens_total"), ""),), width=4, kind="stat"
        ),
        Panel(
            "Running",
            "Requests in decoding or prefill.",
            ((now("vllm:num_requests_running"), ""),),
            width=4,
            kind="stat",
        ),
        Panel("Waiting", "Requests in the queue.", ((now("vllm:num_requests_waiting"), ""),), width=4, kind="stat"),
        Panel("Acceptance rate", "Accepted ÷ tested drafts.", ((RATE, ""),), "percentunit", 4, kind="stat"),
        Panel(
            "Accepted length", "Tokens per decoding round; plain decoding has 1.", ((LENGTH, ""),), width=4, kind="stat"
        ),
        Panel("Estimated speedup", "Over plain decoding; an estimate.", ((SPEEDUP, ""),), width=4, kind="stat"),
    ),
    "Throughput and latency": (
        Panel(
            "Throughput",
            "Tokens per second: prompt tokens that were computed or cached, and emitted ones.",
            ((grew("vllm:generation_tokens_total"), "emitted"), (grew("vllm:prompt_tokens_total"), "prompt")),
        ),
        Panel(
            "Time to first token",
            "From queueing to the first token.",
            quantiles("vllm:time_to_first_token_seconds"),
            "s",
        ),
        Panel(
            "Inter-token latency",
            "Between two chunks of a stream; a chunk holds all tokens of a round.",
            quantiles("vllm:inter_token_latency_seconds"),
            "s",
        ),
        Panel(
            "Time per output token",
            "Per token after the first one, by request: what drafts shorten.",
            quantiles("vllm:request_time_per_output_token_seconds"),
            "s",
        ),
        Panel("Latency of requests", "From queueing to the end.", quantiles("vllm:e2e_request_latency_seconds"), "s"),
        Panel(
            "Ended requests",
            "Requests per second by the reason for their end, and refused ones.",
            (
                (grew("vllm:request_success_total", "finished_reason"), "{{finished_reason}}"),
                (grew("outrider:refused_requests_total", "code"), "refused: {{code}}"),
            ),
            "reqps",
        ),
    ),
    "Queue and KV cache": (
        Panel(
            "Requests",
            "Running and waiting requests.",
            (
                (now("vllm:num_requests_running"), "running"),
                (now("vllm:num_requests_waiting"), "waiting"),
                (now("outrider:max_running_requests"), "most running"),
            ),
        ),
        Panel(
            "Time in the queue", "Before a request first gets pages.", quantiles("vllm:request_queue_time_seconds"), "s"
        ),
        Panel(
            "KV cache",
            "Pages that requests own ÷ all pages, and preemptions per second.",
            (
                (now("vllm:kv_cache_usage_perc", "max"), "used"),
                (grew("vllm:num_preemptions_total"), "preemptions per second"),
            ),
            "percentunit",
        ),
        Panel(
            "Prefix cache",
            "Prompt tokens that came from the cache ÷ all.",
            ((HITS, "hits"),),
            "percentunit",
            highest=1.0,
        ),
        Panel(
            "HTTP",
            "Answers per second by route and status.",
            ((grew("outrider:http_requests_total", "route", "status"), "{{route}} {{status}}"),),
            "reqps",
        ),
    ),
    "Speculation": (
        Panel(
            "Acceptance rate by position",
            "Accepted ÷ tested drafts at each position of the draft.",
            ((f"{grew(ACCEPTED, 'position')} / {grew(TESTED, 'position')}", "position {{position}}"),),
            "percentunit",
            highest=1.0,
        ),
        Panel(
            "Accepted length", "Tokens per decoding round, the bonus token included.", ((LENGTH, "tokens per round"),)
        ),
        Panel(
            "Draft budget by load",
            "Draft rows per request and round, by running requests: granted by the controller, and used.",
            (
                (f"{grew('outrider:draft_rows_granted_total', 'running')} / {TURNS}", "granted, up to {{running}}"),
                (f"{grew('outrider:draft_rows_used_total', 'running')} / {TURNS}", "used, up to {{running}}"),
            ),
        ),
        Panel(
            "Rows by kind",
            "Rows of forward passes per second.",
            ((grew("outrider:rows_total", "kind"), "{{kind}}"),),
            stacked=True,
        ),
        Panel(
            "Wasted rows",
            "Rows of rejected drafts ÷ all rows.",
            ((f"{WASTED} / {grew('outrider:rows_total')}", "wasted"),),
            "percentunit",
            highest=1.0,
        ),
        Panel(
            "Drafting switched off",
            "Requests per second whose drafter failed, by failure.",
            ((grew("outrider:drafting_switched_off_total", "reason"), "{{reason}}"),),
        ),
    ),
    "Where the time goes": (
        Panel(
            "Seconds by stage",
            "Seconds per second; what is missing to 1 is idle.",
            ((grew("outrider:stage_seconds_total", "stage"), "{{stage}}"),),
            "s",
            stacked=True,
        ),
        Panel("Estimated speedup", "Over plain decoding; an estimate.", ((SPEEDUP, "speedup"),)),
        Panel(
            "Plain round",
            "Median seconds of the latest rounds with one row.",
            ((now("outrider:one_row_seconds", "avg"), "one row"),),
            "s",
        ),
        Panel(
            "Tokens per round",
            "Prompt rows and emitted tokens of a round.",
            quantiles("vllm:iteration_tokens_total"),
        ),
    ),
}


def panel(number: int, what: Panel, x: int, y: int) -> dict[str, Any]:
    """A panel as Grafana stores it."""
    height = HEIGHT // 2 if what.kind == "stat" else HEIGHT
    custom = {"fillOpacity": 20 if what.stacked else 0, "stacking": {"mode": "normal" if what.stacked else "none"}}
    bounds = {"min": 0} | ({} if what.highest is None else {"max": what.highest})
    return {
        "id": number,
        "type": what.kind,
        "title": what.title,
        "description": what.about,
        "datasource": SOURCE,
        "gridPos": {"h": height, "w": what.width, "x": x, "y": y},
        "fieldConfig": {
            "defaults": {"unit": what.unit, **bounds} | ({"custom": custom} if what.kind == "timeseries" else {}),
            "overrides": [],
        },
        "options": {},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend or "__auto",
            }
            for place, (expression, legend) in enumerate(what.lines)
        ],
    }


def panels() -> list[dict[str, Any]]:
    """All panels, row by row."""
    found: list[dict[str, Any]] = []
    x = y = 0
    for title, members in ROWS.items():
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        found.append({"id": len(found) + 1, "type": "row", "title": title, "gridPos": place, "panels": []})
        x, y = 0, y + 1
        for what in members:
            if x + what.width > COLUMNS:
                x, y = 0, y + HEIGHT
            found.append(panel(len(found) + 1, what, x, y))
            x += what.width
        y += HEIGHT
    return found


def variables() -> list[dict[str, Any]]:
    """Which Prometheus, and which models."""
    query = "label_values(vllm:num_requests_running, model_name)"
    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}},
        {
            "name": "model",
            "label": "Model",
            "type": "query",
            "datasource": SOURCE,
            "definition": query,
            "query": {"query": query, "refId": "model"},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "current": {"text": ["All"], "value": ["$__all"]},
        },
    ]


def render() -> str:
    """The dashboard as JSON."""
    dashboard = {
        "uid": "outrider",
        "title": "Outrider",
        "description": "Throughput, latency and speculation of Outrider servers.",
        "tags": ["outrider", "llm"],
        "schemaVersion": 38,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": variables()},
        "annotations": {"list": []},
        "panels": panels(),
    }
    return json.dumps(dashboard, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
