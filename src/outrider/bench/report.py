"""Summarise samples: figures per method, setting and category."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from outrider.bench.bootstrap import speedup, speedup_interval
from outrider.bench.equality import Difference, promises_plain_text
from outrider.bench.runner import Arm, Sample, Setting
from outrider.metrics import PhaseSeconds, SpeculationStats, predicted_speedup, rates_per_round

SCHEMA_VERSION: Final = 1
ALL: Final = "all"
"""The category that holds every prompt."""

MEANINGS: Final = {
    "tokens_per_s": "tokens of decoding rounds / seconds of decoding rounds, summed over prompts, without prefill of "
    "target and drafter",
    "end_to_end_tokens_per_s": "all tokens / all seconds from request to last token, with prefill",
    "speedup": "tokens_per_s / that of plain decoding on the same prompts, null for a method that drafted nothing; the "
    "interval is a 95 % bootstrap over prompts",
    "acceptance_rate": "accepted / tested drafts; by position: at each depth of the tree",
    "mean_accepted_length": "tokens emitted per round, with the bonus token; plain decoding has 1",
    "cost_coefficient": "seconds of one draft step / seconds of one plain target pass",
    "predicted_speedup": "Leviathan et al. 2023, theorem 3.8, with the rate of each position per round; a verifying "
    "pass costs as much as a plain one",
    "predicted_with_verify_cost": "the same with the measured cost of a verifying pass",
    "other_share": "the engine's own time, outside target and drafter passes, as a share of a decoding round",
    "gap": "how far a token's score is below the best score when the text is forced through plain decoding",
}


@dataclass(frozen=True)
class Totals:
    """Sums over samples."""

    tokens: int
    stats: SpeculationStats
    seconds: PhaseSeconds
    decode: float
    wall: float
    draft_prefill: float

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Totals:
        """Add samples up."""
        stats, seconds = SpeculationStats(), PhaseSeconds()
        for sample in samples:
            stats.merge(sample.stats)
            for item in dataclasses.fields(PhaseSeconds):
                total = getattr(seconds, item.name) + getattr(sample.seconds, item.name)
                setattr(seconds, item.name, total)
        return cls(
            tokens=sum(len(sample.token_ids) for sample in samples),
            stats=stats,
            seconds=seconds,
            decode=sum(sample.decode for sample in samples),
            wall=sum(sample.wall for sample in samples),
            draft_prefill=sum(sample.draft_prefill for sample in samples),
        )

    @property
    def verify_per_round(self) -> float:
        """Seconds of one target pass."""
        return self.seconds.verify / self.seconds.rounds if self.seconds.rounds else 0.0

    @property
    def draft_per_round(self) -> float:
        """Seconds of drafting, without the drafter's prefill."""
        return (self.seconds.draft - self.draft_prefill) / self.seconds.rounds if self.seconds.rounds else 0.0


def summarise(
    samples: Sequence[Sample], arms: Sequence[Arm], differences: Mapping[tuple[str, str], Sequence[Difference]]
) -> list[dict[str, Any]]:
    """One entry per setting, category and method; the category of all prompts comes first.

    Args:
        samples: all samples; each setting has exactly one plain arm.
        arms: the methods, in order.
        differences: texts that differ from plain decoding's, by setting label and arm name.
    """
    entries = []
    for setting in dict.fromkeys(sample.setting for sample in samples):
        here = [sample for sample in samples if sample.setting == setting]
        for category in (ALL, *dict.fromkeys(sample.prompt.row.category for sample in here)):
            part = [sample for sample in here if category in (ALL, sample.prompt.row.category)]
            plain = [sample for sample in part if sample.arm.plain]
            for arm in arms:
                mine = [sample for sample in part if sample.arm.name == arm.name]
                entry = {"temperature": setting.temperature, "top_p": setting.top_p, "setting": setting.label}
                entry |= {"category": category} | _compare(mine, plain)
                entry |= {"identical": _identical(mine, setting, differences.get((setting.label, arm.name), ()))}
                entries.append(entry)
    return entries


def _compare(mine: Sequence[Sample], plain: Sequence[Sample]) -> dict[str, Any]:
    total, base = Totals.of(mine), Totals.of(plain)
    decoded, walled = _per_prompt(mine, plain)
    gains = {
        "speedup": speedup(*decoded),
        "speedup_interval": speedup_interval(*decoded),
        "end_to_end_speedup": speedup(*walled),
        "end_to_end_interval": speedup_interval(*walled),
    }
    # Without drafts, a difference from plain decoding is noise.
    drafted = mine[0].arm.plain or any(total.stats.drafted)
    return {
        "algorithm": mine[0].arm.name,
        "verifier": mine[0].arm.verifier.name,
        "lossless": mine[0].arm.verifier.lossless,
        "prompts": len({sample.prompt.row.id for sample in mine}),
        "tokens": total.tokens,
        "decode_tokens": total.stats.emitted,
        "tokens_per_s": _ratio(total.stats.emitted, total.decode),
        "end_to_end_tokens_per_s": _ratio(total.tokens, total.wall),
        **(gains if drafted else dict.fromkeys(gains)),
        "rounds": total.stats.rounds,
        "drafted": sum(total.stats.drafted),
        "tested": sum(total.stats.tested),
        "accepted": sum(total.stats.accepted),
        "acceptance_rate": total.stats.acceptance_rate,
        "acceptance_by_position": total.stats.acceptance_by_position,
        "tested_by_position": list(total.stats.tested),
        "mean_accepted_length": total.stats.mean_accepted_length,
        "prefill_s": total.seconds.prefill,
        "draft_prefill_s": total.draft_prefill,
    } | _costs(total, base)


