"""The calibration error of a confidence, and the temperatures that lower it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch

Confidences = tuple[torch.Tensor, torch.Tensor]
"""[n, drafts] each: confidences before the sigmoid, and whether all drafts up to a slot were accepted."""
_TEMPERATURES: Final = tuple(0.5 * 1.07**step for step in range(36))
"""Candidates for each slot: 0.5 to 5.3."""


def scaling_temperatures(logits: torch.Tensor, right: torch.Tensor) -> tuple[float, ...]:
    """Temperatures of the slots' confidences, for calibrated survivals (sequential temperature scaling).

    From the first slot on, each takes the temperature that calibrates the product of all confidences so far best
    (DSpark, §3.2).

    Args:
        logits: [n, drafts], confidences before the sigmoid.
        right: bool [n, drafts], whether all drafts up to a slot were accepted.
    """
    settled: list[float] = []
    survival = torch.ones(len(logits))
    for slot in range(logits.shape[1]):
        tried = [survival * torch.sigmoid(logits[:, slot] / temperature) for temperature in _TEMPERATURES]
        errors = [calibration_error(chances, right[:, slot]) for chances in tried]
        best = min(range(len(errors)), key=errors.__getitem__)
        settled.append(_TEMPERATURES[best])
        survival = tried[best]
    return tuple(settled)


def calibration_error(chances: torch.Tensor, happened: torch.Tensor, bins: int = 15) -> float:
    """Expected calibration error: the mean difference of chances and frequencies, over bins of equal size."""
    order = chances.argsort()
    pairs = zip(chances[order].tensor_split(bins), happened[order].float().tensor_split(bins), strict=True)
    return sum(float((said.mean() - did.mean()).abs()) * len(said) for said, did in pairs if len(said)) / len(chances)


def survivals(logits: torch.Tensor, temperatures: Sequence[float]) -> torch.Tensor:
    """The probability that all drafts up to each slot are accepted, from confidences: [n, drafts]."""
    return torch.sigmoid(logits / torch.tensor(temperatures)).cumprod(-1)


def cross_validated_errors(parts: Sequence[Confidences]) -> Mapping[str, float]:
    """The calibration error averaged over slots, without and with temperatures.

    Temperatures are fitted on one half of the parts and evaluated on the other, both ways.

    Args:
        parts: confidences by batch; with fewer than two the result is empty.
    """
    halves = [[part for part in half if len(part[0])] for half in (parts[::2], parts[1::2])]
    if not all(halves):
        return {}
    first, second = (_joined(half) for half in halves)
    before, after, count = 0.0, 0.0, 0
    for fitted, (logits, right) in ((first, second), (second, first)):
        drafts, share = right.shape[1], len(right)
        for temperatures, scaled in (((1.0,) * drafts, False), (scaling_temperatures(*fitted), True)):
            said = survivals(logits, temperatures)
            error = sum(calibration_error(said[:, slot], right[:, slot]) for slot in range(drafts)) / drafts
            before, after = before + share * error * (not scaled), after + share * error * scaled
        count += share
    return {"calibration error, unscaled": before / count, "calibration error": after / count}


def _joined(parts: Sequence[Confidences]) -> Confidences:
    logits, right = zip(*parts, strict=True)
    return torch.cat(logits), torch.cat(right)
