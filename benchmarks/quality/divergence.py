"""How far an engine's next-token distributions are from the reference's: per position, and summed up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from outrider.bench.bootstrap import speedup, speedup_interval

_ROWS: Final = 2
"""Positions worked on at a time: so few that their float64, a megabyte each for a large vocabulary, stays cached."""


@dataclass(frozen=True, eq=False)
class Scores:
    """One engine on one text; all arrays are [positions]."""

    divergence: np.ndarray[Any, Any]
    """KL(reference || engine) over the whole vocabulary, nats."""
    agrees: np.ndarray[Any, Any]
    """Whether both think the same token likeliest."""
    surprise: np.ndarray[Any, Any]
    """−log of the probability the engine gives to the text's own next token, nats."""

    def at(self, positions: slice) -> Scores:
        """Some of the positions."""
        return Scores(self.divergence[positions], self.agrees[positions], self.surprise[positions])


def score(reference: torch.Tensor, engines: Mapping[str, torch.Tensor], following: Sequence[int]) -> dict[str, Scores]:
    """Compare engines with the reference at every position of a text, in float64.

    Args:
        reference: logits [positions, vocabulary].
        engines: the same of each engine.
        following: the text's own next token at each position.

    Raises:
        ValueError: the shapes differ.
    """
    for name, logits in engines.items():
        if logits.shape != reference.shape or len(following) != len(reference):
            raise ValueError(f"{name}: logits {tuple(logits.shape)} and {len(following)} next tokens do not fit the "
                             f"reference's {tuple(reference.shape)}")  # fmt: skip
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in engines}
    for start in range(0, len(reference), _ROWS):
        rows = slice(start, start + _ROWS)
        expected = reference[rows].double().log_softmax(dim=1)
        weight, likeliest = expected.exp(), expected.argmax(dim=1)
        own = torch.tensor(following[rows]).unsqueeze(1)
        for name, logits in engines.items():
            found = logits[rows].double().log_softmax(dim=1)
            divergence = (weight * (expected - found)).sum(dim=1)
            agrees = (found.argmax(dim=1) == likeliest).double()
            parts[name].append(torch.stack((divergence, agrees, -found.gather(1, own).squeeze(1))))
    return {name: _scores(torch.cat(each, dim=1).numpy()) for name, each in parts.items()}


def _scores(rows: np.ndarray[Any, Any]) -> Scores:
    divergence, agrees, surprise = rows
    return Scores(divergence, agrees > 0, surprise)


def summarise(texts: Sequence[Scores]) -> dict[str, float]:
    """The figures of one engine over the positions of all texts, each position counting once."""
    divergence = np.concatenate([text.divergence for text in texts])
    return {
        "mean_kl": float(divergence.mean()),
        "median_kl": float(np.median(divergence)),
        "p99_kl": float(np.quantile(divergence, 0.99)),
        "max_kl": float(divergence.max()),
        "agreement": float(np.concatenate([text.agrees for text in texts]).mean()),
        "perplexity": float(np.exp(np.concatenate([text.surprise for text in texts]).mean())),
    }


def ratio_of_means(ours: Sequence[Scores], theirs: Sequence[Scores]) -> dict[str, Any]:
    """Our mean divergence over theirs, with a 95 % bootstrap interval over texts.

    Args:
        ours: per text.
        theirs: of the same texts, in the same order.
    """
    sums = [float(text.divergence.sum()) for text in ours], [float(text.divergence.sum()) for text in theirs]
    counts = [float(len(text.divergence)) for text in ours]
    return {
        "ratio": speedup(sums[0], counts, sums[1], counts),
        "interval": speedup_interval(sums[0], counts, sums[1], counts),
    }
