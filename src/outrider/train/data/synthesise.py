"""Synthetic prompts: the target samples some questions, and filled templates give the others.

A target writes a user's turn after its chat template up to the start of that turn (Magpie, Xu et al. 2024).  System
messages on many subjects, code and chat, give questions on all of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from outrider.completion import Choice
from outrider.engine.call import RequestSpec
from outrider.engine.driver import Driver
from outrider.errors import ConfigError, ModelError, RequestError
from outrider.llm import LLM
from outrider.models.files.tokenizer import Tokenizer
from outrider.options import check_options, option
from outrider.requests.stopping import FinishReason
from outrider.sampling.params import SamplingParams
from outrider.train.data.decontaminate import EvaluationPrompts, evaluation_prompts, words
from outrider.train.data.prompts import TrainingPrompt
from outrider.train.data.templates import Kind, templates

_MARK: Final = "☃ user's turn ☃"
_PATIENCE: Final = 200
"""One in this many sampled turns must be a prompt."""
_NEAR: Final = 4
"""Words of the runs that identify near duplicates."""


@dataclass(frozen=True)
class SynthesisConfig:
    """Options of synthetic prompts."""

    method = "synthesise"
    code_share: float = option(0.4, "Share of prompts about code; the others are chat.", high=1.0)
    sampled_share: float = option(
        0.4, "Share of prompts that the target samples; the others are filled templates.", high=1.0
    )
    temperature: float = option(1.0, "Temperature of sampled prompts.", high=10.0)
    top_p: float = option(0.9, "Top-p of sampled prompts.", low=0.01, high=1.0)
    max_tokens: int = option(160, "Maximum tokens of a sampled prompt.", low=8)
    least_words: int = option(4, "Minimum words of a sampled prompt.", low=1)
    most_repeated: float = option(0.6, "Drop prompts that share more than this part with others.", high=1.0)
    abreast: int = option(64, "Prompts sampled at once.", low=1)
    seed: int = option(0, "Seed of the prompts.")

    def __post_init__(self) -> None:
        check_options(self)


@dataclass
class Sieve:
    """Drops repeats, near duplicates and evaluation prompts, and counts them by reason."""

    config: SynthesisConfig
    held_out: EvaluationPrompts
    dropped: Counter[str] = field(default_factory=Counter)
    """Dropped prompts, by reason."""
    _texts: set[str] = field(default_factory=set)
    _runs: set[int] = field(default_factory=set)

    def add(self, text: str) -> None:
        """Remember an earlier prompt."""
        plain, runs = _plain(text)
        self._texts.add(plain)
        self._runs |= runs

    def passes(self, text: str, *, near: bool) -> bool:
        """Whether a prompt is new; if so, remember it.

        Args:
            text: the prompt.
            near: drop near duplicates too.
        """
        plain, runs = _plain(text)
        if plain in self._texts:
            reason = "asked before"
        elif near and len(runs & self._runs) > self.config.most_repeated * len(runs):
            reason = "much like others"
        elif self.held_out.found_in(text) is not None:
            reason = "an evaluation prompt"
        else:
            self._texts.add(plain)
            self._runs |= runs
            return True
        self.dropped[reason] += 1
        return False


def _plain(text: str) -> tuple[str, set[int]]:
    """A prompt's words, and its runs of words."""
    listed = words(text)
    runs = {hash(tuple(listed[start : start + _NEAR])) for start in range(max(1, len(listed) - _NEAR + 1))}
    return " ".join(listed), runs


@dataclass(frozen=True)
class Cell:
    """A category of prompts: one kind, from templates or sampled."""

    kind: Kind
    sampled: bool

    def __str__(self) -> str:
        """Its name in files and messages."""
        return f"{self.kind}, {'sampled' if self.sampled else 'filled'}"


def shares(count: int, config: SynthesisConfig) -> dict[Cell, int]:
    """The number of prompts of each category; one more prompt adds one to a single category."""
    code = round(count * config.code_share)
    totals: dict[Kind, int] = {"chat": count - code, "code": code}
    sampled = {kind: round(total * config.sampled_share) for kind, total in totals.items()}
    filled = {Cell(kind, sampled=False): total - sampled[kind] for kind, total in totals.items()}
    return filled | {Cell(kind, sampled=True): number for kind, number in sampled.items()}


