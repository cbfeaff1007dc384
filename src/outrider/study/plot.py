"""The picture of a study: speedup against quality, and speedup against draft latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from outrider.bench.svg import Drawing, LogScale, Scale, nice_end
from outrider.bench.table import interval, times

_WIDTH: Final = 940
_TOP: Final = 48
_BOTTOM: Final = 345
_PANELS: Final = (
    ("perplexity", "perplexity of the target's answers under the drafter", 50, 440),
    ("draft_ms_per_round", "draft latency, ms per round", 520, 910),
)
"""Of each panel: what goes along it, what that is called, its left and its right end."""
_MARGIN: Final = 1.3
"""Room beside the outermost points, as a factor."""
_LETTER: Final = 8
"""Width of a digit of a label, about."""
_LINE: Final = 17
"""Of the key below the panels."""
_STYLE: Final = """<style>
svg { font: 12px system-ui, sans-serif; background: #fcfcfb; }
.label { fill: #1c1c1a; } .soft { fill: #62615c; font-size: 11px; } .rule { stroke: #dddcd6; }
.one { stroke: #62615c; stroke-dasharray: 3 3; } .f1 { fill: #2a78d6; } .s1 { stroke: #2a78d6; stroke-width: 1.5; }
</style>"""


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        """Whether two boxes overlap."""
        return not (
            self.right < other.left or other.right < self.left or self.bottom < other.top or other.bottom < self.top
        )


def picture(result: Mapping[str, Any]) -> str:
    """An SVG file of a study's result."""
    rows: Sequence[Mapping[str, Any]] = [row for row in result["study"]["drafters"] if row["speedup"] is not None]
    title = f"{result['model']['name']}: what the speedup goes with"
    drawing = Drawing(_WIDTH, _BOTTOM + 65 + _LINE * len(rows), title)
    drawing.text(_PANELS[0][2], 16, title)
    highest = max((max(row["speedup"], *(row["speedup_interval"] or (0,))) for row in rows), default=1.0)
    up = Scale(nice_end(max(1.2, highest)), _BOTTOM, _TOP)
    told = {each["measure"]: each for each in result["study"]["correlations"]}
    for measure, name, left, right in _PANELS:
        shown = {number: row for number, row in enumerate(rows, 1) if row[measure]}
        _frame(drawing, up, left, right, f"{name} ({_told(told[measure])})")
        if shown:
            _points(drawing, up, _across([row[measure] for row in shown.values()], left, right), measure, shown)
        else:
            drawing.text((left + right) / 2, (_TOP + _BOTTOM) / 2, "no drafter has this figure", "soft", "middle")
    for number, row in enumerate(rows, 1):
        span = f"{times(row['speedup'])} ({interval(row['speedup_interval'])})"
        drawing.text(_PANELS[0][2], _BOTTOM + 55 + _LINE * number, f"{number}  {row['name']}: {span}")
    return drawing.file(_STYLE)


def _told(correlation: Mapping[str, Any]) -> str:
    rho, n = correlation["spearman"], correlation["n"]
    return f"n = {n}" if rho is None else f"Spearman {rho:.2f}, n = {n}"


def _frame(drawing: Drawing, up: Scale, left: float, right: float, name: str) -> None:
    for tick in up.ticks:
        drawing.line(left, up(tick), right, up(tick), "rule")
        drawing.text(left - 8, up(tick) + 4, f"{tick:g}×", "soft", "end")
    drawing.line(left, up(1), right, up(1), "one")
    drawing.text((left + right) / 2, _BOTTOM + 40, name, "soft", "middle")
    drawing.text(left, _TOP - 12, "speedup over plain decoding", "soft")


def _across(values: Sequence[float], left: float, right: float) -> LogScale:
    return LogScale(min(values) / _MARGIN, max(values) * _MARGIN, left, right)


def _points(drawing: Drawing, up: Scale, across: LogScale, measure: str, rows: Mapping[int, Mapping[str, Any]]) -> None:
    for tick in across.ticks:
        drawing.line(across(tick), _BOTTOM, across(tick), _BOTTOM + 4, "rule")
        drawing.text(across(tick), _BOTTOM + 17, f"{tick:g}", "soft", "middle")
    places = [(across(row[measure]), up(row["speedup"])) for row in rows.values()]
    taken = [_Box(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    for (number, row), (x, y) in zip(rows.items(), places, strict=True):
        if ends := row["speedup_interval"]:
            drawing.line(x, up(ends[0]), x, up(ends[1]), "s1")
        tip = f"{row['name']}: {times(row['speedup'])} ({interval(ends)}), {row[measure]:.3g}"
        drawing.dot(x, y, "f1", tip)
        _label(drawing, across, x, y, str(number), taken)


def _label(drawing: Drawing, across: LogScale, x: float, y: float, name: str, taken: list[_Box]) -> None:
    """Write a name beside its point, where it covers no other name or point and stays in the panel."""
    width = _LETTER * len(name)
    corners = [(side, dy) for dy in (0, -14, 14, -28, 28, -42, 42) for side in (x + 9, x - 9 - width, x - width / 2)]
    boxes = [_Box(left, y + dy - 6, left + width, y + dy + 6) for left, dy in corners]
    inside = [box for box in boxes if box.left >= across.start - 4 and box.right <= across.end + 24]
    free = [box for box in inside if not any(box.meets(other) for other in taken)]
    best = (free or inside or boxes)[0]
    taken.append(best)
    drawing.text(best.left, best.bottom - 2, name)
