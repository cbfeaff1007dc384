"""Grammars that make an answer call functions, in the Lark dialect of llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from outrider.models.files.spellings import one_of
from outrider.server.reasoning import ReasoningMarkers
from outrider.server.tools.family import ToolFamily, Written
from outrider.server.tools.functions import Function

_TEXT: Final = r"TEXT: /(.|\n)*/"
_NEWLINES: Final = r"NEWLINES: /\n{0,2}/"
_NO_ARGUMENTS: Final[dict[str, Any]] = {"properties": {}, "additionalProperties": False}
_AS_TEMPLATES_WRITE: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as chat templates write it, which models have seen most."""


@dataclass(frozen=True)
class GrammarWriter:
    """Writes grammars for one model.

    Markers that are special tokens stand as their ids, all other text in quotes.
    """

    family: ToolFamily
    written: Written
    special_tokens: Mapping[str, int]
    """Ids of special tokens by their spellings."""
    reasoning: ReasoningMarkers | None = None
    reasoning_open: bool = False
    """Whether the answer begins inside reasoning."""

    def calls(self, functions: Sequence[Function], *, several: bool) -> str:
        """Write the grammar of an answer that is calls and nothing else, after reasoning.

        Args:
            functions: at least one.
            several: allow more than one call.
        """
        return self._grammar(self._calls(self.written, functions, several=several))

    def text_and_calls(self, functions: Sequence[Function], *, several: bool) -> str:
        """Write the grammar of an answer of any text, in which every call follows its function's schema.

        Args:
            functions: at least one.
            several: allow more than one call.
        """
        if not self.family.opener:  # only what begins with a brace is a call
            calls, *rules = self._calls(self.written, functions, several=several)
            return self._grammar(["answer: prose | calls", r"prose: /([^{](.|\n)*)?/", calls, *rules])
        opener = self.family.opener
        within = bool(self.written.before)  # one opener for all calls, or one for each
        written = replace(
            self.written,
            before=self.written.before.removeprefix(opener),
            name=self.written.name if within else self.written.name.removeprefix(opener),
        )
        rules = self._calls(written, functions, several=several and within)
        return self._grammar(
            [f"answer: (head calls){'*' if several and not within else '?'} TEXT", *self._head(), *rules]
        )

    def _head(self) -> list[str]:
        """Text up to the opener."""
        opener = self.family.opener
        if opener in self.special_tokens:
            return [f"head: TEXT {self._symbols(opener)}"]
        if self.reasoning is None or self.reasoning_open or self.reasoning.opener in self.special_tokens:
            return [f"head[lazy]: TEXT {json.dumps(opener)}"]
        # Reasoning may mention the opener, so a text that begins as reasoning does is no head.
        thinks = f"THINKS: {json.dumps(self.reasoning.opener)} TEXT"
        return [f"head[lazy]: FREE {json.dumps(opener)}", "FREE: TEXT & ~THINKS", thinks]

    def _calls(self, written: Written, functions: Sequence[Function], *, several: bool) -> list[str]:
        further = f"({self._symbols(written.between)} call)*" if several else ""
        sequence = (self._symbols(written.before), "call", further, self._symbols(written.after))
        return [
            f"calls: {' '.join(filter(None, sequence))}",
            f"call: {' | '.join(f'call_{place}' for place in range(len(functions)))}",
            *(f"call_{place}: {self._call(written, function)}" for place, function in enumerate(functions)),
        ]

    def _call(self, written: Written, function: Function) -> str:
        before = self._symbols(f"{written.name}{function.name}{written.arguments}")
        schema = json.dumps(_schema(function), ensure_ascii=False)
        return " ".join(filter(None, (before, f"%json {schema}", self._symbols(written.end))))

    def _symbols(self, text: str) -> str:
        """A text as symbols of a rule."""
        special = [marker for marker in self.family.markers if marker in self.special_tokens]
        pieces = re.split(f"({one_of(special)})", text) if special else [text]
        return " ".join(
            f"<[{self.special_tokens[piece]}]>" if piece in special else json.dumps(piece) for piece in pieces if piece
        )

    def _grammar(self, rules: Sequence[str]) -> str:
        """All rules, after those of reasoning."""
        start = f"start: {self._thought} {rules[0].split(':')[0]}"
        return "\n".join(["%llguidance {}", start, *self._thoughts(), *rules, _TEXT, ""])

    @property
    def _thought(self) -> str:
        if self.reasoning is None:
            return ""
        return "thought" if self.reasoning_open else "thought?"

    def _thoughts(self) -> list[str]:
        if self.reasoning is None:
            return []
        opener, closer = (self._marker(text) for text in (self.reasoning.opener, self.reasoning.closer))
        before = "" if self.reasoning_open else f"{opener} "
        if self.reasoning.closer in self.special_tokens:
            return [f"thought: {before}TEXT {closer} NEWLINES", _NEWLINES]
        return ["thought: thinking NEWLINES", f"thinking[lazy]: {before}TEXT {closer}", _NEWLINES]

    def _marker(self, text: str) -> str:
        return f"<[{self.special_tokens[text]}]>" if text in self.special_tokens else json.dumps(text)


def _schema(function: Function) -> dict[str, Any]:
    """The schema of a function's arguments; only a strict function needs all of it."""
    told = dict(function.parameters) or _NO_ARGUMENTS
    return {"type": "object", **told, "x-guidance": {**_AS_TEMPLATES_WRITE, "lenient": not function.strict}}