class Synthesis:
    """Makes prompts one after another, mixing all categories.

    A prompt depends on the config and on earlier prompts, so a longer list starts with the shorter one: the texts that
    a category tries are numbered, and text ``n`` depends on ``n`` and the seed alone.

    Args:
        llm: the target; it needs a chat template to sample prompts.
        config: options of the prompts.
        before: earlier prompts, in order.
        tried: the number of texts that each category tried for them, by name.
        held_out: evaluation prompts; None takes :func:`~outrider.train.data.decontaminate.evaluation_prompts`.
        tell: called with the number of sampled turns after each.
    """

    def __init__(
        self,
        llm: LLM,
        config: SynthesisConfig,
        *,
        before: Iterable[TrainingPrompt] = (),
        tried: Mapping[str, int] | None = None,
        held_out: EvaluationPrompts | None = None,
        tell: Callable[[int], None] = lambda sampled: None,
    ) -> None:
        self._llm, self._config, self._tell = llm, config, tell
        self._sieve = Sieve(config, held_out or evaluation_prompts())
        self.made = list(before)
        """Every prompt so far."""
        self.tried = Counter(tried or {})
        """Texts that each category has tried, by name."""
        for prompt in self.made:
            for text in prompt.parts:
                self._sieve.add(text)

    @property
    def dropped(self) -> Counter[str]:
        """The number of dropped texts, by reason."""
        return self._sieve.dropped

    def up_to(self, count: int) -> Generator[TrainingPrompt, None, None]:
        """Make and yield prompts until there are ``count``; each is in ``made`` already.

        Raises:
            ModelError: the target has no chat template to sample prompts with.
            ConfigError: there are not so many different prompts.
        """
        wanted = shares(count, self._config)
        with closing(_Sampler(self._llm, self._sieve, self.tried, wanted, self._tell)) as sampler:
            while (number := len(self.made)) < count:
                done, due = (shares(total, self._config) for total in (number, number + 1))
                cell = next(cell for cell in due if due[cell] > done[cell])
                self.made.append(TrainingPrompt.asked(self._next(cell, done[cell], wanted[cell], sampler)))
                yield self.made[-1]

    def _next(self, cell: Cell, done: int, wanted: int, sampler: _Sampler) -> str:
        """The next text of a category that passes the sieve."""
        name, most = str(cell), 20 * wanted + 1000
        while self.tried[name] < most:
            number = self.tried[name]
            text = sampler.text(cell.kind, number) if cell.sampled else self._filled(cell, number)
            self.tried[name] += 1
            if text is not None and self._sieve.passes(text, near=cell.sampled):
                sampler.taken(cell)
                return text
        raise ConfigError(f"only {done} of {most} {cell.kind} prompts differ, and {wanted} are needed; ask for fewer")

    def _filled(self, cell: Cell, number: int) -> str:
        return templates().question(cell.kind, random.Random(f"{self._config.seed} {cell} {number}"))


