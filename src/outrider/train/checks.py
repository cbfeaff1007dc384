"""Checks before a training, so that it fails early: before it makes prompts, and mostly before it loads the model."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console

from outrider.errors import ConfigError, TrainingError
from outrider.heads.checkpoint import CONFIG
from outrider.llm import LLM
from outrider.train.data.example import Example
from outrider.train.data.prompts import VALIDATION_SHARE
from outrider.train.data.regenerate import check_answered, read_answers
from outrider.train.loop.resume import STATE, TRAINING, check_identity, check_precision, identity, load_state
from outrider.train.loop.warm_start import check_start, load_start, networks, start_facts
from outrider.train.recipes.base import Recipe
from outrider.train.settings import Settings
from outrider.train.training_data import (
    ANSWERS,
    HELD_OUT,
    NO_HELD_OUT,
    TEXTS,
    DataConfig,
    Texts,
    TextSource,
    hidden_rows,
    known_facts,
    text_facts,
    to_answer,
)

LEAST_JUDGING: Final = 3
"""Held-out texts that new prompts must be expected to give."""
_COPIES: Final = 9
"""Copies of the weights on disk at most: the state with AdamW's two moments and its replacement, the best weights and
their replacement, and the head."""


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """A training before its start."""

    recipe: Recipe
    source: TextSource
    data: DataConfig
    settings: Settings
    output: Path
    workers: int = 1

    @property
    def places(self) -> list[Path]:
        """The folder of each network."""
        return [self.recipe.product.place(self.output, number) for number in range(networks(self.recipe))]

    def check_files(self) -> None:
        """Checks that need no model.

        Raises:
            ConfigError: a folder cannot be written or holds another model; there is nothing to train on or to judge by;
                a file of prompts cannot be read, holds evaluation prompts, or was made with other options.
        """
        for folder, flag in ((self.output, "--output"), (self.source.folder, "--data-folder")):
            _check_folder(folder, flag)
        start = self.settings.start_from
        if start and Path(start).resolve() == self.output.resolve():
            raise ConfigError(f"--output would overwrite {start}, the head to start from; name another folder")
        for place in self.places:
            if (place / CONFIG).exists() and not (place / TRAINING / STATE).exists():
                raise ConfigError(
                    f"{place} holds a model that was not trained there, and training would overwrite it; name another "
                    "folder with --output"
                )
        if self.source.target:
            answers = self.source.answers if self.source.read() or self.source.synthesised else None
            check_answered(self.source.folder / ANSWERS, self.source.target, answers)
        _check_texts(self.source)

    def check_model(self, llm: LLM, console: Console) -> None:
        """Checks that need the model.

        Args:
            llm: the target.
            console: prints a warning if the disk may become full.

        Raises:
            ModelError: the head to start from cannot be read.
            ConfigError: an option or the head to start from does not fit the target, or the disk is too full.
            TrainingError: the output folder holds a training that cannot be resumed.
        """
        check_start(self.recipe, self.settings.start_from, self.output, llm.engine.target)
        ends = len(llm.tokenizer.eos_ids) if llm.tokenizer else 0
        if 0 < self.data.vocabulary < ends:
            raise ConfigError(
                f"--vocabulary {self.data.vocabulary} is too small: it must contain the {ends} tokens that end a "
                "text of this model"
            )
        self._check_state(llm)
        self._check_room(llm, console)

    def _check_state(self, llm: LLM) -> None:
        """Refuse a training that cannot resume."""
        target, settings = llm.engine.target, self.settings
        read = self.recipe.layers_read(target)
        facts = known_facts(self.source, self.data, read, target, started=bool(settings.start_from))
        facts |= {"workers": self.workers, **start_facts(self.recipe, settings.start_from, target)}
        for place in self.places:
            folder = place / TRAINING
            if (state := load_state(folder / STATE)) is None:
                continue
            check_identity(folder, state["identity"], identity(self.recipe, settings, facts), self.recipe, whole=False)
            check_precision(folder, state["progress"]["precision"], settings.precision)
            if not self._texts_to_come(llm, place, state["identity"]):
                now = text_facts(self.source, Texts.of(self.source, self.data))
                check_identity(folder, state["identity"], now, self.recipe, whole=False)

    def _texts_to_come(self, llm: LLM, place: Path, before: Mapping[str, Any]) -> bool:
        """Whether texts are missing; refuses new ones if all texts of the started training are there.

        If there are fewer, the folder of texts was lost and is made again.
        """
        source, missing = self.source, to_answer(llm, self.source, self.data)
        new, judging = source.to_make(), sum(prompt.for_validation for prompt in missing)
        to_train = len(source.read()) if source.online else len(_answers(source, judging=False))
        to_judge = min(self.data.held_out, len(_answers(source, judging=True)))
        grown = (new or len(missing) > judging) and to_train >= _count(before, TEXTS)
        if grown or (judging and to_judge >= _count(before, HELD_OUT)):
            left = [f"{new:,} prompts to make"] * bool(new) + [f"{len(missing):,} to answer"] * bool(missing)
            starts = f", and --start-from {place} to continue from its weights"
            raise TrainingError(
                f"{place / TRAINING} holds a training on the earlier texts, and now there are {' and '.join(left)}; "
                f"give another --output with --data-folder {source.folder}"
                f"{starts if self.recipe.product.starts_from_heads else ''}"
            )
        return bool(new or missing)

    def _check_room(self, llm: LLM, console: Console) -> None:
        """Refuse a disk that will become full; warn about one that may."""
        source, weights, free = self.source, _COPIES * self._weight_bytes(llm), _free(self.output)
        if weights > free:
            raise ConfigError(
                f"the training's weights take {_size(weights)}, but {_size(free)} are free for {self.output}; free "
                "some space, or name a folder on another disk with --output"
            )
        rows = hidden_rows(llm, self.recipe, source, self.data)
        longest = min(source.answers.longest_prompt + source.answers.max_tokens, llm.engine.target.context_length)
        unanswered = 0 if source.online else source.to_make() + len(to_answer(llm, source, self.data))
        known = [] if source.online else _answers(source)
        sure, most = rows.bytes_to_come(known, 0), rows.bytes_to_come(known, unanswered * longest)
        free = _free(source.folder)
        if sure > free:
            fitting = max(0.01, (rows.bytes + 0.9 * free) / 2e9)
            raise ConfigError(
                f"the hidden rows of the answers take {_size(sure)} more, but {_size(free)} are free for "
                f"{source.folder}; free some space, give --buffer-gb {fitting:.2f}, or name another --data-folder"
            )
        if most > free:
            console.print(
                f"disk: hidden rows may take {_size(most)}, but {_size(free)} are free for {source.folder}; "
                "--buffer-gb limits them"
            )

    def _weight_bytes(self, llm: LLM) -> int:
        """Bytes of the weights to train; 0 if they come from the target's files."""
        target, start = llm.engine.target, self.settings.start_from
        if not self.recipe.product.starts_from_heads:
            return 0
        if start:
            head = load_start(self.recipe, Path(start), target)
        else:
            size = min(self.data.vocabulary or target.vocabulary, target.vocabulary)
            head = self.recipe.head(target, torch.arange(size), 0)
        return sum(weight.numel() * weight.element_size() for weight in head.state_dict().values())


