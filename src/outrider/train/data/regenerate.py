"""The target's answers, in a file that grows line by line and survives interruptions."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from outrider.completion import Choice
from outrider.engine.call import RequestSpec
from outrider.engine.driver import Driver
from outrider.errors import ConfigError, cause
from outrider.llm import LLM
from outrider.options import check_options, option
from outrider.requests.stopping import FinishReason
from outrider.sampling.params import SamplingParams
from outrider.train.bars import bar
from outrider.train.data.example import Example
from outrider.train.data.prompts import TrainingPrompt

_NO_ROOM: Final = (
    "the answers in {path} cannot be written ({error}); free some space and run the same command again, which keeps "
    "every answer so far"
)


@dataclass(frozen=True)
class AnswerConfig:
    """How the target answers: some prompts greedily, the others sampled, for more varied texts."""

    method = "regenerate"
    max_tokens: int = option(256, "Maximum tokens per answer.", low=1)
    greedy_share: float = option(0.6, "Share of prompts answered greedily.", high=1.0)
    temperature: float = option(0.7, "Temperature of the other answers.", high=10.0)
    top_p: float = option(1.0, "Top-p of the other answers.", low=0.01, high=1.0)
    longest_prompt: int = option(512, "Skip prompts with more tokens.", low=1)
    abreast: int = option(64, "Answers decoded at once.", low=1)
    seed: int = option(0, "Seed of sampled answers.")

    def __post_init__(self) -> None:
        check_options(self)

    def params(self, prompt: TrainingPrompt) -> SamplingParams:
        """The sampling parameters of one prompt; they depend on the prompt and the seed alone."""
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
    """Answer tokens, with the end of sequence."""
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
        """Count an answer; None is a skipped prompt."""
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
        prompts: read as capacity allows.
        config: options of the answers.

    Yields:
        Each prompt with its answer and whether it ended by itself, in the order of completion; None for a prompt that
        is too long.
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
    """Answers as JSON lines; the first line holds the target and the options.

    Args:
        path: the file; it is created with its folder if missing.
        facts: target and options; a file with others is refused.

    Raises:
        ConfigError: the file has another target or other options, or cannot be written.
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
        """Keys of the answered prompts."""

    def append(self, prompt: TrainingPrompt, example: Example | None, *, ended: bool) -> None:
        """Write one answer."""
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
        path: the file of answers, which may exist.
        config: options of the answers; None takes the defaults.
        target: the target's name, for the file's first line.
        console: where to show a progress bar.
        on_progress: called with the counts after every answer.
        on_answer: called with every answer, once it is in the file.

    Returns:
        The counts of this run.

    Raises:
        ConfigError: the file has another target or other options, or cannot be written.
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
    """Read the answers in a file that may still be growing; an unfinished last line is skipped.

    Args:
        path: written by :func:`regenerate`.
        validation: True reads only held-out answers, False only the others; None reads all.

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
    """Keys of a file's prompts, with those that were too long; empty if the file is missing."""
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
                raise ConfigError(f"{path}: line {number} is damaged; remove it to answer its prompt again")
            yield value


def _cut_torn_line(path: Path) -> None:
    """Remove an unfinished last line, which an interruption leaves."""
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
    """The options of a file of answers; empty if it is missing."""
    first = next(_lines(path), {})
    return {item.name: first[item.name] for item in fields(AnswerConfig) if item.name in first}


def check_answered(path: Path, target: str, config: AnswerConfig | None = None) -> None:
    """Refuse answers of another model or with other options.

    Args:
        path: a file of answers; a missing or empty one passes.
        target: the model's name.
        config: options of the answers; None skips their check.

    Raises:
        ConfigError: something differs; the message names both values.
    """
    first = next(_lines(path), None)
    if first is not None:
        _check_facts(path, first, {"target": target} | ({} if config is None else _deciding(config)))


def _deciding(config: AnswerConfig) -> dict[str, Any]:
    """The options that determine the answers; the number decoded at once changes only the speed."""
    return {name: value for name, value in asdict(config).items() if name != "abreast"}


def _check_facts(path: Path, known: dict[str, Any], wanted: dict[str, Any]) -> None:
    options = AnswerConfig.__dataclass_fields__
    for name, value in wanted.items():
        if (before := known.get(name)) == value:
            continue
        if name in options:
            flag = f"--answer-{name.replace('_', '-')}"
            raise ConfigError(
                f"the answers in {path} were made with {flag} {before}, not {value}; give {flag} {before}, or another "
                "--data-folder"
            )
        raise ConfigError(
            f"the answers in {path} were made with {name} {before!r}, not {value!r}; use the same, or name another "
            "--data-folder"
        )
