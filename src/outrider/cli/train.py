"""``outrider train``: train a drafter for your own model."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar, cast, get_type_hints

from cyclopts import Parameter
from rich.console import Console

from outrider.cli import help as groups
from outrider.cli import output
from outrider.cli.numbers import WHOLE, whole_number
from outrider.errors import ConfigError
from outrider.train.data.prompt_store import PROMPTS
from outrider.train.data.regenerate import AnswerConfig
from outrider.train.data.synthesise import SynthesisConfig
from outrider.train.recipes.base import Recipe, recipe_class, trainable
from outrider.train.settings import Settings
from outrider.train.training_data import DataConfig

if TYPE_CHECKING:
    from outrider.train.loop.workers import Workers

T = TypeVar("T")
_GROUPS: Final = {
    "settings": groups.TRAINING,
    "data": groups.DATA,
    "synthesis": groups.SYNTHESIS,
    "answers": groups.ANSWERS,
}
"""Groups of the help, by the owner of their options."""


class _Flag(NamedTuple):
    """One flag, and the option it sets."""

    owner: str
    """Who has the option: a method, or a part of the training."""
    field: str
    kind: Any
    help: str
    default: Any


def _parts() -> dict[str, tuple[str, type]]:
    """Everything that has options: name, prefix of its flags, and class."""
    parts: dict[str, tuple[str, type]] = {
        "settings": ("", Settings),
        "data": ("", DataConfig),
        "synthesis": ("prompt-", SynthesisConfig),
        "answers": ("answer-", AnswerConfig),
    }
    return parts | {name: ("", recipe_class(name)) for name in trainable()}


def _flags() -> dict[str, list[_Flag]]:
    table: dict[str, list[_Flag]] = {}
    for owner, (prefix, kind) in _parts().items():
        hints = get_type_hints(kind)
        for item in dataclasses.fields(kind):
            if item.metadata.get("help"):
                name = f"{prefix}{item.name.replace('_', '-')}"
                flag = _Flag(owner, item.name, hints[item.name], item.metadata["help"], item.default)
                table.setdefault(name, []).append(flag)
    return table


def _help(flags: list[_Flag]) -> str:
    texts: dict[str, list[str]] = {}
    for flag in flags:
        owner = "" if flag.owner in _GROUPS else f"{flag.owner}: "
        texts.setdefault(flag.help, []).append(f"{owner}{'none' if flag.default == '' else flag.default}")
    return " ".join(f"{text} [{'; '.join(where)}]" for text, where in texts.items())


def _with_flags(base: type[T]) -> type[T]:
    fields = []
    for name, flags in _flags().items():
        kind, group = flags[0].kind, _GROUPS.get(flags[0].owner, groups.METHODS)
        reader = whole_number if kind is int else None
        parameter = Parameter(name=f"--{name}", help=_help(flags), negative="", group=group, converter=reader)
        hint = Annotated[kind | None, parameter]  # type: ignore[valid-type]
        fields.append((name.replace("-", "_"), hint, dataclasses.field(default=None)))
    made = dataclasses.make_dataclass(base.__name__, fields, bases=(base,), frozen=True, kw_only=True)
    made.__doc__, made.__module__ = base.__doc__, base.__module__
    return cast(type[T], made)


@Parameter(name="*")
@_with_flags
@dataclass(frozen=True, kw_only=True)
class TrainingFlags:
    """Options of the data, the training loop and the methods."""

    def of(self, owner: str, before: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """The options of one owner: its config with the values of the command line.

        Args:
            owner: see :func:`_parts`.
            before: values that replace the defaults.
        """
        _, kind = _parts()[owner]
        return kind(**{**before, **self._values(owner)})

    def taken_over(self, owner: str, before: Mapping[str, Any]) -> list[str]:
        """The values of ``before`` that take effect and differ from the defaults, written as flags."""
        prefix, kind = _parts()[owner]
        defaults = {item.name: item.default for item in dataclasses.fields(kind)}
        values = self._values(owner)
        return [
            f"--{prefix}{name.replace('_', '-')} {value}"
            for name, value in before.items()
            if name not in values and value != defaults[name]
        ]

    def _values(self, owner: str) -> dict[str, Any]:
        return {flag.field: value for flag, value in self._given() if flag.owner == owner}

    def check_used(self, method: str, *, prompts: bool, synthesise: bool) -> None:
        """Refuse an option that would change nothing.

        Args:
            method: the method to train.
            prompts: whether there are prompts to answer.
            synthesise: whether the model writes prompts.

        Raises:
            ConfigError: there is one; the message names it and what it belongs to.
        """
        used = {method, *_GROUPS}
        for name, flags in _flags().items():
            if getattr(self, name.replace("-", "_")) is None:
                continue
            owners = {flag.owner for flag in flags}
            if not used & owners:
                raise ConfigError(f"--{name} is not an option of {method} but of {flags[0].owner}; leave it out")
            if owners == {"synthesis"} and not synthesise:
                raise ConfigError(f"--{name} has an effect only with --synthesise N")
            if owners == {"answers"} and not prompts:
                raise ConfigError(f"--{name} has an effect only with --data or --synthesise N")
        if self.of("settings").start_from and getattr(self, "vocabulary", None) is not None:
            raise ConfigError(
                "--vocabulary has no effect with --start-from, because a head keeps its draft vocabulary; leave it out"
            )

    def _given(self) -> Iterator[tuple[_Flag, Any]]:
        for name, flags in _flags().items():
            value = getattr(self, name.replace("-", "_"))
            if value is not None:
                yield from ((flag, value) for flag in flags)


NOTHING: Final = TrainingFlags()


def train(  # noqa: PLR0913 - each is a choice of the user's
    method: Annotated[str, Parameter(help=f"Method to train: {', '.join(trainable())}.")],
    *,
    model: str,
    output_folder: Annotated[Path, Parameter(name="--output")],
    data: Annotated[tuple[Path, ...], Parameter(negative="")] = (),
    synthesise: Annotated[int, WHOLE] = 0,
    data_folder: Path | None = None,
    online: Annotated[bool, Parameter(negative="")] = False,
    backend: str = "auto",
    flags: TrainingFlags = NOTHING,
    as_json: Annotated[bool, output.AS_JSON] = False,
) -> int:
    """Train a drafter for a model on the model's own answers, and measure the speedup that it brings.

    Prompts come from files or from the model itself; answers are always the model's.  Run the same command again to
    continue an interrupted training.

    Args:
        method: the method to train.
        model: Target model: folder, .gguf file, hub id or name.
        output_folder: Folder for the trained head, the training record and the curve.
        data: File of prompts, as for bench; repeatable.
        synthesise: Let the model write this many prompts; those of earlier runs count.
        data_folder: Folder for prompts, answers and hidden rows, which several trainings may share; default:
            OUTPUT/data.
        online: Generate answers during training and store only a few of them; saves disk space.
        backend: Backend of the target: native, hf or auto.
        flags: options of the data, the loop and the method.
        as_json: Print one JSON object on standard output, and everything else on standard error.
    """
    recipe: Recipe = flags.of(recipe_class(method).method)
    place = data_folder or output_folder / "data"
    prompts = bool(data or synthesise) or (place / PROMPTS).exists()
    flags.check_used(recipe.method, prompts=prompts, synthesise=bool(synthesise))
    working = _together(online=online)
    console = (output.side() if as_json else output.screen()) if working.rank == 0 else Console(quiet=True)
    try:
        with _without_warnings():
            summary = _train(
                recipe,
                _Asked(model, output_folder, backend, flags, working, console),
                place,
                prompts=data,
                synthesised=synthesise,
                online=online,
            )
    except KeyboardInterrupt:
        console.print("stopped; run the same command to continue")
        raise
    if working.rank == 0 and as_json:
        output.write_json(summary)
    return 0


class _Asked(NamedTuple):
    """What one command asks for, except its texts."""

    model: str
    output: Path
    backend: str
    flags: TrainingFlags
    working: Workers
    console: Console


def _train(recipe: Recipe, asked: _Asked, place: Path, **texts: Any) -> dict[str, Any]:
    """Gather data, train and measure.

    Returns:
        The JSON object; empty on every worker but the first.
    """
    from outrider.llm import LLM
    from outrider.models.loading import find
    from outrider.train.bars import waiting
    from outrider.train.checks import TrainingPlan
    from outrider.train.data.prompt_store import prompt_options
    from outrider.train.data.regenerate import answer_options
    from outrider.train.evaluation.payoff import measure_payoff
    from outrider.train.loop.resume import TRAINING
    from outrider.train.run import train as run
    from outrider.train.training_data import ANSWERS, TextSource

    settings, sizes, console = asked.flags.of("settings"), asked.flags.of("data"), asked.console
    before = {"synthesis": prompt_options(place), "answers": answer_options(place / ANSWERS)}
    if same := [flag for part, options in before.items() for flag in asked.flags.taken_over(part, options)]:
        console.print(f"as before in {place}: {' '.join(same)}")
    name = find(asked.model)[1]
    making = {part: asked.flags.of(part, options) for part, options in before.items()}
    source = TextSource(place, target=name, **texts, **making)
    plan = TrainingPlan(recipe, source, sizes, settings, asked.output, asked.working.count)
    first = asked.working.rank == 0  # which writes what others would be reading meanwhile
    if first:
        plan.check_files()
    with waiting(f"loading {name}", console):
        llm = LLM(asked.model, speculation="none", backend=asked.backend)
    if first:
        plan.check_model(llm, console)
    outcome = run(llm, recipe, source, asked.output, target_name=name, data=sizes, settings=settings, console=console)
    if not first:
        return {}
    payoff = measure_payoff(llm, recipe.product.arms(recipe.method, asked.output), outcome.texts.held_out, console)
    outcome = dataclasses.replace(outcome, model=asked.model, payoff=payoff)
    outcome.findings.write(asked.output / TRAINING, outcome.to_json())
    for line in outcome.lines():
        console.print(line)
    return {"training": outcome.findings.summary()} | outcome.to_json()


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Hide warnings of libraries, which the user cannot act on; -W shows them."""
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
        yield


def _together(*, online: bool) -> Workers:
    """The processes that train.

    Raises:
        ConfigError: ``--online`` with several processes.
    """
    from outrider.train.loop.workers import workers

    working = workers()
    if online and working.count > 1:
        raise ConfigError(f"--online works in one process, not {working.count}: leave it out, or train in one process")
    return working
