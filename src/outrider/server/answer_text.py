"""One chat answer as it grows: content, reasoning and calls, and the tokens that were reasoning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from outrider.completion import add_piece
from outrider.models.files.tokenizer import Tokenizer
from outrider.server.tools.answer import AnswerFormat
from outrider.server.tools.parts import Content, Part, Reasoning, ToolCallArguments, ToolCallStart, joined
from outrider.server.wire.chat import AnswerMessage, Delta, FunctionCall, FunctionDelta, ToolCall, ToolCallDelta

_ALL: Final = 1 << 30
"""More calls than an answer has."""
Pieces = list[tuple[str, bool]]
"""Text, with whether it was drafted."""


class AnswerText:
    """Reads one answer.

    Args:
        form: how the model writes reasoning and calls.
        tokenizer: the model's.
        one_call: leave out all calls but the first.
    """

    def __init__(self, form: AnswerFormat, tokenizer: Tokenizer, *, one_call: bool) -> None:
        self._parser, self._most_calls = form.parser(), 1 if one_call else _ALL
        self._counter = None if form.reasoning is None else _ReasoningCounter(form, tokenizer)
        self.calls = 0
        """Calls so far."""

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning so far."""
        return 0 if self._counter is None else self._counter.count

    def count(self, tokens: Sequence[int]) -> None:
        """Count the tokens of reasoning among new ones."""
        if self._counter is not None:
            self._counter.take(tokens)

    def parts(self, text: str, *, ended: bool) -> list[Part]:
        """What new text adds.

        Args:
            text: the new text.
            ended: whether nothing follows.
        """
        found = [*self._parser.push(text), *(self._parser.finish() if ended else ())]
        return self._counted(found)

    def pieces(self, pieces: Iterable[tuple[str, bool]], *, ended: bool) -> tuple[list[Part], Pieces]:
        """What new text adds, and that text again in pieces that tell what was drafted."""
        parts, told, last = list[Part](), Pieces(), False
        for text, last in pieces:
            self._add(self.parts(text, ended=False), last, parts, told)
        if ended:
            self._add(self.parts("", ended=True), last, parts, told)
        return joined(parts), told

    def _add(self, found: Sequence[Part], drafted: bool, parts: list[Part], told: Pieces) -> None:
        parts += found
        said = "".join(part.text for part in found if isinstance(part, (Content, Reasoning)))
        add_piece(told, said, drafted)

    def _counted(self, found: Sequence[Part]) -> list[Part]:
        """The parts without those of calls that do not count."""
        self.calls += sum(isinstance(part, ToolCallStart) for part in found)
        self.calls = min(self.calls, self._most_calls)
        return [part for part in found if isinstance(part, (Content, Reasoning)) or part.index < self._most_calls]


class _ReasoningCounter:
    """Counts tokens of reasoning: those that come while it is open."""

    def __init__(self, form: AnswerFormat, tokenizer: Tokenizer) -> None:
        self._parser = form.parser()
        self._stream = tokenizer.stream(skip_special_tokens=not form.needs_special_tokens)
        self.count = 0

    def take(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.count += self._parser.reasoning_open
            self._parser.push(self._stream.push(token))


def delta(parts: Sequence[Part]) -> Delta | None:
    """What parts add to an answer; None if they add nothing."""
    content = "".join(part.text for part in parts if isinstance(part, Content))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    calls = [_call_delta(part) for part in parts if isinstance(part, (ToolCallStart, ToolCallArguments))]
    if not (content or reasoning or calls):
        return None
    return Delta(content=content or None, reasoning_content=reasoning or None, tool_calls=calls or None)


def _call_delta(part: ToolCallStart | ToolCallArguments) -> ToolCallDelta:
    if isinstance(part, ToolCallArguments):
        return ToolCallDelta(index=part.index, function=FunctionDelta(arguments=part.text))
    begun = FunctionDelta(name=part.name, arguments="")
    return ToolCallDelta(index=part.index, id=part.id, type="function", function=begun)


def whole(parts: Sequence[Part]) -> AnswerMessage:
    """The message that an answer's parts make."""
    calls: list[ToolCall] = []
    for part in parts:
        if isinstance(part, ToolCallStart):
            calls.append(ToolCall(id=part.id, function=FunctionCall(name=part.name, arguments="")))
        elif isinstance(part, ToolCallArguments):
            said = calls[-1].function
            more = FunctionCall(name=said.name, arguments=said.arguments + part.text)
            calls[-1] = ToolCall(id=calls[-1].id, function=more)
    content = "".join(part.text for part in parts if isinstance(part, Content))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    return AnswerMessage(
        content=content if content or not calls else None,
        reasoning_content=reasoning or None,
        tool_calls=calls or None,
    )
