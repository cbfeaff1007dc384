"""The figures behind ``GET /stats``, as plain values for JSON."""

from __future__ import annotations

import time
from typing import Any

from outrider.server.metrics.facts import ServerFacts
from outrider.server.metrics.rounds import RoundTotals
from outrider.server.metrics.state import state_of


def stats_of(totals: RoundTotals, facts: ServerFacts) -> dict[str, Any]:
    """Describe the server's work since its start; a client takes the difference of two answers.

    Args:
        totals: counts the engine's rounds.
        facts: what is served.
    """
    figures, state = totals.figures, state_of(totals.engine)
    return {
        "time": time.time(),
        **vars(facts),
        "running": state.running,
        "waiting": state.waiting,
        "kv_use": state.kv_use,
        "tokens": figures.emitted,
        "rounds": figures.turns,
        "passes": figures.passes,
        "drafted": sum(figures.drafted),
        "tested": list(figures.tested),
        "accepted": list(figures.accepted),
        "cached_tokens": figures.cached_tokens,
        "prompt_tokens": figures.prompt_tokens,
        "budget": {str(bound): rows for bound, rows in totals.recent().draft_rows.items()},
        "rows": dict(vars(figures.rows)),
        "seconds": figures.seconds._asdict(),
        "one_row_seconds": totals.one_row_seconds,
    }
