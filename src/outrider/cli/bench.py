"""``outrider bench``: measure what speculation gains, method against method."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.progress import Progress

from outrider.cli import group, output
from outrider.cli.options import METHOD, MethodFlags, ModelFlags
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.bench.session import Request


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WorkFlags:
    """What is run."""

    prompts: Path
    """JSONL file of prompts, {"id", "category", "turns"} a line; the first turn is asked."""
    algorithms: str = "none,ngram"
    """Methods, separated by commas; plain decoding always takes part, for the others are measured by it."""
    temperature: str = "0"
    """Temperatures, separated by commas."""
    top_p: str = "1"
    """Top-p values, separated by commas; every temperature but 0 is run with each."""
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
    """Put prompts through the chat template, as is done by default where there is one; --raw does not."""

    def request(self, model: ModelFlags, methods: MethodFlags) -> Request:
        """The same, read and checked.

        Raises:
            ConfigError: a value that cannot be read or is out of range.
        """
        from outrider.bench.session import Request  # takes seconds, which --help need not wait for

        return Request(
            model=model,
            methods=methods,
            prompts=self.prompts,
            algorithms=tuple(name.strip() for name in self.algorithms.split(",") if name.strip()),
            temperatures=_numbers("--temperature", self.temperature),
            top_ps=_numbers("--top-p", self.top_p),
            max_tokens=self.max_tokens,
            select=self.select,
            limit=self.limit,
            repeats=self.repeat,
            seed=self.seed,
            chat=self.chat,
        )


def bench(
    *,
    model: ModelFlags,
    work: WorkFlags,
    methods: MethodFlags = METHOD,
    json_file: Annotated[Path | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
    html: Path | None = None,
) -> int:
    """Measure what speculation gains: every prompt under every method before the next prompt, in shuffled order.

    Args:
        model: which model, and how it is run.
        work: what is run.
        methods: the acceptance rule and the methods' options; each method takes those it has.
        json_file: write everything to this file; - prints all but the single runs as the last line instead.
        html: write a page with plots to this file.
    """
    _check_writable(json_file, html)
    result = output.finite(_measure(work.request(model, methods)))
    _show(result, to_stdout=json_file == Path("-"))
    _write(result, json_file, html)
    return 0


app = group("bench", bench)


def _numbers(flag: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{flag} takes numbers separated by commas, not {text!r}") from None


def _check_writable(*files: Path | None) -> None:
    """Find out before the work, not after it, that a result has nowhere to go."""
    for file in files:
        if file is not None and file != Path("-") and not file.absolute().parent.is_dir():
            raise ConfigError(f"{file} cannot be written: there is no folder {file.parent}")


def _measure(request: Request) -> dict[str, Any]:
    from outrider.bench.session import measure

    console = output.side()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("measuring", total=None)
        return measure(request, lambda total: bar.update(task, total=total), lambda: bar.advance(task))


def _show(result: dict[str, Any], *, to_stdout: bool) -> None:
    from outrider.bench.table import show

    show(result, output.side() if to_stdout else output.screen())


def _write(result: dict[str, Any], json_file: Path | None, html: Path | None) -> None:
    try:
        if json_file == Path("-"):
            output.write_json({key: value for key, value in result.items() if key != "samples"})
        elif json_file is not None:
            json_file.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        if html is not None:
            from outrider.bench.page import page

            html.write_text(page(result), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the result cannot be written: {error}") from error
