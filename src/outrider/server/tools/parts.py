"""The parts of an answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Text that the model wrote for itself."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A call begins; calls are numbered from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """More of a call's arguments, as the model wrote them."""

    index: int
    text: str


Part = Content | Reasoning | ToolCallStart | ToolCallArguments


def joined(parts: Iterable[Part]) -> list[Part]:
    """Join neighboring parts of one kind; parts without text are left out."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        if isinstance(part, ToolCallStart):
            result.append(part)
        elif isinstance(part, ToolCallArguments) and isinstance(last, ToolCallArguments) and last.index == part.index:
            result[-1] = ToolCallArguments(part.index, last.text + part.text)
        elif isinstance(part, Content) and isinstance(last, Content):
            result[-1] = Content(last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            result[-1] = Reasoning(last.text + part.text)
        elif part.text:
            result.append(part)
    return result
