"""``outrider train``: make a drafter for your own model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar, cast, get_type_hints

from cyclopts import Parameter
from rich.console import Console

from outrider.cli import output
from outrider.errors import ConfigError
from outrider.train.gather import DataConfig
from outrider.train.recipes.base import Recipe, recipe_class, trainable
from outrider.train.regenerate import AnswerConfig
from outrider.train.settings import Settings
from outrider.train.synthesise import SynthesisConfig

if TYPE_CHECKING:
    from outrider.train.workers import Workers

T = TypeVar("T")


class _Flag(NamedTuple):
    """One flag, and the option it sets."""

    owner: str
    """What has the option: a method, or a part of the training."""
    field: str
    kind: Any
    help: str
    default: Any


def _parts() -> dict[str, tuple[str, type]]:
    """Everything that has options: its name, what its flags begin with, and its class."""
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
        texts.setdefault(flag.help, []).append(f"{flag.owner}: {flag.default}")
    return " ".join(f"{text} ({'; '.join(where)})" for text, where in texts.items())


def _with_flags(base: type[T]) -> type[T]:
    fields = []
    for name, flags in _flags().items():
        parameter = Parameter(name=f"--{name}", help=_help(flags), negative="")
        kind = Annotated[flags[0].kind | None, parameter]  # type: ignore[valid-type]
        fields.append((name.replace("-", "_"), kind, dataclasses.field(default=None)))
    made = dataclasses.make_dataclass(base.__name__, fields, bases=(base,), frozen=True, kw_only=True)
    made.__doc__, made.__module__ = base.__doc__, base.__module__
    return cast(type[T], made)


@Parameter(name="*")
@_with_flags
@dataclass(frozen=True, kw_only=True)
class TrainingFlags:
    """Options of the data, the loop and the methods."""

    def of(self, owner: str) -> Any:
        """The options of one owner, from what was given."""
        _, kind = _parts()[owner]
        values = {flag.field: value for flag, value in self._given() if flag.owner == owner}
        return kind(**values)

    def check_used(self, method: str) -> None:
        """Refuse an option of another method.

        Raises:
            ConfigError: naming it.
        """
        used = {method, "settings", "data", "synthesis", "answers"}
        for name, flags in _flags().items():
            if getattr(self, name.replace("-", "_")) is not None and not used & {flag.owner for flag in flags}:
                raise ConfigError(f"--{name} is not an option of training {method}, but of {flags[0].owner}")

    def _given(self) -> Iterator[tuple[_Flag, Any]]:
        for name, flags in _flags().items():
            value = getattr(self, name.replace("-", "_"))
            if value is not None:
                yield from ((flag, value) for flag in flags)


NOTHING: Final = TrainingFlags()


def train(  # noqa: PLR0913 - each is a choice of the user's
    method: str,
    *,
    model: str,
    output_folder: Annotated[Path, Parameter(name="--output")],
    data: tuple[Path, ...] = (),
    synthesise: int = 0,
    data_folder: Path | None = None,
    online: Annotated[bool, Parameter(negative="")] = False,
    backend: str = "auto",
    flags: TrainingFlags = NOTHING,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Train a drafter for a model on the model's own answers, and say what it buys.

    Prompts come from files, or from the model itself; answers are always the model's.  Everything is kept and taken up
    again where an earlier run was ended.

    Args:
        method: what to train.
        model: the target.
        output_folder: gets the trained head, the record of the training and its curve.
        data: file of prompts: JSON lines or an array of {"prompt"}, {"text"}, {"turns"}, {"messages"} or
            {"conversations"}, or plain text with one question a line; may be given more than once.
        synthesise: have the model make so many prompts itself.
        data_folder: where prompts, answers and hidden rows are kept, for other trainings too; by default OUTPUT/data.
        online: answer prompts while training runs through them; of the answers the disk then holds those that judge the
            head, with hidden rows, and the first 256 to train on, whose tokens make the draft vocabulary.
        backend: what runs the model.
        flags: options of the data, the loop and the method.
        as_json: print one JSON object as the last line.
    """
    from outrider.llm import LLM
    from outrider.target.loading import find
    from outrider.train.bought import bought
    from outrider.train.gather import Source, gather, hidden_rows
    from outrider.train.run import train as run
    from outrider.train.start import check_start

    recipe: Recipe = flags.of(recipe_class(method).method)
    flags.check_used(recipe.method)
    settings, sizes = flags.of("settings"), flags.of("data")
    working = _together(online=online)
    console = output.screen() if working.rank == 0 else Console(quiet=True)
    name, making = find(model)[1], {"synthesis": flags.of("synthesis"), "answers": flags.of("answers")}
    place = data_folder or output_folder / "data"
    source = Source(place, target=name, prompts=data, synthesised=synthesise, online=online, **making)
    llm = LLM(model, speculation="none", backend=backend)
    check_start(recipe, settings.start_from, output_folder, llm.engine.target)
    with working.first_alone():
        if working.rank == 0:
            gather(llm, source, console, hidden_rows(llm, recipe, source, sizes))
    trained = run(llm, recipe, source, output_folder, target_name=name, data=sizes, settings=settings, console=console)
    if working.rank:
        return 0
    comparison = bought(llm, recipe.product.arms(recipe.method, output_folder), source.folder, console)
    if as_json:
        apart = {name: {"length": one.accepted_length, "rates": one.rates} for name, one in trained.apart.items()}
        output.write_json({"training": trained.findings.summary(), "apart": apart, "bought": comparison})
    return 0


def _together(*, online: bool) -> Workers:
    """The processes that train.

    Raises:
        ConfigError: several would answer the same prompts while they train.
    """
    from outrider.train.workers import workers

    working = workers()
    if online and working.count > 1:
        raise ConfigError(
            f"each of {working.count} processes would answer every prompt; leave out --online, or train in one process"
        )
    return working
