"""The target's own answers, in a file that grows line by line and is continued after an interruption."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from outrider.completion import Choice
from outrider.engine.call import RequestSpec
from outrider.engine.driver import Driver
from outrider.engine.stopping import FinishReason
from outrider.errors import ConfigError, cause
from outrider.options import check_options, option
from outrider.sampling.params import SamplingParams
from outrider.train.bars import bar
from outrider.train.data.example import Example
from outrider.train.data.prompts import TrainingPrompt

if TYPE_CHECKING:
    from rich.console import Console

    from outrider.llm import LLM

_NO_ROOM: Final = (
    "the answers in {path} cannot be written ({error}); free some space there and run the same command again: every "
    "answer in it is kept"
)


@dataclass(frozen=True)
class AnswerConfig:
    """How the target answers.

    Greedy answers are what a drafter meets when it is measured; sampled ones show it where else a text may go.
    """

    method = "regenerate"
    max_tokens: int = option(256, "Longest answer, in tokens.", low=1)
    greedy_share: float = option(0.6, "Share of prompts answered greedily.", high=1.0)
    temperature: float = option(0.7, "Temperature of the other answers.", high=10.0)
    top_p: float = option(1.0, "Nucleus of the other answers.", low=0.01, high=1.0)
    longest_prompt: int = option(512, "Prompts of more tokens are left out.", low=1)
    abreast: int = option(64, "Answers decoded side by side.", low=1)
    seed: int = option(0, "Of everything that is drawn.")

    def __post_init__(self) -> None:
        check_options(self)

    def params(self, prompt: TrainingPrompt) -> SamplingParams:
        """How one prompt is answered: a function of the prompt and the seed alone."""
        dice = random.Random(f"{self.seed} {prompt.key}")
        greedy = dice.random() < self.greedy_share
        return SamplingParams(
            temperature=0.0 if greedy else self.temperature,
            top_p=1.0 if greedy else self.top_p,
            max_tokens=self.max_tokens,
            seed=dice.getrandbits(63),
        )


@dataclass
class AnswerReport:
    """Counts of a run of answers."""

    answers: int = 0
    tokens: int = 0
    """Answer tokens, the end of sequence among them."""
    prompt_tokens: int = 0
    ended: int = 0
    """Answers that ended by themselves."""
    left_out: int = 0
    """Prompts too long to be answered."""
    seconds: float = 0.0

    @property
    def speed(self) -> float:
        """Answer tokens per second."""
        return self.tokens / max(self.seconds, 1e-9)

    def add(self, example: Example | None, *, ended: bool) -> None:
        """Count an answer, or None for a prompt that was left out."""
        if example is None:
            self.left_out += 1
            return
        self.answers += 1
        self.tokens += len(example.tokens) - example.answer_start
        self.prompt_tokens += example.answer_start
        self.ended += ended

    def __str__(self) -> str:
        each = max(1, self.answers)
        too_long = f"; {self.left_out:,} prompts were too long" if self.left_out else ""
        if not self.answers:
            return f"answers: 0 to make{too_long}"
        return (
            f"answers: {self.answers:,} made · {self.tokens:,} tokens at {self.speed:,.0f}/s · "
            f"{self.tokens / each:.0f} tokens each · {100 * self.ended / each:.0f} % ended by themselves{too_long}"
        )


def answers(
    llm: LLM, prompts: Iterable[TrainingPrompt], config: AnswerConfig
) -> Generator[tuple[TrainingPrompt, Example | None, bool], None, None]:
    """Answer prompts.

    Args:
        llm: the target.
        prompts: drawn as there is room.
        config: how.

    Yields:
        Each prompt with its answer, in the order they end, and whether the answer ended by itself; with None where the
        prompt is too long.
    """
    assert llm.tokenizer is not None
    tokenizer = llm.tokenizer
    too_long: list[TrainingPrompt] = []

    def fitting() -> Iterator[tuple[tuple[TrainingPrompt, list[int]], RequestSpec]]:
        for prompt in prompts:
            tokens = prompt.encode(tokenizer)
            if len(tokens) > config.longest_prompt:
                too_long.append(prompt)
            else:
                yield (prompt, tokens), (tokens, config.params(prompt))

    for (prompt, tokens), choice in Driver(llm.engine, threaded=False).completed(fitting(), config.abreast):
        if isinstance(choice, Choice):
            ended = choice.finish_reason is FinishReason.STOP
            yield prompt, Example([*tokens, *choice.token_ids], len(tokens)), ended
        else:
            too_long.append(prompt)
        while too_long:
            yield too_long.pop(), None, False
    for prompt in too_long:
        yield prompt, None, False


class AnswerFile:
    """Answers as JSON lines; the first says how they were made.

    Args:
        path: the file; it and its folder are made where they are missing.
        facts: what made the answers; a file that was made otherwise is refused.

    Raises:
        ConfigError: the file was made by another target or with other settings, or cannot be written.
    """

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _cut_torn_line(path)
            lines = list(_lines(path))
            _check_facts(path, lines[0] if lines else facts, facts)
            self._file = path.open("ab")
            if not lines:
                self._write(facts)
        except OSError as error:
            raise ConfigError(_NO_ROOM.format(path=path, error=error)) from error
        self.keys = {line["key"] for line in lines[1:]}
        """Prompts that are answered."""

    def append(self, prompt: TrainingPrompt, example: Example | None, *, ended: bool) -> None:
        """Write one answer, whole and at once."""
        line: dict[str, Any] = {"key": prompt.key, "validation": prompt.for_validation}
        if example is not None:
            start = example.answer_start
            line |= {"ended": ended, "prompt": example.tokens[:start], "answer": example.tokens[start:]}
        try:
            self._write(line)
        except OSError as error:
            raise ConfigError(_NO_ROOM.format(path=self.path, error=error)) from error
        self.keys.add(prompt.key)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, value: dict[str, Any]) -> None:
        self._file.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")
        self._file.flush()


def regenerate(
    llm: LLM,
    prompts: Sequence[TrainingPrompt],
    path: Path,
    config: AnswerConfig | None = None,
    *,
    target: str = "",
    console: Console | None = None,
    on_progress: Callable[[AnswerReport], None] | None = None,
    on_answer: Callable[[TrainingPrompt, Example], None] = lambda prompt, example: None,
) -> AnswerReport:
    """Answer the prompts that a file has no answers for yet.

    Args:
        llm: the target.
        prompts: what to answer.
        path: the file of answers, which may have been begun before.
        config: how; None takes the defaults.
        target: the target's name, for the file's first line.
        console: where a progress bar with tokens per second goes.
        on_progress: called with the counts after every answer.
        on_answer: given every answer, once it is in the file.

    Returns:
        The counts of this run.

    Raises:
        ConfigError: the file was made by another target or with other settings, or cannot be written.
    """
    chosen = config or AnswerConfig()
    assert llm.tokenizer is not None
    facts = {"target": target, "tokenizer": llm.tokenizer.fingerprint} | _deciding(chosen)
    file, report, begun = AnswerFile(path, facts), AnswerReport(), time.perf_counter()
    missing = [prompt for prompt in prompts if prompt.key not in file.keys]
    with closing(file), bar("answering prompts", len(missing), console) as tick:
        for prompt, example, ended in answers(llm, missing, chosen):
            file.append(prompt, example, ended=ended)
            if example is not None:
                on_answer(prompt, example)
            report.add(example, ended=ended)
            report.seconds = time.perf_counter() - begun
            tick(report.answers + report.left_out, f"{report.speed:.0f} tokens/s")
            if on_progress is not None:
                on_progress(report)
    return report


def read_answers(path: Path, *, validation: bool | None = None) -> list[Example]:
    """The answers in a file that may still be growing; a torn last line is no answer.

    Args:
        path: written by :func:`regenerate`.
        validation: True takes only those kept for held-out figures, False only the others; None takes all.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        lines = list(_lines(path))
    except OSError as error:
        raise ConfigError(f"the answers in {path} cannot be read: {cause(error)}") from error
    return [
        Example(line["prompt"] + line["answer"], len(line["prompt"]))
        for line in lines[1:]
        if line.get("answer") and validation in (None, line["validation"])
    ]