def _check_folder(folder: Path, flag: str) -> None:
    place = _existing(folder)
    if not place.is_dir():
        raise ConfigError(f"{folder} cannot be created, because {place} is a file; name another folder with {flag}")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} cannot be written: no permission in {place}; name another folder with {flag}")


def _check_texts(source: TextSource) -> None:
    """Refuse texts that leave nothing to train on or to judge by."""
    if source.synthesised < 0:
        raise ConfigError(f"--synthesise must be 0 or more, not {source.synthesised}")
    prompts, new = source.read(), source.to_make()
    judging, answers = sum(prompt.for_validation for prompt in prompts), len(_answers(source))
    if not prompts and not new and not answers:
        raise ConfigError(
            f"there is nothing to train on: {source.folder} has no answers; name prompts with --data FILE, or let the "
            "model write some with --synthesise 2000"
        )
    there = max(judging, len(_answers(source, judging=True)))
    if not new and prompts and not there:
        raise ConfigError(NO_HELD_OUT.format(count=len(prompts)))
    if not new and len(prompts) == judging and not _answers(source, judging=False):
        raise ConfigError(
            f"all {judging} prompts are held out, and none is left to train on; give more prompts with --data"
        )
    if new and there + VALIDATION_SHARE * new < LEAST_JUDGING:
        least = source.synthesised - new + round((LEAST_JUDGING - there) / VALIDATION_SHARE, 6)
        raise ConfigError(
            f"--synthesise {source.synthesised} gives too few held-out texts, about "
            f"{there + VALIDATION_SHARE * new:.1f}, because {100 * VALIDATION_SHARE:.0f} in 100 prompts are held out; "
            f"ask for {math.ceil(least)} or more"
        )


def _answers(source: TextSource, *, judging: bool | None = None) -> list[Example]:
    file = source.folder / ANSWERS
    return read_answers(file, validation=judging) if file.exists() else []


def _count(before: Mapping[str, Any], name: str) -> float:
    """The number of texts a training started with; infinite for a state of an earlier version."""
    return int(before[name].split()[0]) if name in before else math.inf


def _existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    whole = folder.absolute()
    return next(place for place in (whole, *whole.parents) if place.exists())


def _free(folder: Path) -> int:
    return shutil.disk_usage(_existing(folder)).free


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"
