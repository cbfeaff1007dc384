"""The plot of a training: the loss, and below it the held-out accepted length, over tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from outrider.bench.svg import LINE, SHOWN, WIDTH, Drawing, LogScale, Scale, lines_of, nice_end
from outrider.train.report.curve import PowerLaw

_LEFT, _RIGHT = 46, WIDTH - 16
_LOSS: Final = (62, 200)
"""Top and bottom line of the upper panel."""
_LENGTH: Final = (266, 426)
"""Top and bottom line of the lower panel."""
_CAPTION: Final = 14
"""Distance from a panel's caption to its top line."""
_TITLE: Final = 54
"""Most letters of the title."""
_MOST_POINTS: Final = 300
_STYLE: Final = """<style>
svg { font: 13px system-ui, sans-serif; background: #fcfcfb; }
.title { fill: #1c1c1a; font-weight: 600; } .label { fill: #1c1c1a; } .soft { fill: #62615c; font-size: 12px; }
.rule { stroke: #dddcd6; } .f1 { fill: #2a78d6; } .s1 { stroke: #2a78d6; stroke-width: 2; fill: none; }
.s2 { stroke: #c65a11; stroke-width: 1.5; fill: none; } .s0 { stroke: #8a8984; stroke-dasharray: 4 3; fill: none; }
</style>"""


def picture(
    losses: Sequence[tuple[int, float]], judged: Sequence[tuple[int, float]], law: PowerLaw | None, title: str
) -> str:
    """An SVG file: the loss by step above, the held-out accepted length with its law below.

    Args:
        losses: (tokens, loss) of every step.
        judged: (tokens, τ) of every evaluation.
        law: the fitted law, drawn to ten times the tokens.
        title: the method and the target.
    """
    caption = lines_of(str(law), WIDTH - 16) if law is not None and judged else []
    drawing = Drawing(WIDTH, _LENGTH[1] + 32 + len(caption) * LINE, title)
    drawing.text(8, 20, title if len(title) <= _TITLE else f"{title[: _TITLE - 1]}…", "title")
    if losses:
        _loss_panel(drawing, losses)
    if judged:
        _length_panel(drawing, judged, law)
    for place, line in enumerate(caption):
        drawing.text(8, _LENGTH[1] + 42 + place * LINE, line, "soft")
    return drawing.file(_STYLE, SHOWN)


def _loss_panel(drawing: Drawing, losses: Sequence[tuple[int, float]]) -> None:
    top, bottom = _LOSS
    across = Scale(max(tokens for tokens, _ in losses), _LEFT, _RIGHT)
    up = Scale(nice_end(max(1e-3, *(loss for _, loss in losses))), bottom, top)
    drawing.text(8, top - _CAPTION, f"loss over tokens trained on, {losses[-1][0]:,} in all", "soft")
    _rules(drawing, up, up.ticks)
    _marks(drawing, across, across.ticks, bottom)
    drawing.path([(across(tokens), up(max(0.0, loss))) for tokens, loss in _thinned(losses)], "s2")


def _length_panel(drawing: Drawing, judged: Sequence[tuple[int, float]], law: PowerLaw | None) -> None:
    top, bottom = _LENGTH
    later = [point for point in judged if point[0] > 0]
    most = max((tokens for tokens, _ in later), default=10)
    across = LogScale(min((tokens for tokens, _ in later), default=1), most * (10 if law else 1.01), _LEFT, _RIGHT)
    reached = [law.at(across.most)] if law else []
    gained = max([length for _, length in judged] + reached) - 1
    up = Scale(1 + nice_end(max(0.1, gained)), bottom, top, least=1)  # plain decoding's τ is 1
    drawing.text(8, top - _CAPTION, "held-out τ over tokens trained on, on a logarithmic axis", "soft")
    _rules(drawing, up, up.ticks)
    _marks(drawing, across, across.ticks, bottom)
    if law is not None:
        steps = [across.least * (across.most / across.least) ** (step / 80) for step in range(81)]
        drawing.path([(across(tokens), up(max(1.0, law.at(tokens)))) for tokens in steps], "s0")
    drawing.path([(across(tokens), up(length)) for tokens, length in later], "s1")
    for tokens, length in later:
        drawing.dot(across(tokens), up(length), "f1", f"{tokens:,} tokens: τ {length:.3f}")


def _rules(drawing: Drawing, up: Callable[[float], float], ticks: Sequence[float]) -> None:
    for tick in ticks:
        drawing.line(_LEFT, up(tick), _RIGHT, up(tick), "rule")
        drawing.text(_LEFT - 8, up(tick) + 4, f"{tick:g}", "soft", "end")


def _marks(drawing: Drawing, across: Callable[[float], float], ticks: Sequence[float], bottom: float) -> None:
    for tick in ticks:
        drawing.text(across(tick), bottom + 17, _short(tick), "soft", "middle")


def _short(tokens: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if tokens >= size:
            return f"{tokens / size:g}{unit}"
    return f"{tokens:g}"


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """At most :data:`_MOST_POINTS` points, each the mean of its neighbours."""
    size = -(-len(points) // _MOST_POINTS)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]
