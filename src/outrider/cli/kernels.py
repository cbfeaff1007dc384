"""``outrider bench kernels``: time the CPU kernels on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from cyclopts import Parameter
from rich.box import SIMPLE_HEAD
from rich.table import Table

from outrider.cli import output
from outrider.cli.help import MODEL, OUTPUT
from outrider.cli.numbers import WHOLE, WHOLE_OR_NONE
from outrider.errors import ConfigError

_SHOWN: Final = ("1", "2", "4", "8", "12", "16", "32", "64")


def kernels(
    *,
    model: Annotated[str | None, Parameter(alias="-m", metavar="NAME", group=MODEL)] = None,
    quantization: Annotated[str, Parameter(metavar="NAME", group=MODEL)] = "none",
    threads: Annotated[int | None, WHOLE_OR_NONE, Parameter(group=MODEL)] = None,
    kernels: Annotated[str | None, Parameter(metavar="NAME", group=MODEL)] = None,
    repeat: Annotated[int, WHOLE, Parameter(group=OUTPUT)] = 7,
    skip_kernels: Annotated[bool, Parameter(negative="", group=OUTPUT)] = False,
    as_json: Annotated[bool, output.AS_JSON, Parameter(group=OUTPUT)] = False,
) -> int:
    """Time the CPU kernels and a model's forward passes, and compare both with the memory bandwidth.

    Args:
        model: Model to time; default: kernels only.
        quantization: Quantize its weights: none, w8 or w4.
        threads: CPU threads; default: one per physical core.
        kernels: CPU instruction set; outrider info lists them.
        repeat: Samples per median.
        skip_kernels: Time the model only, not single layers.
        as_json: Print one JSON object on the last line.
    """
    from outrider.bench.kernels import KINDS, measure
    from outrider.kernels.native import set_threads, use_kernels
    from outrider.models.backends import LoadOptions, load_model
    from outrider.models.loading import find

    if repeat < 1:
        raise ConfigError(f"--repeat must be at least 1, not {repeat}")
    if kernels is not None:
        use_kernels(kernels)
    if threads is not None:
        set_threads(threads)
    options = LoadOptions(backend="native", quantization=quantization)
    served = load_model(model, options)[0] if model is not None else None
    name = "" if model is None else find(model)[1]
    with output.progress("measuring") as (begin, advance):
        begin((0 if skip_kernels else len(KINDS) + 1) + (repeat if served else 0))
        result = measure(served, name, repeat=repeat, with_kernels=not skip_kernels, advance=advance)
    if result["model"]:
        result["model"]["quantization"] = quantization
    _show(result)
    if as_json:
        output.write_json(result)
    return 0


def _show(result: Mapping[str, Any]) -> None:
    console = output.screen()
    console.print(
        f"{result['instruction_set']}, {result['threads']} threads, memory is read at "
        f"{result['read_bandwidth_gbs']:.1f} GB/s"
    )
    for title, unit in (("time of one layer over that of one row", "ms"), ("GMAC/s", "gmacs")):
        if result["kernels"]:
            console.print(_table(result, title, unit))
    if result["sampling"]:
        console.print(_sampling(result["sampling"]))
    if result["model"]:
        console.print(_passes(result["model"]))


def _empty(title: str, headings: Sequence[str]) -> Table:
    """A table whose first column is text and the others are figures."""
    table = Table(headings[0], title=title, title_justify="left", box=SIMPLE_HEAD)
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    return table


def _table(result: Mapping[str, Any], title: str, unit: str) -> Table:
    table = _empty(title, ("kind", "GB/s at one row", *_SHOWN))
    for each in result["kernels"]:
        values = each[f"{unit}_by_rows"]
        shown = [f"{values[n] / values['1']:.2f}" if unit == "ms" else f"{values[n]:.0f}" for n in _SHOWN]
        table.add_row(each["kind"], f"{each['gbs_by_rows']['1']:.1f}", *shown)
    return table


def _sampling(rows: Sequence[Mapping[str, Any]]) -> Table:
    spreads = list(dict.fromkeys(row["spread"] for row in rows))
    title = f"a token chosen from one row of {rows[0]['vocabulary']} logits, ms (least)"
    table = _empty(title, ("from", *(f"logits with deviation {spread:g}" for spread in spreads)))
    for rule in dict.fromkeys(row["rule"] for row in rows):
        times = {row["spread"]: f"{row['ms']:.3f} ({row['least_ms']:.3f})" for row in rows if row["rule"] == rule}
        table.add_row(rule, *(times[spread] for spread in spreads))
    return table


def _passes(model: Mapping[str, Any]) -> Table:
    title = (
        f"passes of {model['path']}: {model['bytes_per_token'] / 1e6:.0f} MB a token, "
        f"{model['share_of_bandwidth']:.0%} of the bandwidth at one row, prompts at "
        f"{model['prefill_tokens_per_s']:.0f} tokens/s"
    )
    table = _empty(title, ("rows", *_SHOWN))
    table.add_row("ms", *(f"{model['ms_by_rows'][n]:.1f}" for n in _SHOWN))
    table.add_row("over one row", *(f"{model['verify_curve'][n]:.2f}" for n in _SHOWN))
    table.add_row("over the read floor", *(f"{model['over_read_floor_by_rows'][n]:.2f}" for n in _SHOWN))
    return table
