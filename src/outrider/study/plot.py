"""The plot of a study: speedup against perplexity, and below it speedup against draft latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import hypot
from typing import Any, Final

from outrider.bench.figures import interval, times
from outrider.bench.svg import LETTER, LINE, SHOWN, WIDTH, Box, Drawing, LogScale, Scale, lines_of, nice_end
from outrider.study.table import short

_PANELS: Final = (
    ("perplexity", "perplexity of the target's answers under the drafter"),
    ("draft_ms_per_round", "draft latency, ms per round"),
)
"""The measure on the x-axis of each panel, and its label."""
_LEFT: Final = 46
_RIGHT: Final = WIDTH - 14
_TITLE: Final = WIDTH - 105
"""Width of a line of the bold title."""
_CAPTION: Final = 24
"""Distance from a panel's caption to its top line."""
_HEIGHT: Final = 250
"""Height of a panel."""
_FIGURES: Final = 130
"""Width of a speedup with its interval in the key."""
_DOT: Final = 6
"""Free space around the centre of a dot."""
_GAP: Final = 3
"""Free space left and right of a label."""
_FAR: Final = 18
"""From this distance on, a line connects a label with its point."""
_MARGIN: Final = 1.3
"""Factor of free space beside the outermost points."""
_AROUND: Final = sorted(product(range(-72, 73, 3), repeat=2), key=lambda way: (hypot(*way), way[0] < 0))
"""Offsets of a label from its point, nearest first; right before left."""
_STYLE: Final = """<style>
svg { font: 13px system-ui, sans-serif; background: #fcfcfb; }
.title { fill: #1c1c1a; font-weight: 600; } .label { fill: #1c1c1a; } .soft { fill: #62615c; font-size: 12px; }
.rule { stroke: #dddcd6; } .one { stroke: #62615c; stroke-dasharray: 3 3; }
.lead { stroke: #b9b8b1; } .f1 { fill: #2a78d6; } .s1 { stroke: #2a78d6; stroke-width: 1.5; }
</style>"""


def picture(result: Mapping[str, Any]) -> str:
    """An SVG file of a study's result."""
    rows: Sequence[Mapping[str, Any]] = [row for row in result["study"]["drafters"] if row["speedup"] is not None]
    title = f"{result['model']['name']}: what the speedup goes with"
    drawing = Drawing(WIDTH, 0, title)
    y = _written(drawing, 8, 18, lines_of(title, _TITLE), "title")
    y = _written(drawing, 8, y, lines_of(_asked(result), WIDTH - 16), "soft")
    highest = max((max(row["speedup"], *(row["speedup_interval"] or (0,))) for row in rows), default=1.0)
    told = {each["measure"]: each for each in result["study"]["correlations"]}
    for measure, name in _PANELS:
        up = Scale(nice_end(max(1.2, highest)), y + 10 + _CAPTION + _HEIGHT, y + 10 + _CAPTION)
        shown = {number: row for number, row in enumerate(rows, 1) if row[measure]}
        if not shown:
            y = _written(drawing, 8, y + 14, lines_of(f"No drafter here has a {name}.", WIDTH - 16), "soft")
            continue
        _frame(drawing, up)
        _points(drawing, up, measure, shown)
        y = _written(
            drawing, _LEFT, up.start + 38, lines_of(f"{name} ({_told(told[measure])})", _RIGHT - _LEFT), "soft"
        )
    drawing.height = _key(drawing, rows, y + 10) - LINE / 2
    return drawing.file(_STYLE, SHOWN)


def _asked(result: Mapping[str, Any]) -> str:
    """The workload and the machine."""
    work, machine = result["workload"], result["machine"]
    return (
        f"{work['prompts']} prompts of {work['file']}, at most {work['max_tokens']} tokens, {machine['cpu']}, "
        f"{machine['threads']} threads"
    )


def _written(drawing: Drawing, x: float, y: float, lines: Sequence[str], style: str) -> float:
    """Write lines, and return the y of the next."""
    for place, line in enumerate(lines):
        drawing.text(x, y + place * LINE, line, style)
    return y + len(lines) * LINE


def _told(correlation: Mapping[str, Any]) -> str:
    rho, n = correlation["spearman"], correlation["n"]
    return f"n = {n}" if rho is None else f"Spearman {rho:.2f}, n = {n}"


def _frame(drawing: Drawing, up: Scale) -> None:
    for tick in up.ticks:
        drawing.line(_LEFT, up(tick), _RIGHT, up(tick), "rule")
        drawing.text(_LEFT - 8, up(tick) + 4, f"{tick:g}×", "soft", "end")
    drawing.line(_LEFT, up(1), _RIGHT, up(1), "one")
    drawing.text(8, up.end - _CAPTION + 6, "speedup over plain decoding", "soft")


def _points(drawing: Drawing, up: Scale, measure: str, rows: Mapping[int, Mapping[str, Any]]) -> None:
    values = [row[measure] for row in rows.values()]
    across = LogScale(min(values) / _MARGIN, max(values) * _MARGIN, _LEFT, _RIGHT)
    for tick in across.ticks:
        drawing.line(across(tick), up.start, across(tick), up.start + 4, "rule")
        drawing.text(across(tick), up.start + 18, f"{tick:g}", "soft", "middle")
    places = [(across(row[measure]), up(row["speedup"])) for row in rows.values()]
    taken = [Box(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in places]
    taken.append(Box(_LEFT, up(1) - 1, _RIGHT, up(1) + 1))
    for (x, _), row in zip(places, rows.values(), strict=True):
        if ends := row["speedup_interval"]:
            drawing.line(x, up(ends[0]), x, up(ends[1]), "s1")
            taken.append(Box(x - 1, up(ends[1]) - 1, x + 1, up(ends[0]) + 1))
    for (x, y), (number, row) in zip(places, rows.items(), strict=True):
        span = f"{times(row['speedup'])} ({interval(row['speedup_interval'])})"
        drawing.dot(x, y, "f1", f"{row['name']}: {span}, {row[measure]:.3g}")
        _label(drawing, Box(_LEFT, up.end, _RIGHT, up.start), x, y, str(number), taken)


def _label(drawing: Drawing, frame: Box, x: float, y: float, name: str, taken: list[Box]) -> None:
    """Write a label near its point without covering anything; a line connects it if it is far."""
    half = LETTER * len(name) / 2 + _GAP
    boxes = [Box(x + dx - half, y + dy - 6, x + dx + half, y + dy + 6) for dx, dy in _AROUND]
    inside = [box for box in boxes if box.within(frame)] or boxes
    best = next((box for box in inside if not any(box.meets(other) for other in taken)), inside[0])
    taken.append(best)
    middle = (best.left + best.right) / 2, (best.top + best.bottom) / 2
    if (far := hypot(middle[0] - x, middle[1] - y)) > _FAR:
        share = (far - half) / far
        drawing.line(x, y, x + share * (middle[0] - x), y + share * (middle[1] - y), "lead")
    drawing.text(middle[0], best.bottom - 1, name, anchor="middle")


def _key(drawing: Drawing, rows: Sequence[Mapping[str, Any]], y: float) -> float:
    """Write the drafters by number with their speedups, and return the y of the next line."""
    for number, row in enumerate(rows, 1):
        drawing.text(24, y, str(number), "label", "end")
        drawing.text(WIDTH - 8, y, f"{times(row['speedup'])} ({interval(row['speedup_interval'])})", "soft", "end")
        y = _written(drawing, 34, y, lines_of(short(row["name"]), WIDTH - 42 - _FIGURES), "label")
    return y
