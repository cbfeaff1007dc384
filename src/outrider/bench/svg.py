"""A few marks of SVG, enough for the bench page; colours are the page's CSS classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from math import ceil, floor, log, log10


@dataclass
class Drawing:
    """Marks on a canvas of fixed width and height."""

    width: float
    height: float
    label: str
    """Says to a reader who cannot see it what is drawn."""
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

    def file(self, style: str) -> str:
        """An SVG file of its own.

        Args:
            style: a ``<style>`` element for the classes that marks have.
        """
        svg = self.render().replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        return svg.replace(">", ">" + style, 1) + "\n"


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
        """1, 2 and 5 × powers of ten along the axis."""
        powers = range(floor(log10(self.least)), ceil(log10(self.most)) + 1)
        marks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
        return [mark for mark in marks if self.least <= mark <= self.most]


@dataclass(frozen=True)
class Scale:
    """Numbers to places on an axis that starts at zero."""

    most: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The place of a number."""
        return self.start + (self.end - self.start) * value / self.most

    @property
    def ticks(self) -> list[float]:
        """Round numbers along the axis, about five."""
        step = nice_step(self.most / 5)
        return [step * index for index in range(floor(self.most / step + 1e-9) + 1)]


def nice_step(rough: float) -> float:
    """The next of 1, 2, 5 × a power of ten."""
    power = 10.0 ** floor(log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))


def nice_end(most: float) -> float:
    """A round number at or past the largest value."""
    step = nice_step(max(most, 1e-9) / 5)
    return step * ceil(most / step - 1e-9)
