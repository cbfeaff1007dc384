"""Training data: prompts, the target's answers, their hidden rows, and batches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import ClassVar, Final

from rich.console import Console

from outrider.errors import ConfigError
from outrider.llm import LLM
from outrider.models.base import TargetModel
from outrider.options import check_options, option
from outrider.train.data.example import Example
from outrider.train.data.prompt_store import PROMPTS, SyntheticPrompts, read_cached, synthesise_prompts
from outrider.train.data.prompts import TrainingPrompt
from outrider.train.data.regenerate import AnswerConfig, answered, check_answered, read_answers, regenerate
from outrider.train.data.synthesise import SynthesisConfig
from outrider.train.features.batches import Batch, Batches, BatchShape, Shards, held_out_batches
from outrider.train.features.capture import captured_layers
from outrider.train.features.hidden_rows import HiddenRows
from outrider.train.features.sources import Online, Streamed
from outrider.train.features.teacher import Teacher
from outrider.train.features.vocabulary import DraftVocabulary, draft_vocabulary
from outrider.train.recipes.base import Recipe

ANSWERS: Final = "answers.jsonl"
TEXTS: Final = "texts"
HELD_OUT: Final = "texts held out"
"""Names of the texts in a training's state; their values are counts with hashes."""
NO_HELD_OUT: Final = (
    "none of {count} prompts is held out to judge by: about one in thirty is, so give more prompts with --data or a "
    "larger --synthesise"
)
_NOBODY_FITS: Final = (
    "none of {count} prompts {purpose} has fewer than {most} tokens, so no answer could be {used}; raise "
    "--answer-longest-prompt and --max-length, or give shorter prompts"
)
_FIRST: Final = 256
"""Prompts answered before an online training."""


@dataclass(frozen=True)
class DataConfig:
    """How much of the texts is used and stored."""

    method: ClassVar[str] = "data"

    vocabulary: int = option(
        16384, "Size of a head's draft vocabulary, or of a draft model's loss; 0 is the target's.", low=0
    )
    buffer_gb: float = option(8.0, "Maximum gigabytes of hidden rows on disk.", low=0.01)
    rows: int = option(512, "Positions per batch; fewer give more steps for the same tokens.", low=1)
    max_length: int = option(512, "Cut texts to this many tokens.", low=2)
    held_out: int = option(200, "Maximum held-out texts; about 3 in 100 prompts are held out.", low=1)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, eq=False)
class TextSource:
    """Where texts come from."""

    folder: Path
    """Folder for prompts, answers and hidden rows, which later trainings reuse."""
    target: str = ""
    """Name of the model that answers; answers of another are refused.  Empty skips the check."""
    prompts: Sequence[Path] = ()
    """Files of prompts."""
    synthesised: int = 0
    """Number of prompts that the target writes."""
    synthesis: SynthesisConfig = field(default_factory=SynthesisConfig)
    answers: AnswerConfig = field(default_factory=AnswerConfig)
    online: bool = False
    """Answer a prompt whenever it is read.  Store only held-out answers and the first others, whose tokens make the
    draft vocabulary."""

    def read(self) -> list[TrainingPrompt]:
        """All prompts so far.

        Raises:
            ConfigError: a file cannot be read, or holds evaluation prompts.
        """
        own = self.folder / PROMPTS
        files = [*self.prompts, *([own] if own.exists() else [])]
        return read_cached(files) if files else []

    def to_make(self) -> int:
        """The number of prompts that the target still has to write.

        Raises:
            ConfigError: the present ones were made with other options.
        """
        if not self.synthesised:
            return 0
        known = SyntheticPrompts.of(self.folder)
        known.check(self.folder, self.synthesis, self.synthesised, self.target)
        return max(0, self.synthesised - len(known.prompts))

    def asked_before(
        self,
        prompts: Sequence[TrainingPrompt],
        held_out: int,
        fits: Callable[[TrainingPrompt], bool] = lambda prompt: True,
    ) -> list[TrainingPrompt]:
        """The prompts that are answered before the training.

        Args:
            prompts: all prompts.
            held_out: most held-out prompts.
            fits: whether a held-out prompt is short enough to be answered.
        """
        trained_on = [prompt for prompt in prompts if not prompt.for_validation]
        later = {prompt.key for prompt in trained_on[_FIRST:]} if self.online else set()
        judging = islice((prompt for prompt in prompts if prompt.for_validation and fits(prompt)), held_out)
        first = {prompt.key for prompt in judging}
        return [
            prompt for prompt in prompts if (prompt.key in first if prompt.for_validation else prompt.key not in later)
        ]


