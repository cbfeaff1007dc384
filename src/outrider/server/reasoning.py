"""Reasoning before the answer: which markers a model has, and what lies between them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from outrider.server.tools.feed import NEWLINES, SPACE, Feed, Steps


@dataclass(frozen=True)
class ReasoningMarkers:
    """The markers around reasoning."""

    opener: str
    closer: str


KNOWN: Final = (ReasoningMarkers("<think>", "</think>"), ReasoningMarkers("[THINK]", "[/THINK]"))


def find_markers(template: str, tokens: Collection[str]) -> ReasoningMarkers | None:
    """Find the markers of a model; None if it does not reason.

    Args:
        template: the chat template.
        tokens: spellings of the tokenizer's special tokens.
    """
    return next((each for each in KNOWN if each.closer in template or each.closer in tokens), None)


def opened_by(prompt: str, markers: ReasoningMarkers, tokens: Collection[str]) -> bool:
    """Whether a prompt ends inside reasoning, so that the answer begins there.

    Args:
        prompt: the prompt as the template wrote it, or its end; special tokens included.
        markers: those of the model.
        tokens: spellings of special tokens; one after the opener means that a message in between ended.
    """
    _, opener, rest = prompt.rpartition(markers.opener)
    return bool(opener) and not any(token in rest for token in (markers.closer, *tokens))


def read_reasoning(feed: Feed, markers: ReasoningMarkers, *, opened: bool) -> Steps[None]:
    """Read reasoning at the beginning of an answer; without any, nothing is read.

    Space after the opener and newlines around the closer belong to the markers.  A marker later in the answer is text.
    """
    feed.reasoning = opened
    feed.hold()
    yield from feed.take_all(SPACE)
    if not (yield from feed.take_if(markers.opener)) and not opened:
        feed.rewind()
        return
    feed.release()
    feed.reasoning = True
    yield from feed.take_all(SPACE)
    yield from feed.copy_text(markers.closer, feed.think)
    feed.release()
    feed.reasoning = False
    yield from feed.take_all(NEWLINES)
