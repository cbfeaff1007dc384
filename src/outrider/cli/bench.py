"""``outrider bench``: measure what speculation gains, method against method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from outrider.cli import group, output
from outrider.cli.options import METHOD, MethodFlags, ModelFlags
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.bench.runner import Arm
    from outrider.bench.session import BenchRequest


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WorkFlags:
    """What is run."""

    prompts: Path | None = None
    """File of prompts: JSON lines or an array of {"prompt"}, {"text"}, {"turns"}, {"messages"} or {"conversations"}, or
    plain text with one question a line; by default a few built-in ones of each kind."""
    max_tokens: int = 128
    """Most tokens of each output."""
    select: str | None = None
    """Which rows take part, as an expression in the row's number i, such as i%8==0."""
    limit: int | None = None
    """Take at most this many of them."""
    repeat: int = 1
    """Runs of each prompt, method and setting, each with its own seed."""
    seed: int = 0
    """Seed of the sampled texts and of the order of the methods."""
    chat: Annotated[bool | None, Parameter(negative="--raw")] = None
    """Put conversations through the chat template, as is done by default where there is one; --raw does not."""

    def request(
        self, model: ModelFlags, arms: Sequence[Arm], temperatures: Sequence[float], top_ps: Sequence[float]
    ) -> BenchRequest:
        """The same for a session.

        Raises:
            ConfigError: a value out of range.
        """
        from outrider.bench.session import BenchRequest  # takes seconds, which --help need not wait for

        return BenchRequest(
            model=model,
            arms=tuple(arms),
            prompts=self.prompts,
            temperatures=tuple(temperatures),
            top_ps=tuple(top_ps),
            max_tokens=self.max_tokens,
            select=self.select,
            limit=self.limit,
            repeats=self.repeat,
            seed=self.seed,
            chat=self.chat,
        )


WORK: Final = WorkFlags()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GridFlags:
    """Which methods are run, and how they sample."""

    algorithms: str = "none,ngram,suffix,auto"
    """Methods, separated by commas; auto is what you get by default, run once where it is another one of them. Plain
    decoding always takes part, for the others are measured by it."""
    temperature: str = "0"
    """Temperatures, separated by commas."""
    top_p: str = "1"
    """Top-p values, separated by commas; every temperature but 0 is run with each."""

    def request(self, model: ModelFlags, work: WorkFlags, methods: MethodFlags) -> BenchRequest:
        """What is to be measured, read and checked.

        Raises:
            ConfigError: a value that cannot be read or is out of range.
        """
        from outrider.bench.session import method_arms  # likewise

        names = [name.strip() for name in self.algorithms.split(",") if name.strip()]
        arms = method_arms(methods, names, model.model)
        temperatures, top_ps = _numbers("--temperature", self.temperature), _numbers("--top-p", self.top_p)
        return work.request(model, arms, temperatures, top_ps)


GRID: Final = GridFlags()
"""Defaults of the signature."""


def bench(
    *,
    model: ModelFlags,
    work: WorkFlags = WORK,
    grid: GridFlags = GRID,
    methods: MethodFlags = METHOD,
    json_file: Annotated[Path | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
    html: Path | None = None,
) -> int:
    """Measure what speculation gains: every prompt under every method before the next prompt, in shuffled order.

    Args:
        model: which model, and how it is run.
        work: what is run.
        grid: which methods are run, and how they sample.
        methods: the acceptance rule and the methods' options; each method takes those it has.
        json_file: write everything to this file; - prints all but the single runs as the last line instead.
        html: write a page with plots to this file.
    """
    output.check_writable(json_file, html)
    result = output.finite(_measure(grid.request(model, work, methods)))
    _show(result, to_stdout=json_file == Path("-"))
    output.write_result(result, json_file)
    if html is not None:
        from outrider.bench.page import page

        output.write_text(html, page(result))
    return 0


app = group("bench", bench)


def _numbers(flag: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{flag} takes numbers separated by commas, not {text!r}") from None


def _measure(request: BenchRequest) -> dict[str, Any]:
    from outrider.bench.session import measure

    with output.progress("measuring") as (begin, advance):
        return measure(request, begin, advance).result


def _show(result: dict[str, Any], *, to_stdout: bool) -> None:
    from outrider.bench.table import show

    show(result, output.side() if to_stdout else output.screen())
