"""The picture of a training: loss and held-out accepted length over tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from outrider.bench.svg import Drawing, LogScale, Scale, nice_end
from outrider.train.curve import Fit

_WIDTH: Final = 720
_HEIGHT: Final = 470
_LEFT, _RIGHT = 60, 690
_LOSS: Final = (20, 190)
"""Top and bottom of the upper panel."""
_LENGTH: Final = (250, 430)
"""Top and bottom of the lower panel."""
_MOST_POINTS: Final = 300
_STYLE: Final = """<style>
svg { font: 12px system-ui, sans-serif; background: #fcfcfb; }
.label { fill: #1c1c1a; } .soft { fill: #62615c; font-size: 11px; } .rule { stroke: #dddcd6; }
.f1 { fill: #2a78d6; } .s1 { stroke: #2a78d6; stroke-width: 2; fill: none; }
.s2 { stroke: #c65a11; stroke-width: 1.5; fill: none; } .s0 { stroke: #8a8984; stroke-dasharray: 4 3; fill: none; }
</style>"""


def picture(
    losses: Sequence[tuple[int, float]], judged: Sequence[tuple[int, float]], law: Fit | None, title: str
) -> str:
    """An SVG file: loss by step above, held-out accepted length with its law below.

    Args:
        losses: (tokens, loss) of every step.
        judged: (tokens, τ) of every judgement.
        law: the fitted law, drawn on to ten times the tokens.
        title: what was trained.
    """
    drawing = Drawing(_WIDTH, _HEIGHT, title)
    drawing.text(_LEFT, 14, title)
    if losses:
        _loss_panel(drawing, losses)
    if judged:
        _length_panel(drawing, judged, law)
    return drawing.file(_STYLE)


def _loss_panel(drawing: Drawing, losses: Sequence[tuple[int, float]]) -> None:
    top, bottom = _LOSS
    across = Scale(max(tokens for tokens, _ in losses), _LEFT, _RIGHT)
    up = Scale(nice_end(max(1e-3, *(loss for _, loss in losses))), bottom, top + 8)
    _rules(drawing, up, up.ticks)
    _marks(drawing, across, across.ticks, bottom)
    drawing.path([(across(tokens), up(max(0.0, loss))) for tokens, loss in _thinned(losses)], "s2")
    drawing.text(_RIGHT, top + 8, "loss over tokens trained on", "soft", "end")


def _length_panel(drawing: Drawing, judged: Sequence[tuple[int, float]], law: Fit | None) -> None:
    top, bottom = _LENGTH
    later = [point for point in judged if point[0] > 0]
    most = max((tokens for tokens, _ in later), default=10)
    across = LogScale(min((tokens for tokens, _ in later), default=1), most * (10 if law else 1.01), _LEFT, _RIGHT)
    reached = [law.at(across.most)] if law else []
    up = Scale(nice_end(max([length for _, length in judged] + reached)), bottom, top + 8)
    _rules(drawing, up, up.ticks)
    _marks(drawing, across, across.ticks, bottom)
    if law is not None:
        steps = [across.least * (across.most / across.least) ** (step / 80) for step in range(81)]
        drawing.path([(across(tokens), up(law.at(tokens))) for tokens in steps], "s0")
        drawing.text(_LEFT, _HEIGHT - 6, str(law), "soft")
    drawing.path([(across(tokens), up(length)) for tokens, length in later], "s1")
    for tokens, length in later:
        drawing.dot(across(tokens), up(length), "f1", f"{tokens:,} tokens: τ {length:.3f}")
    drawing.text(_RIGHT, top + 8, "held-out τ over tokens trained on", "soft", "end")


def _rules(drawing: Drawing, up: Callable[[float], float], ticks: Sequence[float]) -> None:
    for tick in ticks:
        drawing.line(_LEFT, up(tick), _RIGHT, up(tick), "rule")
        drawing.text(_LEFT - 8, up(tick) + 4, f"{tick:g}", "soft", "end")


def _marks(drawing: Drawing, across: Callable[[float], float], ticks: Sequence[float], bottom: float) -> None:
    for tick in ticks:
        drawing.text(across(tick), bottom + 16, _short(tick), "soft", "middle")


def _short(tokens: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if tokens >= size:
            return f"{tokens / size:g}{unit}"
    return f"{tokens:g}"


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """At most so many points, each the mean of its neighbours."""
    size = -(-len(points) // _MOST_POINTS)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]
