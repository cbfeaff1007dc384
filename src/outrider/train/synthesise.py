"""Prompts from nothing: the target thinks of questions, and forms filled with words ask the rest.

A target writes a user's turn when its chat template is given up to where that turn begins (Magpie, Xu et al. 2024).
System messages on many subjects make it ask about all of them, code as well as chat.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from outrider.drafters.base import check_options, option
from outrider.errors import ConfigError, ModelError, RequestError
from outrider.sampling.params import SamplingParams
from outrider.stopping import FinishReason
from outrider.train.abreast import Job, complete
from outrider.train.bars import bar
from outrider.train.overlap import HeldOut, evaluation_prompts, words
from outrider.train.prompts import Prompt
from outrider.train.tasks import Kind, Tasks, tasks

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.target.tokenizer import Tokenizer

_MARK: Final = "☃ user's turn ☃"
_PATIENCE: Final = 200
"""So many sampled turns have to hold one prompt at least."""
_NEAR: Final = 4
"""Words of the runs by which near duplicates are told."""


@dataclass(frozen=True)
class SynthesisConfig:
    """Which prompts are made."""

    method = "synthesise"
    code_share: float = option(0.4, "Share of prompts about code; the others are chat.", high=1.0)
    sampled_share: float = option(
        0.4, "Share of prompts that the target samples; the others are filled forms.", high=1.0
    )
    temperature: float = option(1.0, "Temperature of sampled prompts.", high=10.0)
    top_p: float = option(0.9, "Nucleus of sampled prompts.", low=0.01, high=1.0)
    max_tokens: int = option(160, "Longest sampled prompt, in tokens.", low=8)
    least_words: int = option(4, "Shortest sampled prompt, in words.", low=1)
    most_repeated: float = option(0.6, "Greatest share of a prompt's runs of words that others hold.", high=1.0)
    abreast: int = option(64, "Prompts sampled side by side.", low=1)
    seed: int = option(0, "Of everything that is drawn.")

    def __post_init__(self) -> None:
        """Refuse values out of bounds."""
        check_options(self)


@dataclass
class Sieve:
    """Lets each prompt through once, and none that is an evaluation prompt; counts what it holds back, and why."""

    config: SynthesisConfig
    held_out: HeldOut
    dropped: Counter[str] = field(default_factory=Counter)
    """Prompts held back, by reason."""
    _texts: set[str] = field(default_factory=set)
    _runs: set[int] = field(default_factory=set)

    def passes(self, text: str, *, near: bool) -> bool:
        """Whether a prompt is taken; if it is, the next one like it is not.

        Args:
            text: the prompt.
            near: hold it back also where most of it stands in other prompts.
        """
        listed = words(text)
        runs = {hash(tuple(listed[start : start + _NEAR])) for start in range(max(1, len(listed) - _NEAR + 1))}
        plain = " ".join(listed)
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


def synthesise(
    llm: LLM,
    count: int,
    config: SynthesisConfig | None = None,
    *,
    held_out: HeldOut | None = None,
    progress: bool = False,
) -> tuple[list[Prompt], Counter[str]]:
    """Make prompts.

    Args:
        llm: the target, with a chat template where prompts are to be sampled.
        count: how many prompts.
        config: which; None takes the defaults.
        held_out: evaluation prompts; None takes those that come with Outrider.
        progress: show a progress bar.

    Returns:
        The prompts in an order that mixes all kinds, and how many were dropped, by reason.

    Raises:
        ModelError: the target has no chat template that prompts could be sampled from.
        ConfigError: there are not so many different prompts.
    """
    chosen = config or SynthesisConfig()
    dice = random.Random(chosen.seed)
    sieve = Sieve(chosen, held_out or evaluation_prompts())
    wanted = _shares(count, chosen)
    found: list[str] = []
    with bar("prompts", count, shown=progress) as tick:
        for kind, (filled, sampled) in wanted.items():
            found += _taken(_fillings(tasks(), kind, dice), filled, sieve, kind, near=False)
            with closing(_samples(llm, kind, dice, sieve)) as source:
                for text in _taken(source, sampled, sieve, kind, near=True):
                    found.append(text)
                    tick(len(found), f"{sieve.dropped.total()} dropped")
    dice.shuffle(found)
    return [Prompt.asked(text) for text in found], sieve.dropped


def _shares(count: int, config: SynthesisConfig) -> dict[Kind, tuple[int, int]]:
    """Prompts of each kind: from forms, and sampled."""
    code = round(count * config.code_share)
    totals: dict[Kind, int] = {"chat": count - code, "code": code}
    sampled = {kind: round(total * config.sampled_share) for kind, total in totals.items()}
    return {kind: (total - sampled[kind], sampled[kind]) for kind, total in totals.items()}


def _taken(texts: Iterator[str], count: int, sieve: Sieve, kind: Kind, *, near: bool) -> Iterator[str]:
    """The first ``count`` texts that pass the sieve."""
    tried = done = 0
    most = 20 * count + 1000
    while done < count:
        tried += 1
        if tried > most:
            raise ConfigError(
                f"of {most} {kind} prompts only {done} differed, and {count} were asked for; ask for fewer"
            )
        text = next(texts)
        if sieve.passes(text, near=near):
            done += 1
            yield text


def _fillings(source: Tasks, kind: Kind, dice: random.Random) -> Iterator[str]:
    while True:
        yield source.question(kind, dice)


def _samples(llm: LLM, kind: Kind, dice: random.Random, sieve: Sieve) -> Generator[str, None, None]:
    """User's turns as the target writes them, those that are no prompts left out."""
    config = sieve.config
    assert llm.tokenizer is not None
    turn = user_turn(llm.tokenizer)

    def jobs() -> Iterator[tuple[None, Job]]:
        while True:
            params = SamplingParams(
                temperature=config.temperature,
                top_p=config.top_p,
                max_tokens=config.max_tokens,
                seed=dice.getrandbits(63),
                stop=turn.stop,
                stop_token_ids=turn.stop_token_ids,
            )
            yield None, Job(turn.opening(tasks().system(kind, dice)), params)

    fit = 0
    for tried, (_, choice) in enumerate(complete(llm, jobs(), config.abreast)):
        if isinstance(choice, RequestError):
            raise choice
        if tried >= _PATIENCE and fit < tried / _PATIENCE:
            raise ModelError(
                f"of {tried} user's turns that {llm.tokenizer.name} sampled only {fit} are prompts "
                f"({dict(sieve.dropped)}); give prompts in a file, or set sampled_share to 0"
            )
        reason = _unfit(choice.text.strip(), choice.finish_reason, config)
        if reason is None:
            fit += 1
            yield choice.text.strip()
        else:
            sieve.dropped[reason] += 1


