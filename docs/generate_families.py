"""Write docs/families.md and the list of verified classes: every causal family, supported or refused.

Run ``python docs/generate_families.py`` after an update of transformers; it takes a minute or two.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "parity"))

from survey import TOLERANCE, Finding, examine_all  # noqa: E402

INTRODUCTION = f"""# Model families

<!-- written by docs/generate_families.py; do not edit -->

The tables list every causal language model class of transformers {transformers.__version__}: those that the `hf`
backend runs, and those that it refuses, with the reason. [The native backend](cpu.md#supported-models) has
its own list.

Each class was built tiny with random weights and tested with the contract of the `hf` backend: three ragged sequences
in one flat pass, prompt chunks, trees with siblings, a sequence that joins late, commits of branches that skip nodes,
and plain decoding. Texts are longer than sliding windows and than the original length of scaled rotary embeddings.

* *difference*: the largest difference of any logit from the unmodified model, run alone on the row's path with its own
  attention (fp32, limit {TOLERANCE:.0e}).
* *control*: the same if no draft row sees its parent. This is what the test can detect.
* *hidden rows*: whether the rows that trained drafters read equal the model's own hidden states.

A class that is not in the table, or any class in another release of transformers, is compared with its own eager
attention on a few tokens when it is loaded, and refused if it differs.
"""
ROTARY = """
## Rotary embeddings that depend on the length

`longrope` (Phi-3, Phi-3.5-MoE) and `dynamic` choose their frequencies by the longest position of a call. In a flat pass
a row would then depend on other rows, and a key written while the text was short would not fit a query computed when it
is long. All rows of a text must use the same frequencies. So Outrider chooses them once, when the model is loaded:
those of a text as long as the context.

* `longrope`: with a context up to `original_max_position_embeddings`, the short factors, equal to transformers for
  every text. With a longer context, the long factors, equal to transformers for every text longer than the original
  length; shorter texts then use the long factors, too. If all texts are short, load the model with a shorter
  `context_length`.
* `dynamic`: the frequencies of a text as long as the context; up to `max_position_embeddings` these are unscaled and
  equal to transformers.

So a row's result depends only on its own path and on the configuration, not on the batch or on prompt chunks. `linear`,
`yarn`, `llama3` and `proportional` do not depend on the length.
"""


def main() -> None:
    """Run the survey and write both files."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    findings = list(examine_all())
    failed = [finding for finding in findings if not finding.passed]
    if failed:
        raise SystemExit(f"neither correct nor refused: {failed}")
    (ROOT / "docs" / "families.md").write_text(page(findings), encoding="utf-8")
    (ROOT / "src" / "outrider" / "models" / "hf" / "verified.py").write_text(verified(findings), encoding="utf-8")


def page(findings: Iterable[Finding]) -> str:
    """The document."""
    served = [finding for finding in findings if finding.outcome is not None]
    refused = [finding for finding in findings if finding.outcome is None]
    lines = [
        INTRODUCTION,
        f"## Supported: {len(served)}",
        "",
        "| model type | class | variant | difference | control |",
    ]
    lines[-1] += " hidden rows |"
    lines.append("|---|---|---|---|---|---|")
    lines += map(served_line, served)
    lines += ["", f"## Refused: {len(refused)}", "", "| model type | variant | sentence |", "|---|---|---|"]
    lines += [f"| {item.model_type} | {item.variant} | {item.refusal} |" for item in refused]
    return "\n".join(lines) + "\n" + ROTARY


def served_line(finding: Finding) -> str:
    """One row of the table."""
    outcome = finding.outcome
    assert outcome is not None
    names = f"{finding.model_type} | {finding.architecture} | {finding.variant}"
    return f"| {names} | {outcome.worst:.0e} | {outcome.control:.1g} | {'yes' if outcome.hidden else 'no'} |"


def verified(findings: Iterable[Finding]) -> str:
    """The Python file that names the verified classes."""
    classes = sorted({finding.architecture for finding in findings if finding.outcome is not None})
    release = ".".join(transformers.__version__.split(".")[:2])
    lines = [
        '"""Classes that passed the contract; written by docs/generate_families.py, do not edit."""',
        "",
        "from typing import Final",
        "",
        f'TRANSFORMERS: Final = "{release}"',
        '"""The release they were tried with."""',
        "VERIFIED: Final = frozenset(",
        "    {",
        *(f'        "{name}",' for name in classes),
        "    }",
        ")",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
