"""What a training reads: prompts, the target's answers, their hidden rows, and batches of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from rich.console import Console

from outrider.drafters.base import check_options, option
from outrider.errors import ConfigError
from outrider.llm import LLM
from outrider.target.base import TargetModel
from outrider.train.batches import Batch, Batches, Shape, Shards, held_out_batches
from outrider.train.capture import captured_layers
from outrider.train.example import Example
from outrider.train.hidden_rows import HiddenRows
from outrider.train.prompts import Prompt, read_prompts, write_prompts
from outrider.train.recipes.base import Recipe
from outrider.train.regenerate import AnswerConfig, check_answered, read_answers, regenerate
from outrider.train.sources import Online, Streamed
from outrider.train.synthesise import SynthesisConfig, synthesise
from outrider.train.teacher import Matrices
from outrider.train.vocabulary import DraftVocabulary, draft_vocabulary

PROMPTS: Final = "prompts.jsonl"
MADE: Final = "prompts.made.json"
"""Tells which prompts the target was asked to make."""
ANSWERS: Final = "answers.jsonl"
_NOBODY_JUDGES: Final = (
    "none of {count} prompts is kept to judge by: about one in thirty is, so give more of them, with --data or a "
    "larger --synthesise"
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
    held_out: int = option(200, "Most texts the head is judged by.", low=1)

    def __post_init__(self) -> None:
        """Refuse values out of bounds."""
        check_options(self)


@dataclass(frozen=True, eq=False)
class Source:
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

    def read(self) -> list[Prompt]:
        """Every prompt there is by now.

        Raises:
            ConfigError: a file cannot be read, or holds prompts that heads are measured on.
        """
        own = self.folder / PROMPTS
        files = [*self.prompts, *([own] if own.exists() else [])]
        return read_prompts(files) if files else []

    def made(self) -> dict[str, Any]:
        """What decides the prompts that the target makes."""
        return {"synthesise": self.synthesised} | asdict(self.synthesis)

    def check_made(self) -> None:
        """Refuse prompts that the target made, if others are wanted now.

        Raises:
            ConfigError: naming what differs.
        """
        file = self.folder / MADE
        found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        for name, value in self.made().items():
            if found.get(name, value) != value:
                raise ConfigError(
                    f"the prompts in {self.folder / PROMPTS} were made with {name} {found[name]}, and now it is "
                    f"{value}; use the same, or another --data-folder"
                )

    def asked_before(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Of all prompts, those that are answered before the training."""
        trained_on = [prompt for prompt in prompts if not prompt.for_validation]
        later = {prompt.key for prompt in trained_on[_FIRST:]} if self.online else set()
        return [prompt for prompt in prompts if prompt.key not in later]


def gather(llm: LLM, source: Source, console: Console, rows: HiddenRows) -> None:
    """Make every prompt and answer that is not there yet, and keep the hidden rows that answering computes.

    Raises:
        ConfigError: a file cannot be read or written, was made otherwise, or holds prompts that heads are measured on;
            or none of the prompts is kept to judge by.
    """
    source.folder.mkdir(parents=True, exist_ok=True)
    shown = console.is_terminal and not console.quiet
    own = source.folder / PROMPTS
    if source.synthesised and not own.exists():
        made, dropped = synthesise(llm, source.synthesised, source.synthesis, progress=shown)
        write_prompts(own, made)
        own.with_name(MADE).write_text(json.dumps(source.made()) + "\n", encoding="utf-8")
        console.print(f"{len(made)} prompts were made; left out: {dict(dropped) or 'none'}")
    elif source.synthesised:
        source.check_made()
    prompts = source.asked_before(source.read())
    if prompts:
        if not any(prompt.for_validation for prompt in prompts):
            raise ConfigError(_NOBODY_JUDGES.format(count=len(prompts)))
        path, seen = source.folder / ANSWERS, rows.watching(llm)
        try:
            report = regenerate(
                seen, prompts, path, source.answers, target=source.target, progress=shown, on_answer=rows.keep
            )
        finally:
            rows.flush()
        console.print(str(report))


