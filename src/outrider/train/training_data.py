"""Training data from end to end: prompts, the target's answers, their hidden rows, and batches of them."""

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
"""What names the texts of a training in its state: how many, and a hash of which."""
NO_HELD_OUT: Final = (
    "none of {count} prompts is kept to judge by: about one in thirty is, so give more of them, with --data or a "
    "larger --synthesise"
)
_NOBODY_FITS: Final = (
    "none of {count} prompts {purpose} has fewer than {most} tokens, so no answer could be {used}; raise "
    "--answer-longest-prompt and --max-length, or give shorter prompts"
)
_FIRST: Final = 256
"""Prompts that are answered ahead where all others are answered while training."""


@dataclass(frozen=True)
class DataConfig:
    """What is trained on, and how much of it is kept."""

    method: ClassVar[str] = "data"

    vocabulary: int = option(
        16384, "Tokens a head can draft, or a draft model's loss looks at; 0 is all of the target's.", low=0
    )
    buffer_gb: float = option(8.0, "Most gigabytes of hidden rows on disk.", low=0.01)
    rows: int = option(512, "Positions of a batch; fewer are more steps from the same tokens.", low=1)
    max_length: int = option(512, "Longer texts are cut here.", low=2)
    held_out: int = option(
        200,
        "Most texts the head is judged by; about 3 in 100 prompts are kept for that, and no more of them answered.",
        low=1,
    )

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, eq=False)
class TextSource:
    """Where texts come from."""

    folder: Path
    """Prompts, answers and hidden rows are kept here, and used again by the next training."""
    target: str = ""
    """Name of the model whose answers these are; those of another are refused.  Empty asks nothing."""
    prompts: Sequence[Path] = ()
    """Files of prompts."""
    synthesised: int = 0
    """Prompts to be made by the target itself."""
    synthesis: SynthesisConfig = field(default_factory=SynthesisConfig)
    """Which."""
    answers: AnswerConfig = field(default_factory=AnswerConfig)
    online: bool = False
    """Answer whenever a text is read, and keep nothing but what is judged by and the first answers, whose tokens make
    the draft vocabulary."""

    def read(self) -> list[TrainingPrompt]:
        """Every prompt there is by now.

        Raises:
            ConfigError: a file cannot be read, or holds prompts that heads are measured on.
        """
        own = self.folder / PROMPTS
        files = [*self.prompts, *([own] if own.exists() else [])]
        return read_cached(files) if files else []

    def to_make(self) -> int:
        """How many prompts the target is yet to make.

        Raises:
            ConfigError: those that are there were made otherwise.
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
        """Of all prompts, those that are answered before the training.

        Args:
            prompts: all of them.
            held_out: most of those that are kept to judge by.
            fits: whether a prompt can be answered, which of these counts alone.
        """
        trained_on = [prompt for prompt in prompts if not prompt.for_validation]
        later = {prompt.key for prompt in trained_on[_FIRST:]} if self.online else set()
        judging = islice((prompt for prompt in prompts if prompt.for_validation and fits(prompt)), held_out)
        first = {prompt.key for prompt in judging}
        return [
            prompt for prompt in prompts if (prompt.key in first if prompt.for_validation else prompt.key not in later)
        ]


def gather(llm: LLM, source: TextSource, console: Console, rows: HiddenRows, data: DataConfig) -> None:
    """Make the prompts and answers that are missing, and keep the hidden rows that answering computes.

    Raises:
        ConfigError: a file cannot be read or written, was made otherwise, or holds prompts that heads are measured on;
            or none of the prompts is kept to judge by.
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
    beside = f"; {others:,} more in {source.folder} are to other prompts, and used as well" if others else ""
    console.print(f"{report}{beside}")


def to_answer(llm: LLM, source: TextSource, data: DataConfig) -> list[TrainingPrompt]:
    """Prompts that are yet to be answered before the training.

    Raises:
        ConfigError: see :func:`gather`.
    """
    prompts = source.read()
    done = answered(source.folder / ANSWERS)
    return [prompt for prompt in _asked(llm, source, data, prompts) if prompt.key not in done] if prompts else []


def _asked(llm: LLM, source: TextSource, data: DataConfig, prompts: Sequence[TrainingPrompt]) -> list[TrainingPrompt]:
    """Prompts that are answered before the training.

    Raises:
        ConfigError: none of those to train on or of those to judge by leaves room for an answer, and there are no
            answers from before.
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
    """What was gathered."""

    train: list[Example]
    held_out: list[Example]

    @classmethod
    def of(cls, source: TextSource, config: DataConfig) -> Texts:
        """Read a folder of answers.

        Raises:
            ConfigError: there are no answers, or none that are held out, or they are another model's.
        """
        file = source.folder / ANSWERS
        if source.target:
            check_answered(file, source.target)
        train, held_out = (read_answers(file, validation=kept) if file.exists() else [] for kept in (False, True))
        held_out = [text for text in held_out if text.answer_start < min(len(text.tokens), config.max_length)]
        if not train or not held_out:
            raise ConfigError(
                f"{file} holds {len(train)} answers to train on and {len(held_out)} to judge by; name prompts with "
                "--data or have some made with --synthesise"
            )
        return cls(train, held_out[: config.held_out])

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers to train on."""
        return sum(len(example.tokens) - example.answer_start for example in self.train)

    def __str__(self) -> str:
        return (
            f"texts: {len(self.train):,} to train on, with {self.answer_tokens:,} answer tokens, and "
            f"{len(self.held_out):,} to judge by"
        )

    def vocabulary(self, size: int, target: TargetModel, always: Sequence[int]) -> DraftVocabulary | None:
        """The reduced draft vocabulary; None is the whole."""
        if not size or size >= target.vocabulary:
            return None
        answers = (example.tokens[example.answer_start :] for example in self.train)
        return draft_vocabulary(answers, size, target.vocabulary, always)


def hidden_rows(llm: LLM, recipe: Recipe, source: TextSource, data: DataConfig) -> HiddenRows:
    """The buffers that a head's training reads."""
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
    """The reduced draft vocabulary of a new head; None is the whole."""
    teacher: Teacher
    shards: Shards
    shape: BatchShape
    held_out: list[Batch]
    facts: Mapping[str, object]
    """Identifies the texts: see :class:`outrider.train.loop.training.Task`."""

    @classmethod
    def of(cls, llm: LLM, recipe: Recipe, source: TextSource, config: DataConfig, console: Console) -> TrainingData:
        """Read texts, and capture the rows of them that a recipe asks for.

        Raises:
            ConfigError: there are none, or none to judge by.
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
        """Batches without end."""
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
    """What decides the batches beside the texts; names that no option has.

    Args:
        source: the texts.
        data: how much of them is used.
        layers: read by what is trained.
        target: the model.
        started: whether it begins with a head, which brings its own draft vocabulary.
    """
    return {
        "target": source.target,
        "rows of a batch": data.rows,
        "longest text": data.max_length,
        "layers read": list(captured_layers(target, layers)),
        "draft vocabulary": "the head's own" if started else data.vocabulary,
    }


def text_facts(source: TextSource, texts: Texts) -> dict[str, object]:
    """Which texts are trained on, and which are judged by."""
    asked = [prompt.key for prompt in source.read()] if source.online else [example.key for example in texts.train]
    return {
        TEXTS: _name_of(asked),
        HELD_OUT: _name_of([example.key for example in texts.held_out]),
    }


def _name_of(keys: Sequence[str]) -> str:
    """How many texts there are, and a hash of which."""
    return f"{len(keys)} ({hashlib.sha256(' '.join(sorted(keys)).encode()).hexdigest()[:8]})"
