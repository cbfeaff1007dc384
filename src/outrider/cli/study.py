"""``outrider study``: compare drafters by quality, acceptance rate, latency and speedup."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from outrider.cli import output
from outrider.cli.bench import WORK, WorkFlags
from outrider.cli.drafts import draft_arms
from outrider.cli.options import RULES, ModelFlags

if TYPE_CHECKING:
    from outrider.bench.session import BenchRequest


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StudyFlags:
    """Which drafters to study, and how."""

    draft: Annotated[list[str], Parameter(negative="", metavar="DRAFTER")] = field(default_factory=list)
    """A drafter as METHOD[:PATH[:OPTION=VALUE…]]: the method or auto, its draft model or head, and its options. Repeat
    it for each drafter."""
    verifier: Annotated[str, Parameter(help=f"Acceptance rule of all drafters: {RULES}.")] = "coupled"
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus sampling; 1 is off."""

    def request(self, model: ModelFlags, work: WorkFlags) -> BenchRequest:
        """The flags as a checked request.

        Raises:
            ConfigError: a drafter that cannot be read, or a value out of range.
        """
        return work.request(model, draft_arms(self.draft, self.verifier), [self.temperature], [self.top_p])


STUDY = StudyFlags()
"""Defaults of the signature."""


def study(
    *,
    model: ModelFlags,
    work: WorkFlags = WORK,
    flags: StudyFlags = STUDY,
    json_file: Annotated[Path | None, Parameter(name="--json", metavar="[FILE]")] = None,
    plot: Annotated[Path | None, Parameter(name="--output")] = None,
) -> int:
    """Compare drafters: quality as language models, acceptance rate, latency, and the speedup that each brings.

    Args:
        model: which model, and how to run it.
        work: what to run.
        flags: which drafters to study, and how.
        json_file: Write all results to this file; without a file, print a summary as JSON on the last line.
        plot: Write a scatter plot of speedup against quality and draft latency to this SVG file.
    """
    output.check_writable(json_file, plot)
    request = flags.request(model, work)
    model.use_threads()
    from outrider.study.plot import picture
    from outrider.study.run import study as run  # takes seconds; --help and bad flags should answer at once
    from outrider.study.table import show

    with output.progress("studying") as (begin, advance):
        result = output.finite(run(request, begin, advance))
    show(result, output.side() if json_file == Path("-") else output.screen())
    output.write_result(result, json_file)
    if plot is not None:
        output.write_text(plot, picture(result))
    return 0