def _unfit(text: str, finish: FinishReason, config: SynthesisConfig) -> str | None:
    """Why a sampled text is no prompt, or None."""
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
    """How a chat template frames what the user says."""

    tokenizer: Tokenizer
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]

    def opening(self, system: str) -> list[int]:
        """Token ids of a conversation up to where the user begins."""
        return self.tokenizer.encode(_around(self.tokenizer, system)[0], add_special_tokens=False)


def user_turn(tokenizer: Tokenizer) -> UserTurn:
    """Read a chat template.

    Raises:
        ModelError: the template says nothing after the user's turn, or changes what the user says.
    """
    after = _around(tokenizer, "You are a helpful assistant.")[1]
    ids = tokenizer.encode(after, add_special_tokens=False)
    if ids and ids[0] in tokenizer.special_ids:
        return UserTurn(tokenizer, (), (ids[0],))
    if not after.strip():
        raise ModelError(f"{tokenizer.name}: its chat template does not end a user's turn, so none can be sampled")
    return UserTurn(tokenizer, (after.strip().split("\n")[0],), ())


def _around(tokenizer: Tokenizer, system: str) -> tuple[str, str]:
    """What a chat template writes before and after a user's turn; a system message it refuses is left out."""
    user = {"role": "user", "content": _MARK}
    try:
        text = tokenizer.apply_chat_template([{"role": "system", "content": system}, user])
    except RequestError:
        text = tokenizer.apply_chat_template([user])
    before, mark, after = text.partition(_MARK)
    if not mark:
        raise ModelError(f"{tokenizer.name}: its chat template changes what the user says, so no turn can be sampled")
    return before, after