def gather(llm: LLM, source: TextSource, console: Console, rows: HiddenRows, data: DataConfig) -> None:
    """Make missing prompts and answers, and store the hidden rows that answering computes.

    Raises:
        ConfigError: a file cannot be read or written, was made with other options, or holds evaluation prompts; or no
            prompt is held out.
    """
    source.folder.mkdir(parents=True, exist_ok=True)
    if source.synthesised:
        synthesise_prompts(
            llm, source.folder, source.synthesised, source.synthesis, target=source.target, console=console
        )
    prompts = source.read()
    if not prompts:
        return
    path, asked = source.folder / ANSWERS, _asked(llm, source, data, prompts)
    seen = rows.watching(llm)
    try:
        report = regenerate(
            seen, asked, path, source.answers, target=source.target, console=console, on_answer=rows.keep
        )
    finally:
        rows.flush()
    others = len(answered(path) - {prompt.key for prompt in prompts})
    beside = f"; {others:,} more answers in {source.folder}, to other prompts, are used too" if others else ""
    console.print(f"{report}{beside}")


def to_answer(llm: LLM, source: TextSource, data: DataConfig) -> list[TrainingPrompt]:
    """Prompts that must still be answered before the training; errors are those of :func:`gather`."""
    prompts = source.read()
    done = answered(source.folder / ANSWERS)
    return [prompt for prompt in _asked(llm, source, data, prompts) if prompt.key not in done] if prompts else []


def _asked(llm: LLM, source: TextSource, data: DataConfig, prompts: Sequence[TrainingPrompt]) -> list[TrainingPrompt]:
    """Prompts that are answered before the training.

    Raises:
        ConfigError: no prompt to train on, or none to judge by, leaves room for an answer, and there are no earlier
            answers.
    """
    assert llm.tokenizer is not None
    tokenizer, most = llm.tokenizer, 1 + min(source.answers.longest_prompt, data.max_length - 1)

    def fits(prompt: TrainingPrompt) -> bool:
        return len(prompt.encode(tokenizer)) < most

    path = source.folder / ANSWERS
    for judging, purpose, used in ((True, "to judge by", "judged"), (False, "to train on", "learned from")):
        some = [prompt for prompt in prompts if prompt.for_validation is judging]
        if source.to_make() or (path.exists() and read_answers(path, validation=judging)):
            continue
        if not some and judging:
            raise ConfigError(NO_HELD_OUT.format(count=len(prompts)))
        if not any(fits(prompt) for prompt in some):
            raise ConfigError(_NOBODY_FITS.format(count=len(some), purpose=purpose, most=most, used=used))
    return source.asked_before(prompts, data.held_out, fits)


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts to train on and to judge by."""

    train: list[Example]
    held_out: list[Example]

    @classmethod
    def of(cls, source: TextSource, config: DataConfig) -> Texts:
        """Read a folder of answers.

        Raises:
            ConfigError: there are no answers or no held-out ones, or they are another model's.
        """
        file = source.folder / ANSWERS
        if source.target:
            check_answered(file, source.target)
        train, held_out = (read_answers(file, validation=kept) if file.exists() else [] for kept in (False, True))
        held_out = [text for text in held_out if text.answer_start < min(len(text.tokens), config.max_length)]
        if not train or not held_out:
            raise ConfigError(
                f"{file} has {len(train)} answers to train on and {len(held_out)} held-out ones; name prompts with "
                "--data, or let the model write some with --synthesise"
            )
        return cls(train, held_out[: config.held_out])

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers to train on."""
        return sum(len(example.tokens) - example.answer_start for example in self.train)

    def __str__(self) -> str:
        return (
            f"texts: {len(self.train):,} to train on, with {self.answer_tokens:,} answer tokens, and "
            f"{len(self.held_out):,} held out"
        )

    def vocabulary(self, size: int, target: TargetModel, always: Sequence[int]) -> DraftVocabulary | None:
        """The reduced draft vocabulary; None means all tokens."""
        if not size or size >= target.vocabulary:
            return None
        answers = (example.tokens[example.answer_start :] for example in self.train)
        return draft_vocabulary(answers, size, target.vocabulary, always)


