"""``outrider study``: tabulate drafters' quality, acceptance and latency against the speedup they bring."""

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
    """Which drafters are studied, and how."""

    draft: Annotated[list[str], Parameter(negative="")] = field(default_factory=list)
    """A drafter, METHOD[:PATH[:OPTION=VALUE…]]: a method's name or auto, the folder or file of its draft model or head,
    and options by their names; given once for each drafter."""
    verifier: Annotated[str, Parameter(help=f"Acceptance rule of all of them: {RULES}.")] = "coupled"
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Keep the smallest set of most probable tokens whose mass reaches this; 1 keeps all."""

    def request(self, model: ModelFlags, work: WorkFlags) -> BenchRequest:
        """What is to be measured, read and checked.

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
    json_file: Annotated[Path | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
    plot: Annotated[Path | None, Parameter(name="--output")] = None,
) -> int:
    """Tabulate drafters' quality as language models, acceptance and latency against the speedup they bring.

    Args:
        model: which model, and how it is run.
        work: what is run.
        flags: which drafters are studied, and how.
        json_file: write everything to this file; - prints all but the single runs as the last line instead.
        plot: write a scatter plot, speedup against quality and against draft latency, to this SVG file.
    """
    output.check_writable(json_file, plot)
    request = flags.request(model, work)
    from outrider.study.plot import picture
    from outrider.study.run import study as run  # takes seconds, which --help and bad flags need not wait for
    from outrider.study.table import show

    with output.progress("studying") as (begin, advance):
        result = output.finite(run(request, begin, advance))
    show(result, output.side() if json_file == Path("-") else output.screen())
    output.write_result(result, json_file)
    if plot is not None:
        output.write_text(plot, picture(result))
    return 0
