"""SVG marks for the project's plots; their colours are CSS classes.

Plots have the width of a telephone's screen, :data:`WIDTH`: they stay readable when scaled up, not when scaled down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from math import ceil, floor, log, log10
from textwrap import wrap
from typing import Final, NamedTuple

WIDTH: Final = 440
"""Width of every plot."""
SHOWN: Final = 560
"""Width in pixels of a plot in its own file, if there is room."""
LETTER: Final = 6.6
"""Approximate width of a letter of a label."""
LINE: Final = 17
"""Height of a line of text."""
TICKS: Final = 5
"""Approximate number of ticks on an axis."""
_MOST_TICKS: Final = 9
"""Most ticks on a logarithmic axis."""
_FACTORS: Final = (
    (1.0,),
    (1.0, 2.0, 5.0),
    (1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
    tuple(part / 2 for part in range(2, 20)),
    tuple(part / 10 for part in range(10, 100)),
)
"""Factors of powers of ten for ticks, coarse to fine."""


class Box(NamedTuple):
    """A rectangle."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether two boxes overlap."""
        return not (
            self.right < other.left or other.right < self.left or self.bottom < other.top or other.bottom < self.top
        )

    def within(self, other: Box) -> bool:
        """Whether another box contains it."""
        return (
            self.left >= other.left
            and self.right <= other.right
            and self.top >= other.top
            and self.bottom <= other.bottom
        )


@dataclass
class Drawing:
    """Marks on a canvas of fixed width and height."""

    width: float
    height: float
    label: str
    """Describes the plot for screen readers."""
    marks: list[str] = field(default_factory=list)

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        """A straight line."""
        self.marks.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>')

    def dot(self, x: float, y: float, style: str, tip: str, radius: float = 4.5) -> None:
        """A filled circle with a tip."""
        self.marks.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{style}"><title>{escape(tip)}</title></circle>'
        )

    def bar(self, x: float, y: float, width: float, height: float, style: str, tip: str) -> None:
        """A filled rectangle with a tip."""
        box = f'x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height:.1f}"'
        self.marks.append(f'<rect {box} class="{style}"><title>{escape(tip)}</title></rect>')

    def path(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """A line through points."""
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.marks.append(f'<polyline points="{joined}" class="{style}"/>')

    def text(self, x: float, y: float, words: str, style: str = "label", anchor: str = "start") -> None:
        """Words."""
        self.marks.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def render(self) -> str:
        """The SVG element."""
        head = f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(self.label)}">'
        return head + "".join(self.marks) + "</svg>"

    def file(self, style: str, shown: float | None = None) -> str:
        """An SVG file of its own.

        Args:
            style: a ``<style>`` element for the classes of the marks.
            shown: its width in pixels, if there is room; None fills the available width.
        """
        size = f'width="{shown:g}" height="{shown * self.height / self.width:.0f}" ' if shown else ""
        svg = self.render().replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" {size}', 1)
        return svg.replace(">", ">" + style, 1) + "\n"


def lines_of(words: str, width: float) -> list[str]:
    """A text, wrapped to a width."""
    return wrap(words, max(1, int(width / LETTER)), break_long_words=True)


@dataclass(frozen=True)
class LogScale:
    """Numbers to places on an axis of powers of ten."""

    least: float
    most: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The place of a number."""
        share = log(max(value, self.least) / self.least) / log(self.most / self.least)
        return self.start + (self.end - self.start) * share

    @property
    def ticks(self) -> list[float]:
        """Round numbers along the axis, as many as fit."""
        powers = range(floor(log10(self.least)), ceil(log10(self.most)) + 1)
        found = []
        for factors in _FACTORS:
            marks = (factor * 10.0**power for power in powers for factor in factors)
            found.append([mark for mark in marks if self.least <= mark <= self.most])
        fitting = [marks for marks in found if 0 < len(marks) <= _MOST_TICKS]
        coarse = found[0] or [self.least]
        return max(fitting, key=len) if fitting else coarse[:: -(-len(coarse) // _MOST_TICKS)]


@dataclass(frozen=True)
class Scale:
    """Numbers to places on an axis that starts at ``least``."""

    most: float
    start: float
    end: float
    least: float = 0.0

    def __call__(self, value: float) -> float:
        """The place of a number."""
        return self.start + (self.end - self.start) * (value - self.least) / (self.most - self.least)

    @property
    def ticks(self) -> list[float]:
        """Round numbers along the axis, about five."""
        step = nice_step((self.most - self.least) / TICKS)
        return [self.least + step * index for index in range(floor((self.most - self.least) / step + 1e-9) + 1)]


def nice_step(rough: float) -> float:
    """The next of 1, 2, 5 × a power of ten."""
    power = 10.0 ** floor(log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))


def nice_end(most: float) -> float:
    """A round number at or above the largest value."""
    step = nice_step(max(most, 1e-9) / TICKS)
    return step * ceil(most / step - 1e-9)