class _Sampler:
    """Samples user's turns, many at once, and returns them by number."""

    def __init__(
        self,
        llm: LLM,
        sieve: Sieve,
        tried: Mapping[str, int],
        wanted: Mapping[Cell, int],
        tell: Callable[[int], None],
    ) -> None:
        self._tell, self._written = tell, 0
        self._llm, self._sieve, self._config = llm, sieve, sieve.config
        self._left = {cell: number for cell, number in wanted.items() if cell.sampled}
        self._drawn = {cell: tried[str(cell)] for cell in self._left}
        self._taken = dict(self._drawn)
        self._ended: dict[tuple[Kind, int], Choice] = {}
        self._fit = self._seen = 0
        assert llm.tokenizer is not None
        self._name = llm.tokenizer.name
        self._turn = user_turn(llm.tokenizer) if any(self._left.values()) else None
        self._stream = Driver(llm.engine, threaded=False).completed(self._jobs(), self._config.abreast)

    def close(self) -> None:
        """Stop all turns that are still being decoded."""
        self._stream.close()

    def taken(self, cell: Cell) -> None:
        """Count a prompt of a category."""
        if cell.sampled:
            self._left[cell] -= 1

    def text(self, kind: Kind, number: int) -> str | None:
        """One turn; None if it is not a prompt.

        Raises:
            ModelError: hardly any turn is a prompt.
        """
        while (kind, number) not in self._ended:
            name, choice = next(self._stream)
            if isinstance(choice, RequestError):
                raise choice
            self._ended[name] = choice
            self._written += 1
            self._tell(self._written)
        choice, config = self._ended.pop((kind, number)), self._config
        self._taken[Cell(kind, sampled=True)] = number + 1
        reason = _unfit(choice.text.strip(), choice.finish_reason, config)
        if self._seen >= _PATIENCE and self._fit < self._seen / _PATIENCE:
            raise ModelError(
                f"only {self._fit} of {self._seen} user's turns that {self._name} sampled are prompts "
                f"({in_words(self._sieve.dropped)}); give prompts in a file, or set --prompt-sampled-share 0"
            )
        self._seen += 1
        if reason is not None:
            self._sieve.dropped[reason] += 1
            return None
        self._fit += 1
        return choice.text.strip()

    def _jobs(self) -> Iterator[tuple[tuple[Kind, int], RequestSpec]]:
        """Turns to decode: next from the category with the fewest in progress for those it still needs."""
        config, turn = self._config, self._turn
        assert turn is not None
        while True:
            cell = max(self._left, key=lambda one: self._left[one] / (1 + self._drawn[one] - self._taken[one]))
            number = self._drawn[cell]
            self._drawn[cell] += 1
            dice = random.Random(f"{config.seed} {cell} {number}")
            params = SamplingParams(
                temperature=config.temperature,
                top_p=config.top_p,
                max_tokens=config.max_tokens,
                seed=dice.getrandbits(63),
                stop=turn.stop,
                stop_token_ids=turn.stop_token_ids,
            )
            yield (cell.kind, number), (turn.opening(templates().system(cell.kind, dice)), params)


def in_words(dropped: Mapping[str, int]) -> str:
    """Counts by reason, in words."""
    return ", ".join(f"{count:,} {reason}" for reason, count in dropped.items()) or "none"


def _unfit(text: str, finish: FinishReason, config: SynthesisConfig) -> str | None:
    """Why a sampled text is not a prompt; None if it is one."""
    listed = words(text)
    if finish is not FinishReason.STOP:
        return "never ended"
    if len(listed) < config.least_words or "�" in text:
        return "too short or garbled"
    if len(set(listed)) < 0.4 * len(listed):
        return "repeats itself"
    return None


@dataclass(frozen=True)
class UserTurn:
    """How a chat template frames a user's turn."""

    tokenizer: Tokenizer
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]

    def opening(self, system: str) -> list[int]:
        """Token ids of a conversation up to the user's turn."""
        return self.tokenizer.encode(_around(self.tokenizer, system)[0], add_special_tokens=False)


def user_turn(tokenizer: Tokenizer) -> UserTurn:
    """Read a chat template.

    Raises:
        ModelError: the template writes nothing after the user's turn, or changes it.
    """
    after = _around(tokenizer, "You are a helpful assistant.")[1]
    ids = tokenizer.encode(after, add_special_tokens=False)
    if ids and ids[0] in tokenizer.special_ids:
        return UserTurn(tokenizer, (), (ids[0],))
    if not after.strip():
        raise ModelError(f"{tokenizer.name}: the chat template does not end a user's turn, so none can be sampled")
    return UserTurn(tokenizer, (after.strip().split("\n")[0],), ())


def _around(tokenizer: Tokenizer, system: str) -> tuple[str, str]:
    """The text of a chat template before and after a user's turn; without the system message if it is refused."""
    user = {"role": "user", "content": _MARK}
    try:
        text = tokenizer.apply_chat_template([{"role": "system", "content": system}, user])
    except RequestError:
        text = tokenizer.apply_chat_template([user])
    before, mark, after = text.partition(_MARK)
    if not mark:
        raise ModelError(f"{tokenizer.name}: the chat template changes a user's turn, so none can be sampled")
    return before, after
