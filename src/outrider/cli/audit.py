"""``outrider audit``: prove on the user's own model that speculation changes nothing."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from outrider.cli import output
from outrider.cli.numbers import WHOLE, WHOLE_OR_NONE
from outrider.cli.options import SPECULATION, ModelFlags, SpeculationFlags
from outrider.config import AuditScope
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.audit import Parts, Report
    from outrider.cli.options import CheckedSpeculation


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EffortFlags:
    """How much to check."""

    prompts: Path | None = None
    """File of prompts, as for bench; default: a varied built-in set."""
    also: str = ""
    """More drafting methods to compare, separated by commas; each uses the options that it has."""
    scope: AuditScope = "all"
    """What to check: all (texts and frequencies), texts, or greedy (greedy texts only)."""
    exact: Annotated[bool, Parameter(negative="")] = False
    """Require identical tokens even on a backend that allows ties between equal scores."""
    max_tokens: Annotated[int, WHOLE] = 32
    """Tokens per text; more finds rarer faults and takes longer."""
    draws: Annotated[int, WHOLE] = 100_000
    """Texts drawn for each chi-square test; raise it if the audit says that it was too weak."""
    seed: Annotated[int, WHOLE] = 0
    """First seed; the same seed repeats the audit exactly."""
    workers: Annotated[int | None, WHOLE_OR_NONE] = None
    """Processes that draw texts; default: one per CPU; 0 uses the main process."""

    @property
    def processes(self) -> int:
        """The number of processes that draw texts."""
        if self.workers is not None:
            return self.workers
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


EFFORT: Final = EffortFlags()
"""Defaults of the signature."""


def audit(
    *,
    model: ModelFlags,
    speculation: SpeculationFlags = SPECULATION,
    effort: EffortFlags = EFFORT,
    as_json: Annotated[bool, output.AS_JSON] = False,
) -> int:
    """Prove on your own model that speculation changes nothing.

    Exit codes: 0 proved; 1 a check failed; 2 bad input; 3 nothing failed, but the audit was too weak to prove it.

    Args:
        model: which model, and how to run it.
        speculation: how to speculate.
        effort: how much to check.
        as_json: Print the report as one JSON object on the last line.
    """
    from outrider.audit import Effort, audit_prompts, check_lossless
    from outrider.audit import audit as run  # takes seconds; --help and bad flags should answer at once

    methods = [name.strip() for name in effort.also.split(",") if name.strip()]
    plan = speculation.plan(speculation.speculative_algorithm, model.model, ignore_foreign=bool(methods))
    others = [speculation.plan(name, model.model, ignore_foreign=True) for name in methods]
    speculation.check_used([each.config for each in (plan, *others)])
    check_lossless(plan.verifier)
    amount = Effort(
        scope=effort.scope,
        tokens=effort.max_tokens,
        draws=effort.draws,
        exact=effort.exact,
        seed=effort.seed,
        workers=effort.processes,
    )
    prompts = audit_prompts(effort.prompts)
    parts = _load(model, plan)
    if parts.tokenizer is None:
        raise ConfigError(
            f"{model.model} has no tokenizer, and an audit needs one for its prompts; use a model with a tokenizer"
        )
    chat = bool(parts.tokenizer.chat_template)
    encoded = [prompt.encode(parts.tokenizer, chat=chat) for prompt in prompts]
    engines = [replace(parts, config=each.config) for each in others]
    report = run(parts, encoded, model=model.model, others=engines, effort=amount, progress=output.side())
    _print(report, as_json)
    return report.proof.exit_code


def _load(flags: ModelFlags, plan: CheckedSpeculation) -> Parts:
    """The engine's parts; each model is loaded once."""
    from outrider.audit import Parts
    from outrider.models.backends import load_model, resolve_device, resolve_dtype

    flags.use_threads()
    device = resolve_device(flags.device)
    dtype = resolve_dtype(flags.dtype, device)
    load = functools.cache(lambda path: load_model(path, flags.options.for_drafter))
    target, tokenizer = load_model(flags.model, flags.options)
    return Parts(target, tokenizer, load, plan.config, plan.verifier, dtype)


def _print(report: Report, as_json: bool) -> None:
    screen = output.screen()
    for table in report.tables():
        screen.print(table)
    screen.print(report.summary())
    if as_json:
        output.write_json(report.to_json())