def hidden_rows(llm: LLM, recipe: Recipe, source: TextSource, data: DataConfig) -> HiddenRows:
    """The stored hidden rows for a training."""
    target = llm.engine.target
    return HiddenRows(
        target,
        source.folder,
        recipe.layers_read(target),
        limit_bytes=int(data.buffer_gb * 1e9),
        held_out=data.held_out,
        name=source.target,
        for_training=not source.online,
    )


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Captured texts, ready to train on."""

    texts: Texts
    vocabulary: DraftVocabulary | None
    """The reduced draft vocabulary of a new head; None means all tokens."""
    teacher: Teacher
    shards: Shards
    shape: BatchShape
    held_out: list[Batch]
    facts: Mapping[str, object]
    """Identifies the texts: see :class:`outrider.train.loop.training.Task`."""

    @classmethod
    def of(cls, llm: LLM, recipe: Recipe, source: TextSource, config: DataConfig, console: Console) -> TrainingData:
        """Read texts, and capture the hidden rows that a recipe reads.

        Raises:
            ConfigError: there are no texts, or none to judge by.
        """
        target = llm.engine.target
        texts = Texts.of(source, config)
        console.print(str(texts))
        ends = sorted(llm.tokenizer.eos_ids) if llm.tokenizer else []
        rows = hidden_rows(llm, recipe, source, config)
        judged = Streamed(target, texts.held_out, rows.filled(texts.held_out, judging=True, console=console))
        layers = captured_layers(target, recipe.layers_read(target))
        shape = BatchShape(layers, rows=config.rows, max_length=config.max_length)
        held_out = held_out_batches((text for piece in range(len(judged)) for text in judged.read(piece)), shape)
        return cls(
            texts,
            texts.vocabulary(config.vocabulary, target, ends),
            Teacher.of(target),
            _shards(llm, source, texts, rows, console),
            shape,
            held_out,
            text_facts(source, texts),
        )

    def stream(self, seed: int) -> Batches:
        """Endless batches."""
        return Batches(self.shards, self.shape, seed=seed)


def _shards(llm: LLM, source: TextSource, texts: Texts, rows: HiddenRows, console: Console) -> Shards:
    """What is trained on, in pieces."""
    if source.online:
        prompts = [prompt for prompt in source.read() if not prompt.for_validation]
        return Online(llm, prompts, source.answers, rows.layers)
    return Streamed(llm.engine.target, texts.train, rows.filled(texts.train, judging=False, console=console))


def known_facts(
    source: TextSource, data: DataConfig, layers: Sequence[int], target: TargetModel, *, started: bool
) -> dict[str, object]:
    """Everything but the texts that determines the batches; the names differ from those of options.

    Args:
        source: the texts.
        data: how much of them is used.
        layers: layers that the network reads.
        target: the model.
        started: whether the training starts from a head, with its draft vocabulary.
    """
    return {
        "target": source.target,
        "rows of a batch": data.rows,
        "longest text": data.max_length,
        "layers read": list(captured_layers(target, layers)),
        "draft vocabulary": "the head's own" if started else data.vocabulary,
    }


def text_facts(source: TextSource, texts: Texts) -> dict[str, object]:
    """Counts and hashes of the texts to train on and to judge by."""
    asked = [prompt.key for prompt in source.read()] if source.online else [example.key for example in texts.train]
    return {
        TEXTS: _name_of(asked),
        HELD_OUT: _name_of([example.key for example in texts.held_out]),
    }


def _name_of(keys: Sequence[str]) -> str:
    """The number of texts and a hash of their keys."""
    return f"{len(keys)} ({hashlib.sha256(' '.join(sorted(keys)).encode()).hexdigest()[:8]})"
