"""Write ``docs/reference.md`` from the config classes; run it after changing an option.

python docs/generate_reference.py
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

from outrider import CacheConfig, SamplingParams, SchedulerConfig
from outrider.cli.method_options import options_of, spellings
from outrider.cli.serve import ServerFlags
from outrider.drafters import config_class, methods
from outrider.metrics import PhaseSeconds, Prediction, RowCosts, SpeculationStats
from outrider.verify import make_verifier, registered

TARGET = Path(__file__).with_name("reference.md")


def option_table(config: type[Any]) -> str:
    """Table of options made with ``option(...)``."""
    lines = ["| option | flag | default | bounds | |", "|---|---|---|---|---|"]
    for item in options_of(config):
        high = "" if item.high is None else f" … {item.high:g}"
        bounds = f"{item.low:g}{high}" if isinstance(item.default, (int, float)) else ""
        flag = spellings(item.flag)[0]
        lines.append(f"| `{item.field}` | `{flag}` | `{item.default!r}` | {bounds} | {item.help} |")
    return "\n".join(lines) if len(lines) > 2 else "It has no options."


def spelling_table() -> str:
    """Table of flags with several spellings."""
    flags = dict.fromkeys(option.flag for name in methods() for option in options_of(config_class(name)))
    lines = ["| flag | also |", "|---|---|"]
    for flag in ("speculative-algorithm", "speculative-draft-quantization", *flags):
        first, *others = (f"`{spelling}`" for spelling in spellings(flag))
        lines.append(f"| {first} | {', '.join(others)} |")
    return "\n".join(lines)


def documented_fields(owner: type[Any]) -> str:
    """Table of fields, each described by the string below it."""
    body = ast.parse(inspect.getsource(owner)).body[0]
    assert isinstance(body, ast.ClassDef)
    lines = ["| field | default | |", "|---|---|---|"]
    for field, note in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = note.value.value if isinstance(note, ast.Expr) and isinstance(note.value, ast.Constant) else ""
            default = ast.unparse(field.value).replace("field(default_factory=dict)", "{}") if field.value else "–"
            default = default.replace("field(default_factory=list)", "[]")
            default = re.sub(r"field\(default_factory=(\w+)\)", r"\1()", default)
            lines.append(f"| `{field.target.id}` | `{default}` | {' '.join(str(text).split())} |")
    return "\n".join(lines)


def flag_table(owner: type[Any]) -> str:
    """Table of a command's flags, each described by the string below it."""
    body = ast.parse(inspect.getsource(owner)).body[0]
    assert isinstance(body, ast.ClassDef)
    defaults = owner()
    lines = ["| flag | default | |", "|---|---|---|"]
    for field, note in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(note, ast.Expr)
            value = getattr(defaults, field.target.id)
            shown = "" if value in ((), None, False) else f"`{value}`"
            lines.append(f"| `--{field.target.id.replace('_', '-')}` | {shown} | {ast.literal_eval(note.value)} |")
    return "\n".join(lines)


def rule_table() -> str:
    """Table of what each acceptance rule is exact for."""
    lines = [
        "| rule | lossless | trees | merged drafters | deterministic drafts | drafts are |",
        "|---|---|---|---|---|---|",
    ]
    for name in registered():
        rule = make_verifier(name)
        marks = ["yes" if mark else "no" for mark in (rule.lossless, rule.trees, rule.merged, rule.deterministic)]
        lines.append(f"| `{name}` | {' | '.join(marks)} | {rule.draws.value} |")
    return "\n".join(lines)


def summary(owner: Any) -> str:
    """First paragraph of a docstring."""
    return " ".join((inspect.getdoc(owner) or "").split("\n\n")[0].split())


def render() -> str:
    """The whole page."""
    parts = [
        "# Reference",
        "All options, generated from the code by `docs/generate_reference.py`. [How to](howto.md) shows common tasks.",
        "## Sampling parameters",
        summary(SamplingParams),
        documented_fields(SamplingParams),
        "## Drafters",
    ]
    for name in methods():
        config = config_class(name)
        module = inspect.getmodule(config)
        parts += [f"### `{name}`", summary(module), option_table(config)]
    parts += [
        "## Acceptance rules",
        "`--verifier` names the rule. When the engine starts, a rule refuses drafts for which it is not exact. A rule "
        "that is not lossless changes the output: it is for comparisons, must be named, and the audit refuses it. "
        "[Concepts](concepts.md#acceptance-rules) explains the rules.",
        rule_table(),
        "## Cache",
        "`LLM(…, cache=CacheConfig(…))`",
        _plain_options(CacheConfig),
        "## Scheduler",
        "`LLM(…, scheduler=SchedulerConfig(…))`",
        _plain_options(SchedulerConfig),
        "## Server",
        "`outrider serve` takes these flags, beside those of the model, of speculation and of the cache. "
        "[Serving](serving.md) explains it.",
        flag_table(ServerFlags),
        "## Metrics",
        "### `Completion.speculation`",
        summary(SpeculationStats),
        documented_fields(SpeculationStats),
        "### `Completion.seconds`",
        summary(PhaseSeconds),
        documented_fields(PhaseSeconds),
        "### `Completion.seconds.by_rows`",
        summary(RowCosts),
        documented_fields(RowCosts),
        "### `Completion.prediction`",
        summary(Prediction),
        documented_fields(Prediction),
        "## Spellings of flags",
        "Both spellings of a flag mean the same in every command. The long ones follow SGLang.",
        spelling_table(),
    ]
    return "\n\n".join(parts) + "\n"


def _plain_options(config: type[Any]) -> str:
    rows = [f"| `{item.name}` | `{item.default!r}` | {item.metadata['help']} |" for item in dataclasses.fields(config)]
    return "\n".join(["| option | default | |", "|---|---|---|", *rows])


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