def answered(path: Path) -> set[str]:
    """Keys of the prompts that a file answers, those that were too long included; none where it is missing."""
    return {line["key"] for line in list(_lines(path))[1:]}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                value = json.loads(line)
            except ValueError:
                value = None
            if not isinstance(value, dict):
                raise ConfigError(f"{path}: line {number} is damaged; take it out, and its prompt is answered again")
            yield value


def _cut_torn_line(path: Path) -> None:
    """Remove an unfinished last line, which a sudden end leaves."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        while size:
            start = max(0, size - 65536)
            file.seek(start)
            place = file.read(size - start).rfind(b"\n")
            if place >= 0:
                file.truncate(start + place + 1)
                return
            size = start
        file.truncate(0)


def answer_options(path: Path) -> dict[str, Any]:
    """Options that a file of answers was made with; none where it is missing."""
    first = next(_lines(path), {})
    return {item.name: first[item.name] for item in fields(AnswerConfig) if item.name in first}


def check_answered(path: Path, target: str, config: AnswerConfig | None = None) -> None:
    """Refuse another model's answers, and those that were made otherwise.

    Args:
        path: a file of answers; one that is missing or empty is nobody's.
        target: the model's name.
        config: how answers are to be made; None asks nothing.

    Raises:
        ConfigError: naming what was and what is.
    """
    first = next(_lines(path), None)
    if first is not None:
        _check_facts(path, first, {"target": target} | ({} if config is None else _deciding(config)))


def _deciding(config: AnswerConfig) -> dict[str, Any]:
    """Options that decide the answers; how many are decoded side by side changes the speed alone."""
    return {name: value for name, value in asdict(config).items() if name != "abreast"}


def _check_facts(path: Path, known: dict[str, Any], wanted: dict[str, Any]) -> None:
    options = AnswerConfig.__dataclass_fields__
    for name, value in wanted.items():
        if (before := known.get(name)) == value:
            continue
        if name in options:
            flag = f"--answer-{name.replace('_', '-')}"
            raise ConfigError(
                f"the answers in {path} were made with {flag} {before}, and now it is {value}; give {flag} {before}, "
                "or another --data-folder"
            )
        raise ConfigError(
            f"the answers in {path} were made with {name} {before!r}, and now it is {value!r}; use the same, or name "
            "another --data-folder"
        )
