"""``outrider bench``: measure what speculation gains, method against method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from outrider.cli import group, output
from outrider.cli.numbers import WHOLE, WHOLE_OR_NONE
from outrider.cli.options import METHOD, MethodFlags, ModelFlags
from outrider.drafters import AUTOMATIC
from outrider.drafters.base import DrafterConfig
from outrider.drafters.none import NoDraft
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.bench.runner import Arm
    from outrider.bench.session import BenchRequest


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WorkFlags:
    """What to run."""

    prompts: Path | None = None
    """File of prompts: JSON with "prompt", "text", "turns", "messages" or "conversations", or plain text with one
    question per line. Default: a built-in set of six kinds."""
    max_tokens: Annotated[int, WHOLE] = 128
    """Maximum tokens per output."""
    select: str | None = None
    """Run only the prompts for which this expression in the row number i is true, such as i%8==0."""
    limit: Annotated[int | None, WHOLE_OR_NONE] = None
    """Run at most this many prompts."""
    repeat: Annotated[int, WHOLE] = 1
    """Runs of each prompt, method and setting, each with its own seed."""
    seed: Annotated[int, WHOLE] = 0
    """Seed of sampled texts and of the order in which methods run."""
    chat: Annotated[bool | None, Parameter(negative="--raw")] = None
    """Apply the chat template or not; default: apply it if the model has one."""

    def request(
        self, model: ModelFlags, arms: Sequence[Arm], temperatures: Sequence[float], top_ps: Sequence[float]
    ) -> BenchRequest:
        """These flags as a request to a measuring session.

        Raises:
            ConfigError: a value out of range.
        """
        from outrider.bench.session import BenchRequest  # takes seconds; --help should answer at once

        return BenchRequest(
            model=model.model,
            options=model.options,
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
    """Which methods to run, and how to sample."""

    algorithms: str = "none,ngram,suffix,auto"
    """Methods to compare, separated by commas. auto is the default method; it is skipped if it equals another one in
    the list. Plain decoding (none) always runs as the baseline."""
    temperature: str = "0"
    """Temperatures, separated by commas; 0 is greedy."""
    top_p: str = "1"
    """Top-p values, separated by commas; each is combined with every temperature above 0."""

    def request(self, model: ModelFlags, work: WorkFlags, methods: MethodFlags) -> BenchRequest:
        """The flags as a checked request.

        Raises:
            ConfigError: a value that cannot be read or is out of range.
        """
        names = [name.strip() for name in self.algorithms.split(",") if name.strip()]
        arms = method_arms(methods, names, model.model)
        temperatures, top_ps = _numbers("--temperature", self.temperature), _numbers("--top-p", self.top_p)
        return work.request(model, arms, temperatures, top_ps)


GRID: Final = GridFlags()
"""Defaults of the signature."""


def method_arms(methods: MethodFlags, algorithms: Sequence[str], model: str) -> tuple[Arm, ...]:
    """An arm for each method named, plain decoding first; what ``auto`` stands for is run once, named or not.

    Raises:
        ConfigError: an unknown method, a method named twice, or an option out of bounds.
    """
    from outrider.bench.runner import Arm
    from outrider.bench.session import plain_arm  # takes seconds, too

    plain = plain_arm(methods.verifier)
    found: dict[DrafterConfig, Arm] = {}
    automatic = [name.lower() == AUTOMATIC for name in algorithms]
    for name, chosen in sorted(zip(algorithms, automatic, strict=True), key=lambda pair: pair[1]):
        plan = methods.plan(name, model, ignore_foreign=True)
        if plan.config == NoDraft():
            continue
        twice = found.get(plan.config)
        if twice is not None and twice.automatic >= chosen:
            raise ConfigError(f"--algorithms names {name} twice")
        arm = twice or Arm(plan.config.method, plan.config, plan.verifier)
        found[plan.config] = replace(arm, automatic=chosen)
    methods.check_used([arm.config for arm in (plain, *found.values())])
    return (plain, *found.values())


def bench(
    *,
    model: ModelFlags,
    work: WorkFlags = WORK,
    grid: GridFlags = GRID,
    methods: MethodFlags = METHOD,
    json_file: Annotated[Path | None, Parameter(name="--json", metavar="[FILE]")] = None,
    html: Path | None = None,
) -> int:
    """Measure what speculation gains. Methods take turns on each prompt, in shuffled order.

    Args:
        model: which model, and how to run it.
        work: what to run.
        grid: which methods to run, and how to sample.
        methods: the acceptance rule and the methods' options; each method uses the options that it has.
        json_file: Write all results to this file; without a file, print a summary as JSON on the last line.
        html: Write a page with plots to this file.
    """
    output.check_writable(json_file, html)
    request = grid.request(model, work, methods)
    model.use_threads()
    result = output.finite(_measure(request))
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
