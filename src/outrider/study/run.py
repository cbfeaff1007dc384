"""A study: a bench, each drafter's quality as a language model, and the correlations of both with the speedup.

Source of the question: Yan, Agarwal, Venkataraman, "Decoding speculative decoding", 2024 (arXiv 2402.01528): in over
350 experiments the draft's latency decided the speedup, and its quality as a language model hardly mattered.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, Final

from outrider.bench.report import ALL
from outrider.bench.runner import Arm, Sample
from outrider.bench.session import BenchRequest, Measured, measure
from outrider.study.quality import Quality, no_quality, quality
from outrider.study.ranks import chance, kendall, spearman

MEASURES: Final = {
    "perplexity": "perplexity of the target's answers under the drafter",
    "acceptance_rate": "α, acceptance rate",
    "mean_accepted_length": "τ, tokens per round",
    "draft_ms_per_token": "draft latency, ms per drafted token",
    "draft_ms_per_round": "draft latency, ms per round",
}
"""The figures that the speedup is correlated with, and their names."""

MEANINGS: Final = {
    "perplexity": "exp of the mean negative log-likelihood of the target's plain answers under the drafter, which "
    "drafts one token at temperature 1 after each token of an answer; only tokens with a probability above 0 count",
    "draft_ms_per_token": "milliseconds of drafting per drafted token, without the drafter's prefill",
    "median_speedup": "the median of the speedups on single prompts",
    "p": "two-sided p-value: how often a random order would correlate as strongly",
}


def study(request: BenchRequest, begin: Callable[[int], None], advance: Callable[[], None]) -> dict[str, Any]:
    """Run a bench and judge its drafters.

    Args:
        request: what to measure, under one setting.
        begin: called once with the number of steps.
        advance: called after each step.

    Returns:
        The bench's result with the drafters' figures and the correlations, as a JSON object.
    """
    drafters = [arm for arm in request.arms if not arm.plain]
    judged = sum(no_quality(arm.config) is None for arm in drafters)
    found = measure(request, lambda runs: begin(runs + judged * runs // len(request.arms)), advance)
    answers = [sample for sample in found.samples if sample.arm.plain]
    qualities = {arm.name: _quality(found, arm, answers, advance) for arm in drafters}
    rows = [_row(found, arm, qualities[arm.name]) for arm in drafters]
    told = {"drafters": rows, "correlations": correlations(rows), "meanings": MEANINGS}
    return found.result | {"study": told}


def _quality(found: Measured, arm: Arm, answers: Sequence[Sample], advance: Callable[[], None]) -> Quality:
    """A drafter's quality; a failure becomes its reason."""
    try:
        return quality(found.models, arm.config, answers, advance)
    except Exception as error:  # noqa: BLE001 - the bench before it may have taken an hour
        return Quality(reason=f"it failed while it was judged: {type(error).__name__}: {error}")


def _row(found: Measured, arm: Arm, judged: Quality) -> dict[str, Any]:
    """One drafter's figures."""
    entries = found.result["results"]
    entry = next(each for each in entries if each["algorithm"] == arm.name and each["category"] == ALL)
    seconds, drafted = entry["per_round"]["draft_s"] * entry["rounds"], entry["drafted"]
    kept = ("speedup", "speedup_interval", "end_to_end_speedup", "mean_accepted_length", "rounds", "drafted", "tested")
    return {
        "name": arm.name,
        "method": arm.config.method,
        "verifier": arm.verifier.name,
        "lossless": arm.verifier.lossless,
        "quality": judged.to_json(),
        "perplexity": judged.perplexity,
        "acceptance_rate": entry["acceptance_rate"] if entry["tested"] else None,
        "draft_ms_per_token": 1000 * seconds / drafted if drafted else None,
        "draft_ms_per_round": 1000 * entry["per_round"]["draft_s"],
        "median_speedup": _median_speedup(arm, found.samples) if drafted else None,
    } | {key: entry[key] for key in kept}


def _median_speedup(arm: Arm, samples: Sequence[Sample]) -> float | None:
    """The median of an arm's speedups on single prompts."""
    ids = dict.fromkeys(sample.prompt.row.id for sample in samples)
    ratios = [
        _rate([sample for sample in samples if sample.prompt.row.id == row and sample.arm.name == arm.name])
        / _rate([sample for sample in samples if sample.prompt.row.id == row and sample.arm.plain])
        for row in ids
        if all(sample.stats.emitted and sample.decode > 0 for sample in samples if sample.prompt.row.id == row)
    ]
    return statistics.median(ratios) if ratios else None


def _rate(samples: Sequence[Sample]) -> float:
    return sum(sample.stats.emitted for sample in samples) / sum(sample.decode for sample in samples)


def correlations(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Correlate the speedup with each measure, over the drafters that have both.

    Args:
        rows: drafters, each with a speedup and the figures of :data:`MEASURES`, which may be None.
    """
    found = []
    for measured, title in MEASURES.items():
        have = [row for row in rows if row[measured] is not None and row["speedup"] is not None]
        x, y = ([float(row[key]) for row in have] for key in (measured, "speedup"))
        found.append(
            {
                "measure": measured,
                "title": title,
                "n": len(have),
                "spearman": spearman(x, y),
                "spearman_p": chance(spearman, x, y),
                "kendall": kendall(x, y),
                "kendall_p": chance(kendall, x, y),
            }
        )
    return found
