"""An answer's text in parts: content, reasoning and calls of functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from outrider.server.reasoning import ReasoningMarkers, find_markers, opened_by, read_reasoning
from outrider.server.tools.family import ToolFamily, long_id
from outrider.server.tools.feed import Feed, Steps
from outrider.server.tools.functions import Function, Mode, ToolChoice
from outrider.server.tools.grammar import GrammarWriter
from outrider.server.tools.hermes import HERMES
from outrider.server.tools.llama3 import LLAMA3
from outrider.server.tools.mistral import MISTRAL
from outrider.server.tools.parts import Part

FAMILIES: Final = (MISTRAL, HERMES, LLAMA3)
"""In the order in which they are looked for."""


def find_family(template: str, tokens: Mapping[str, int]) -> ToolFamily:
    """Find the family whose calls a chat template writes.

    Args:
        template: the chat template.
        tokens: ids of special tokens by their spellings; they decide if the template writes no calls.

    Returns:
        The family; Hermes' if nothing speaks for another one.
    """
    for family in FAMILIES:
        if any(re.search(sign, template, re.DOTALL) for sign in family.signs):
            return family
    return next((family for family in FAMILIES if family.markers[0] in tokens), HERMES)


@dataclass(frozen=True)
class AnswerFormat:
    """How a model writes reasoning and calls in one answer."""

    template: str
    special_tokens: Mapping[str, int]
    """Ids of special tokens by their spellings."""
    family: ToolFamily | None
    """The format of calls; None if no functions are offered, so that the answer has no calls."""
    functions: tuple[Function, ...] = ()
    reasoning: ReasoningMarkers | None = None
    reasoning_open: bool = False
    """Whether the prompt has opened the reasoning that the answer begins with."""

    @cached_property
    def markers(self) -> frozenset[str]:
        """Spellings that begin or end parts of the answer."""
        calls = self.family.markers if self.family else ()
        return frozenset((*calls, self.reasoning.opener, self.reasoning.closer) if self.reasoning else calls)

    @property
    def needs_special_tokens(self) -> bool:
        """Whether the answer must be decoded with its special tokens, because some of them are markers."""
        return not self.markers.isdisjoint(self.special_tokens)

    def parser(self) -> AnswerParser:
        """Make the parser of one answer."""
        return AnswerParser(self)

    def grammar(self, choice: ToolChoice, *, several: bool = True) -> str | None:
        """Write the grammar that holds an answer to a choice, as a Lark text for llguidance.

        Args:
            choice: a required or named call makes the answer calls and nothing else.  If the model decides, calls of
                strict functions follow their schemas.
            several: allow more than one call.

        Returns:
            The grammar; None if nothing constrains the answer.
        """
        if self.family is None or choice.mode is Mode.NONE:
            return None
        writer = GrammarWriter(
            self.family,
            self.family.written(self.template),
            self.special_tokens,
            self.reasoning,
            self.reasoning_open,
        )
        if choice.mode is Mode.REQUIRED:
            named = [function for function in self.functions if choice.name in (None, function.name)]
            return writer.calls(named, several=several and choice.name is None)
        if any(function.strict for function in self.functions):
            return writer.text_and_calls(self.functions, several=several)
        return None


def answer_format(
    template: str, special_tokens: Mapping[str, int], prompt: str, functions: Sequence[Function] = ()
) -> AnswerFormat:
    """Find out how a model writes an answer.

    Args:
        template: the chat template that wrote the prompt.
        special_tokens: ids of special tokens by their spellings, as ``Tokenizer.special_spellings`` has them.
        prompt: the prompt as text with special tokens, or its end.
        functions: those that the model may call; none with ``tool_choice="none"``.

    Returns:
        The format; it makes a parser and grammars.
    """
    reasoning = find_markers(template, special_tokens.keys())
    return AnswerFormat(
        template=template,
        special_tokens=special_tokens,
        family=find_family(template, special_tokens) if functions else None,
        functions=tuple(functions),
        reasoning=reasoning,
        reasoning_open=reasoning is not None and opened_by(prompt, reasoning, special_tokens.keys()),
    )


class AnswerParser:
    """Splits one answer's text, in whatever pieces it arrives.

    Joined parts are the same for every way of cutting the text.  Only what may begin a marker or a call
    is held back.  A call starts with its name, and its arguments follow as the model writes them.

    Nothing raises.  What never becomes a call with a name is content, as it was written.  A call whose arguments break
    or are cut stays a call with what was written.  Functions that were not offered are called like others, except where
    calls have no marker.
    """

    def __init__(self, form: AnswerFormat) -> None:
        """Make a parser; see :meth:`AnswerFormat.parser`."""
        hidden = form.special_tokens.keys() if form.needs_special_tokens else ()
        self._feed = Feed(form.family.new_id if form.family else long_id, hidden)
        self._steps = _read_answer(self._feed, form)
        next(self._steps, None)

    @property
    def reasoning_open(self) -> bool:
        """Whether the text that comes next is reasoning, so that its tokens count as such."""
        return self._feed.reasoning

    def push(self, text: str) -> list[Part]:
        """Add text and return the parts that it completes."""
        self._feed.add(text)
        next(self._steps, None)
        return self._feed.take_parts()

    def finish(self) -> list[Part]:
        """Return the parts that were held back, at the end of the answer."""
        self._feed.ended = True
        next(self._steps, None)
        return self._feed.take_parts()


def _read_answer(feed: Feed, form: AnswerFormat) -> Steps[None]:
    if form.reasoning is not None:
        yield from read_reasoning(feed, form.reasoning, opened=form.reasoning_open)
    if form.family is not None:
        yield from form.family.read(feed, form.functions)
    else:
        yield from feed.copy_text("", feed.say)
