"""Write docs/families.md and the list of verified classes: every causal family, served or refused.

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

Every causal language model class of transformers {transformers.__version__} is in this table.  Each was built tiny with
random weights and run through the contract of the `hf` backend: three ragged sequences in one flat pass, prompt chunks,
trees with siblings, a sequence that joins late, commits of branches that skip nodes, plain decoding; texts outgrow the
sliding windows and the lengths that scaled rotary embeddings were made for.  *Difference* is the largest difference of
any logit from the unmodified model run alone on that row's path with its own attention (fp32, limit {TOLERANCE:.0e}).
*Control* is the same with every drafted row denied its parent: what the comparison can see.  *Hidden rows* says whether
the rows that trained drafters read equal the model's own hidden states.

A class that is not in the table, or a transformers release other than the one above, is compared with its own eager
attention on a few tokens when it is loaded, and refused if it differs.
"""
ROTARY = """
## Rotary embeddings that depend on the length

`longrope` (Phi-3, Phi-3.5-MoE) and `dynamic` choose their frequencies by the longest position of a call.  In a flat
pass a row would then depend on its neighbours, and a key written while the text was short would not fit a query that is
computed when it is long: within one text, all rows must use one set of frequencies.  Outrider therefore
chooses once, when the model is loaded, by the context length it serves: the frequencies are those of a text that long.

* `longrope`: served with a context within `original_max_position_embeddings`, the short factors, equal to transformers
  for every text; served with more, the long factors, equal to transformers for every text longer than the original
  length.  Shorter texts then use the long factors too; where all texts are short, `HFModel` with a shorter
  `context_length` serves them with the short ones.
* `dynamic`: the frequencies of a text as long as the served context; within `max_position_embeddings` these are the
  unscaled ones, equal to transformers.

A row's result is thus a function of its own path and of the configuration, whatever is in the batch and however a
prompt is cut into chunks.  `linear`, `yarn`, `llama3` and `proportional` do not depend on the length and need no rule.
"""


def main() -> None:
    """Run the survey and write both files."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    findings = list(examine_all())
    failed = [finding for finding in findings if not finding.passed]
    if failed:
        raise SystemExit(f"neither served rightly nor refused: {failed}")
    (ROOT / "docs" / "families.md").write_text(page(findings), encoding="utf-8")
    (ROOT / "src" / "outrider" / "target" / "verified.py").write_text(verified(findings), encoding="utf-8")


def page(findings: Iterable[Finding]) -> str:
    """The document."""
    served = [finding for finding in findings if finding.outcome is not None]
    refused = [finding for finding in findings if finding.outcome is None]
    lines = [INTRODUCTION, f"## Served: {len(served)}", "", "| model type | class | variant | difference | control |"]
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