def _costs(total: Totals, base: Totals) -> dict[str, Any]:
    """The time of a round by phase, and the speedup predicted from acceptance and costs."""
    rounds, plain_pass = total.seconds.rounds, base.verify_per_round
    levels = total.stats.levels
    other = _ratio(total.seconds.other, rounds)
    whole = total.draft_per_round + total.verify_per_round + (other or 0.0)
    result: dict[str, Any] = {
        "per_round": {"draft_s": total.draft_per_round, "verify_s": total.verify_per_round, "other_s": other},
        "other_share": _ratio(other or 0.0, whole),
        "draft_steps_per_round": _ratio(levels, total.stats.rounds),
        "cost_coefficient": None,
        "verify_cost": _ratio(total.verify_per_round, plain_pass),
        "predicted_speedup": None,
        "predicted_with_verify_cost": None,
    }
    if plain_pass and rounds and levels:
        rates = rates_per_round(total.stats)
        step = total.draft_per_round / len(rates) / plain_pass
        result["cost_coefficient"] = total.draft_per_round * rounds / levels / plain_pass
        result["predicted_speedup"] = predicted_speedup(rates, step)
        result["predicted_with_verify_cost"] = predicted_speedup(rates, step, total.verify_per_round / plain_pass)
    return result


def _per_prompt(mine: Sequence[Sample], plain: Sequence[Sample]) -> tuple[list[list[float]], list[list[float]]]:
    """Tokens and seconds by prompt, of a method and of plain decoding: decoding alone, and end to end."""
    ids = list(dict.fromkeys(sample.prompt.row.id for sample in mine))
    decoded: list[list[float]] = []
    walled: list[list[float]] = []
    for samples in (mine, plain):
        groups = [[sample for sample in samples if sample.prompt.row.id == row] for row in ids]
        decoded.append([float(sum(sample.stats.emitted for sample in group)) for group in groups])
        decoded.append([sum(sample.decode for sample in group) for group in groups])
        walled.append([float(sum(len(sample.token_ids) for sample in group)) for group in groups])
        walled.append([sum(sample.wall for sample in group) for group in groups])
    return decoded, walled


def _identical(mine: Sequence[Sample], setting: Setting, differences: Sequence[Difference]) -> dict[str, Any]:
    ids = {sample.prompt.row.id for sample in mine}
    found = [difference for difference in differences if difference.prompt_id in ids]
    promised = promises_plain_text(mine[0].arm.verifier, setting)
    return {
        "promised": promised,
        "texts": len(mine),
        "same": len(mine) - len(found) if promised else None,
        "within_tie_rule": sum(difference.within_tie_rule for difference in found) if promised else None,
        "differences": [difference.to_json() for difference in found],
    }


def sample_json(sample: Sample) -> dict[str, Any]:
    """One run, for the result file."""
    return {
        "id": sample.prompt.row.id,
        "category": sample.prompt.row.category,
        "setting": sample.setting.label,
        "algorithm": sample.arm.name,
        "repeat": sample.repeat,
        "order": sample.order,
        "prompt_tokens": len(sample.prompt.token_ids),
        "token_ids": list(sample.token_ids),
        "finish_reason": sample.finish_reason,
        "rounds": sample.stats.rounds,
        "decode_tokens": sample.stats.emitted,
        "drafted": list(sample.stats.drafted),
        "tested": list(sample.stats.tested),
        "accepted": list(sample.stats.accepted),
        "prefill_s": sample.seconds.prefill,
        "draft_s": sample.seconds.draft,
        "verify_s": sample.seconds.verify,
        "other_s": sample.seconds.other,
        "draft_prefill_s": sample.draft_prefill,
        "wall_s": sample.wall,
    }


def arm_json(arm: Arm, names: Mapping[str, str]) -> dict[str, Any]:
    """One method with every option in effect.

    Args:
        arm: the method.
        names: the name of each draft model, by the path on the command line.
    """
    values = {item.name: getattr(arm.config, item.name) for item in dataclasses.fields(arm.config)}  # type: ignore[arg-type]
    for name, value in values.items():
        if isinstance(value, tuple):
            values[name] = [names.get(part, part) for part in value]
        elif isinstance(value, str):
            values[name] = names.get(value, value)
    rule = {"verifier": arm.verifier.name, "lossless": arm.verifier.lossless}
    chosen = {"method": arm.config.method, "automatic": arm.automatic}
    return {"name": arm.name} | chosen | rule | {"options": values}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
