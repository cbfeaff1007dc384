"""The whole way from a target to a drafter: prompts, the answers, their hidden rows, training, and what was bought."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from rich.console import Console

from outrider.drafters.base import check_options, option
from outrider.errors import ConfigError
from outrider.heads.checkpoint import TargetFacts
from outrider.llm import LLM
from outrider.target.base import TargetModel
from outrider.train.batches import Batch, Batches, Shape, held_out_batches
from outrider.train.buffer import FeatureBuffer
from outrider.train.capture import capture, captured_layers
from outrider.train.example import Example
from outrider.train.loop import Task, Trained, Training
from outrider.train.products import UNTRAINED
from outrider.train.prompts import Prompt, read_prompts, write_prompts
from outrider.train.recipes.base import Recipe
from outrider.train.regenerate import AnswerConfig, read_answers, regenerate
from outrider.train.settings import Settings
from outrider.train.sources import Pieces
from outrider.train.synthesise import SynthesisConfig, synthesise
from outrider.train.teacher import Matrices
from outrider.train.vocabulary import DraftVocabulary, draft_vocabulary

PROMPTS: Final = "prompts.jsonl"
ANSWERS: Final = "answers.jsonl"
TRAINING: Final = "training"
_HIDDEN: Final = "hidden-"


@dataclass(frozen=True)
class DataConfig:
    """What is trained on, and how much of it is kept."""

    method: ClassVar[str] = "data"

    vocabulary: int = option(
        16384, "Tokens a head can draft, or a draft model's loss looks at; 0 is all of the target's.", low=0
    )
    buffer_gb: float = option(8.0, "Most gigabytes of hidden rows on disk.", low=0.01)
    rows: int = option(2048, "Positions of a batch.", low=1)
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
    prompts: Sequence[Path] = ()
    """Files of prompts."""
    synthesised: int = 0
    """Prompts to be made by the target itself."""
    answers: AnswerConfig = field(default_factory=AnswerConfig)


def gather(llm: LLM, source: Source, target: str, console: Console) -> None:
    """Make every prompt and answer that is not there yet.

    Raises:
        ConfigError: a file cannot be read or written, or holds prompts that heads are measured on.
    """
    source.folder.mkdir(parents=True, exist_ok=True)
    shown = console.is_terminal
    prompts: list[Prompt] = read_prompts(source.prompts) if source.prompts else []
    own = source.folder / PROMPTS
    if source.synthesised and not own.exists():
        made, dropped = synthesise(llm, source.synthesised, SynthesisConfig(seed=source.answers.seed))
        write_prompts(own, made)
        console.print(f"{len(made)} prompts were made; left out: {dict(dropped) or 'none'}")
    if own.exists():
        prompts += read_prompts([own])
    if prompts:
        report = regenerate(llm, prompts, source.folder / ANSWERS, source.answers, target=target, progress=shown)
        console.print(str(report))


@dataclass(frozen=True, eq=False)
class Texts:
    """What was gathered."""

    train: list[Example]
    held_out: list[Example]

    @classmethod
    def of(cls, folder: Path, config: DataConfig) -> Texts:
        """Read a folder of answers.

        Raises:
            ConfigError: there are no answers, or none that are held out.
        """
        file = folder / ANSWERS
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


def train(
    llm: LLM,
    recipe: Recipe,
    source: Source,
    output: Path,
    *,
    target_name: str,
    data: DataConfig | None = None,
    settings: Settings | None = None,
    console: Console | None = None,
) -> Trained:
    """Train a head on what a source has gathered, and write it to a folder.

    Args:
        llm: the target, without speculation.
        recipe: what is trained and how.
        source: the texts.
        output: gets the head; what it takes to go on after a kill lies in its ``training`` folder.
        target_name: told in the head.
        data: how much of the texts is used.
        settings: of the loop.
        console: where to print; None is silent.

    Raises:
        ConfigError: there are no texts, or the target cannot be trained for.
        TrainingError: see :meth:`outrider.train.loop.Training.run`.
    """
    chosen, target = data or DataConfig(), llm.engine.target
    console = console or Console(quiet=True)
    data_used = _Data.of(llm, recipe, source, chosen, console)
    wishes = settings or Settings()
    told: dict[str, Any] = {
        "method": recipe.method,
        "recipe": dataclasses.asdict(recipe),  # type: ignore[call-overload]
        "settings": dataclasses.asdict(wishes),
        "data": dataclasses.asdict(chosen),
    }
    facts, product = TargetFacts.of(target, target_name), recipe.product
    done: list[Trained] = []
    while (stage := recipe.after([one.head for one in done])) is not None:
        head = stage.head(target, data_used.vocabulary, wishes.seed)
        if product.shows_untrained and not done:
            product.write(output / UNTRAINED, head, facts, {})
        folder = product.place(output, len(done))
        task = Task(stage, head, data_used.teacher, data_used.stream(wishes.seed), data_used.held_out)
        done.append(Training(task, wishes, folder / TRAINING, console=console).run())
        product.write(folder, done[-1].head, facts, told)
    apart = recipe.apart([one.head for one in done], data_used.held_out, data_used.teacher)
    for name, found in apart.items():
        console.print(f"{name}: held-out {found}")
    return done[-1]._replace(apart=apart)


@dataclass(frozen=True, eq=False)
class _Data:
    """Captured texts, ready to train on."""

    vocabulary: torch.Tensor | None
    """See :meth:`outrider.train.recipes.base.Recipe.head`."""
    teacher: Matrices
    train: FeatureBuffer
    shape: Shape
    held_out: list[Batch]

    @classmethod
    def of(cls, llm: LLM, recipe: Recipe, source: Source, config: DataConfig, console: Console) -> _Data:
        """Read texts, and capture the rows of them that a recipe asks for."""
        target = llm.engine.target
        texts = Texts.of(source.folder, config)
        ends = sorted(llm.tokenizer.eos_ids) if llm.tokenizer else []
        vocabulary = texts.vocabulary(config.vocabulary, target, ends)
        if vocabulary is not None:
            console.print(str(vocabulary))
        layers = recipe.layers_read(target)
        train, held_out = (
            _captured(target, source.folder, kind, layers, config, console) for kind in texts_by_kind(texts)
        )
        shape = Shape(captured_layers(target, layers), rows=config.rows, max_length=config.max_length)
        ids = None if vocabulary is None else vocabulary.ids
        return cls(ids, Matrices.of(target), train, shape, held_out_batches(held_out, shape))

    def stream(self, seed: int) -> Batches:
        """Batches without end."""
        return Batches(Pieces(self.train), self.shape, seed=seed)


def texts_by_kind(texts: Texts) -> list[tuple[str, list[Example]]]:
    """Texts to train on and to judge by, each with the name of its buffer."""
    return [("train", texts.train), ("held_out", texts.held_out)]


def _kept_layers(folder: Path, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Layers of the smallest buffer in a folder that has all that are wanted; those themselves where there is none."""
    names = [place.name.removeprefix(_HIDDEN) for place in folder.glob(f"{_HIDDEN}*")]
    known = [tuple(map(int, name.split("-"))) for name in names if name.replace("-", "").isdigit()]
    return min((layers for layers in known if set(wanted) <= set(layers)), key=len, default=wanted)


def _captured(
    target: TargetModel,
    folder: Path,
    kind: tuple[str, list[Example]],
    layers: tuple[int, ...],
    config: DataConfig,
    console: Console,
) -> FeatureBuffer:
    name, examples = kind
    kept = _kept_layers(folder, captured_layers(target, layers))
    place = folder / f"{_HIDDEN}{'-'.join(map(str, kept))}" / name
    buffer = FeatureBuffer(place, kept, target.width, int(config.buffer_gb * 1e9))
    report = capture(target, examples, kept, buffer, progress=console.is_terminal)
    console.print(f"hidden rows, {name}: {report}")
    return buffer