@dataclass(frozen=True, eq=False)
class Texts:
    """What was gathered."""

    train: list[Example]
    held_out: list[Example]

    @classmethod
    def of(cls, source: Source, config: DataConfig) -> Texts:
        """Read a folder of answers.

        Raises:
            ConfigError: there are no answers, or none that are held out, or they are another model's.
        """
        file = source.folder / ANSWERS
        if source.target:
            check_answered(file, source.target)
        train, held_out = (read_answers(file, validation=kept) if file.exists() else [] for kept in (False, True))
        if not train or not held_out:
            raise ConfigError(
                f"{file} holds {len(train)} answers to train on and {len(held_out)} to judge by; name prompts with "
                "--data or have some made with --synthesise"
            )
        return cls(train, held_out[: config.held_out])

    def vocabulary(self, size: int, target: TargetModel, always: Sequence[int]) -> DraftVocabulary | None:
        """The reduced draft vocabulary; None is the whole."""
        if not size or size >= target.vocabulary:
            return None
        answers = (example.tokens[example.answer_start :] for example in self.train)
        return draft_vocabulary(answers, size, target.vocabulary, always)


def hidden_rows(llm: LLM, recipe: Recipe, source: Source, data: DataConfig) -> HiddenRows:
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
class Data:
    """Captured texts, ready to train on."""

    vocabulary: DraftVocabulary | None
    """The reduced draft vocabulary of a new head; None is the whole."""
    teacher: Matrices
    shards: Shards
    shape: Shape
    held_out: list[Batch]
    facts: Mapping[str, object]
    """Names the texts, and tells how they become batches: see :class:`outrider.train.loop.Task`."""

    @classmethod
    def of(cls, llm: LLM, recipe: Recipe, source: Source, config: DataConfig, console: Console) -> Data:
        """Read texts, and capture the rows of them that a recipe asks for.

        Raises:
            ConfigError: there are none, or none to judge by.
        """
        target = llm.engine.target
        texts = Texts.of(source, config)
        ends = sorted(llm.tokenizer.eos_ids) if llm.tokenizer else []
        rows = hidden_rows(llm, recipe, source, config)
        judged = Streamed(target, texts.held_out, rows.filled(texts.held_out, judging=True, console=console))
        layers = captured_layers(target, recipe.layers_read(target))
        shape = Shape(layers, rows=config.rows, max_length=config.max_length)
        held_out = held_out_batches((text for piece in range(len(judged)) for text in judged.read(piece)), shape)
        return cls(
            texts.vocabulary(config.vocabulary, target, ends),
            Matrices.of(target),
            _shards(llm, source, texts, rows, console),
            shape,
            held_out,
            _facts(source, texts, shape),
        )

    def stream(self, seed: int) -> Batches:
        """Batches without end."""
        return Batches(self.shards, self.shape, seed=seed)


def _shards(llm: LLM, source: Source, texts: Texts, rows: HiddenRows, console: Console) -> Shards:
    """What is trained on, in pieces."""
    if source.online:
        prompts = [prompt for prompt in source.read() if not prompt.for_validation]
        return Online(llm, prompts, source.answers, rows.layers)
    return Streamed(llm.engine.target, texts.train, rows.filled(texts.train, judging=False, console=console))


def _facts(source: Source, texts: Texts, shape: Shape) -> Mapping[str, object]:
    """What decides the batches; names that no option has."""
    asked = [prompt.key for prompt in source.read()] if source.online else [example.key for example in texts.train]
    return {
        "target": source.target,
        "texts": _name_of(asked),
        "texts held out": _name_of([example.key for example in texts.held_out]),
        "rows of a batch": shape.rows,
        "longest text": shape.max_length,
        "layers read": list(shape.layers),
    }


def _name_of(keys: Sequence[str]) -> str:
    """How many texts there are, and a hash of which."""
    return f"{len(keys)} ({hashlib.sha256(' '.join(sorted(keys)).encode()).hexdigest()[:8]})"
