"""Where one request stands in its grammar: which tokens may follow its output and the drafts after it.

The answers depend on nothing but the output and the path.  The matcher is moved there by taking back and adding tokens,
which costs microseconds, so nothing has to be told of commits, preemptions or broken rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import torch

from outrider.errors import RequestError, one_line
from outrider.grammar.compiler import CompiledGrammar, told

_MOST_REBUILDS: Final = 3
"""Matchers that one request may have compiled again on the engine's thread."""
_Answer = TypeVar("_Answer")
Path = Sequence[int]
"""Draft tokens after the last committed token; empty for the anchor."""


class GrammarEnded(RequestError):  # noqa: N818 - the output is as it should be
    """The output is whole, and no token may follow it, not even one that ends it."""


class Allowed(NamedTuple):
    """The tokens that a grammar allows at one place."""

    banned: torch.Tensor | None = None
    """Bool [vocabulary]: the others; None bans nothing."""
    complete: bool = False
    """Whether the output is whole: only end tokens may follow."""


FREE: Final = Allowed()
"""Where there is no grammar."""


class GrammarState:
    """A request's place in its grammar.

    Args:
        grammar: compiled for the request's tokenizer.
        committed: the request's token ids, prompt first; a live view.
        prompt_length: number of prompt tokens, which are no part of the output.
        vocabulary: ids at or past this are never allowed.
        end_ids: ids that end the output, allowed where the grammar may end.
    """

    def __init__(
        self,
        grammar: CompiledGrammar,
        committed: Sequence[int],
        prompt_length: int,
        vocabulary: int,
        end_ids: Iterable[int],
    ) -> None:
        self._grammar, self._committed, self._start = grammar, committed, prompt_length
        self._vocabulary, self._known_ids = vocabulary, min(vocabulary, grammar.owner.size)
        self._ends = frozenset(end_ids)
        self._end_ids = torch.tensor(sorted(self._ends), dtype=torch.int64)
        self._matcher: Any = None
        self._owned = False
        """Whether the matcher shares its lexer with no other request."""
        self._done = 0
        """Output tokens that it has consumed for good."""
        self._ahead: list[int] = []
        """Tokens that it has consumed after them, and may take back."""
        self._rebuilds = 0
        self._answers: dict[tuple[int, ...], Allowed] = {}
        """Answers after the current output, by path: drafts and their verification ask the same."""
        self._answered_at = -1

    def allowed(self, path: Path) -> Allowed:
        """The tokens that may follow a path.

        Raises:
            RequestError: the path is not of the grammar, nothing may follow it, or it is too complex.
        """
        if self._answered_at != len(self._committed):
            self._answers.clear()
            self._answered_at = len(self._committed)
        key = tuple(path)
        if key not in self._answers:
            self._answers[key] = self._allowed(path)
        return self._answers[key]

    def _allowed(self, path: Path) -> Allowed:
        self._grammar.answers += 1
        bits, accepting = self._ask(path, lambda matcher: (matcher.compute_bitmask(), matcher.is_accepting()))
        text = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=self._known_ids, bitorder="little")
        goes_on = bool(text.any())
        if not (goes_on or accepting):
            raise RequestError("the grammar has come to a place where no token of this model fits; change the grammar")
        banned = torch.ones(self._vocabulary, dtype=torch.bool)
        banned[: self._known_ids] = torch.from_numpy(text == 0)
        if accepting:
            banned[self._end_ids] = False
        return Allowed(banned, accepting and not goes_on)

    def allows(self, path: Path, token: int) -> bool:
        """Whether a token may follow a path.

        Raises:
            RequestError: as for :meth:`allowed`.
        """
        if token in self._ends and self._ask(path, lambda matcher: matcher.is_accepting()):
            return True
        return token < self._known_ids and bool(self._ask(path, lambda matcher: matcher.validate_tokens([token])))

    def forced(self, path: Path, most: int) -> list[int]:
        """The tokens that must follow a path, as the tokenizer splits them; ``most`` at most, and none if it is free.

        Raises:
            RequestError: as for :meth:`allowed`.
        """

        def found(matcher: Any) -> list[int]:
            tokens = [token for token in matcher.compute_ff_tokens()[:most] if token < self._known_ids]
            return tokens[: matcher.validate_tokens(tokens)]

        return self._ask(path, found)

    def _ask(self, path: Path, question: Callable[[Any], _Answer]) -> _Answer:
        """Ask the matcher at a path; one that has met a limit is replaced, because drafts may have led it there."""
        problem = ""
        for make in (self._present, self._copied, self._rebuilt):
            try:
                self._matcher = make()
                if self._matcher is None:
                    continue
                if self._move(path):
                    answer = question(self._matcher)
                    problem = told(self._matcher.get_error()) if self._matcher.is_error() else ""
                elif self._owned or not (self._grammar.broken or self._matcher.is_error()):
                    raise RequestError(f"the text does not follow the grammar: {self._reason(path)}")
                else:
                    problem = told(self._matcher.get_error()) or "its lexer met a limit"
            except (KeyboardInterrupt, SystemExit, RequestError):
                raise
            except BaseException as error:  # noqa: BLE001 - a panic of the library is no Exception
                problem = one_line(error)
            if not problem:
                return answer
            self._grammar.broken |= not self._owned
            self._drop()
        raise RequestError(
            f"the grammar is too complex to continue here, so simplify it: {problem or 'it met a limit before'}"
        )

    def _reason(self, path: Path) -> str:
        """Why the matcher does not take the next token of a path."""
        wanted, probe = [*self._committed[self._start + self._done :], *path], self._matcher.deep_copy()
        probe.consume_token(wanted[len(self._ahead)])
        return told(probe.get_error())

    def _present(self) -> Any:
        return self._matcher

    def _copied(self) -> Any:
        self._drop()
        return self._grammar.matcher()

    def _rebuilt(self) -> Any:
        self._drop()
        if self._grammar.slow or self._rebuilds == _MOST_REBUILDS:
            return None
        self._rebuilds, self._owned = self._rebuilds + 1, True
        return self._grammar.rebuilt()

    def _drop(self) -> None:
        self._matcher, self._owned, self._done, self._ahead = None, False, 0, []

    def _move(self, path: Path) -> bool:
        """Bring the matcher to the end of a path; False if it does not take the path."""
        fresh = self._committed[self._start + self._done :]
        wanted, ahead = [*fresh, *path], self._ahead
        common = 0
        while common < min(len(wanted), len(ahead)) and wanted[common] == ahead[common]:
            common += 1
        if common < len(ahead):
            self._matcher.rollback(len(ahead) - common)
            del ahead[common:]
        ahead += wanted[common : common + self._matcher.try_consume_tokens(wanted[common:])]
        if len(ahead) < len(wanted):
            return False
        self._done += len(fresh)
        del ahead[: len(fresh)]
        return True
