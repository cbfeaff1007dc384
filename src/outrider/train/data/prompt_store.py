"""Synthetic prompts in a folder: a growing file, and a second file with their options and progress."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from outrider.errors import ConfigError
from outrider.files import write_whole
from outrider.llm import LLM
from outrider.train.bars import bar
from outrider.train.data.decontaminate import EvaluationPrompts
from outrider.train.data.prompts import TrainingPrompt, training_prompts, write_prompts
from outrider.train.data.synthesise import Synthesis, SynthesisConfig, in_words

PROMPTS: Final = "prompts.jsonl"
MADE: Final = "prompts.made.json"
_COUNT: Final = "synthesise"
_TRIED: Final = "tried"
_TARGET: Final = "target"
_SAVED_EVERY: Final = 10.0
"""Seconds between saves."""


@dataclass(frozen=True)
class SyntheticPrompts:
    """The prompts in a folder that its target wrote."""

    prompts: tuple[TrainingPrompt, ...] = ()
    """In the order in which they were made."""
    others: tuple[TrainingPrompt, ...] = ()
    """The user's own prompts, after them in the same file."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The target and the options that made them."""

    @classmethod
    def of(cls, folder: Path) -> SyntheticPrompts:
        """Read a folder, which may be empty.

        Raises:
            ConfigError: a file is damaged or cannot be read.
        """
        path, facts = folder / PROMPTS, _facts(folder / MADE)
        prompts = read_cached([path]) if path.exists() else []
        count = facts.get(_COUNT, 0)
        return cls(tuple(prompts[:count]), tuple(prompts[count:]), facts)

    def check(self, folder: Path, config: SynthesisConfig, count: int, target: str) -> None:
        """Refuse prompts that were made with other options.

        Raises:
            ConfigError: an option differs, or the target, if it has to make more.
        """
        for name, value in _deciding(config).items():
            if (earlier := self.facts.get(name, value)) != value:
                flag = f"--prompt-{name.replace('_', '-')}"
                raise ConfigError(
                    f"the prompts in {folder / PROMPTS} were made with {flag} {earlier}, not {value}; give "
                    f"{flag} {earlier}, or another --data-folder"
                )
        before = self.facts.get(_TARGET, target)
        if count > len(self.prompts) and target and before != target:
            raise ConfigError(
                f"the prompts in {folder / PROMPTS} were made by {before}, so {target} cannot add more; leave out "
                "--synthesise, or name another --data-folder"
            )


def prompt_options(folder: Path) -> dict[str, Any]:
    """The options of a folder's prompts; empty if no prompt was made.

    Raises:
        ConfigError: the file of options is damaged.
    """
    facts = _facts(folder / MADE)
    return {name: facts[name] for name in _deciding(SynthesisConfig()) if name in facts}


def read_cached(paths: Sequence[Path]) -> list[TrainingPrompt]:
    """Read :func:`~outrider.train.data.prompts.training_prompts`, with a cache until a file changes.

    Raises:
        ConfigError: a file cannot be read, is empty, or holds evaluation prompts.
    """
    prompts = {prompt.key: prompt for path in paths for prompt in _read(path, *_stamp(path))}
    return list(prompts.values())


@lru_cache(maxsize=16)
def _read(path: Path, changed: int, size: int) -> tuple[TrainingPrompt, ...]:
    return tuple(training_prompts([path]))


def _stamp(path: Path) -> tuple[int, int]:
    """A file's time of change and size; zeros if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def synthesise_prompts(
    llm: LLM,
    folder: Path,
    count: int,
    config: SynthesisConfig,
    *,
    target: str = "",
    console: Console | None = None,
    held_out: EvaluationPrompts | None = None,
) -> list[TrainingPrompt]:
    """Let the target write prompts until a folder holds ``count``; the file is saved regularly.

    Args:
        llm: the target.
        folder: an existing folder.
        count: the number of prompts; if there are more, nothing is made.
        config: options of the prompts.
        target: the target's name.
        console: where to show progress.
        held_out: evaluation prompts; None takes :func:`~outrider.train.data.decontaminate.evaluation_prompts`.

    Returns:
        Every prompt that was made, now and before.

    Raises:
        ModelError, ConfigError: see :meth:`SyntheticPrompts.check` and
            :meth:`outrider.train.data.synthesise.Synthesis.up_to`; or the folder cannot be written.
    """
    known = SyntheticPrompts.of(folder)
    known.check(folder, config, count, target)
    begun = len(known.prompts)
    if begun >= count:
        if console is not None:
            more = f"; all are used, although --synthesise is {count:,}" if begun > count else ""
            console.print(f"prompts: {begun:,} were made before{more}")
        return list(known.prompts)
    facts, saved = {_TARGET: target} | _deciding(config), time.monotonic()
    with bar("making prompts", count - begun, console) as tick:

        def tell(sampled: int) -> None:
            tick(len(synthesis.made) - begun, f"{sampled:,} turns sampled, {synthesis.dropped.total():,} dropped")

        tried = known.facts.get(_TRIED)
        synthesis = Synthesis(llm, config, before=known.prompts, tried=tried, held_out=held_out, tell=tell)
        with closing(synthesis.up_to(count)) as new:
            for _ in new:
                if time.monotonic() - saved >= _SAVED_EVERY:
                    _save(folder, synthesis, known.others, facts)
                    saved = time.monotonic()
    _save(folder, synthesis, known.others, facts)
    if console is not None:
        before = f", in addition to {begun:,}" if begun else ""
        console.print(f"prompts: {count - begun:,} made{before}; dropped: {in_words(synthesis.dropped)}")
    return synthesis.made


def _save(folder: Path, synthesis: Synthesis, others: Sequence[TrainingPrompt], facts: Mapping[str, Any]) -> None:
    """Write the prompts, then their count, so that an interrupted save makes its last prompts again."""
    keys = {prompt.key for prompt in synthesis.made}
    path = folder / PROMPTS
    counts = {_COUNT: len(synthesis.made), _TRIED: dict(synthesis.tried)}
    try:
        write_prompts(path, [*synthesis.made, *(prompt for prompt in others if prompt.key not in keys)])
        write_whole(folder / MADE, json.dumps(counts | dict(facts)) + "\n")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror or error}); free some space and run the same command again, "
            "which keeps the prompts so far"
        ) from error


def _deciding(config: SynthesisConfig) -> dict[str, Any]:
    """The options that determine the prompts; the number sampled at once changes only the speed."""
    return {name: value for name, value in asdict(config).items() if name != "abreast"}


def _facts(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(facts, dict) or not isinstance(facts.get(_COUNT), int):
            raise ValueError
    except (OSError, ValueError):
        raise ConfigError(
            f"{path} is damaged, so the options of the prompts beside it are lost; remove the file to use them like "
            "prompts of your own"
        ) from None
    return facts
