"""Write docs/matrix.md: which request features give plain decoding's answer with which drafting method.

Run ``python docs/generate_matrix.py`` after adding a method or a feature; it runs the cells of
``tests/contract/matrix.py`` and takes a minute.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from contract.matrix import CHECKS, columns  # noqa: E402

INTRODUCTION = """# Features and methods

<!-- written by docs/generate_matrix.py; do not edit -->

Each row is something that a request may ask for, each column a drafting method. ● means: with the default rule the
answer is exactly that of plain decoding, tokens, text, finish reason and log-probabilities alike. Each cell is a test
on a tiny model (`tests/contract/test_matrix.py`); methods that can branch draft trees. A parameter without a cell is
refused, never ignored.
"""


def main() -> None:
    """Run every cell and write the page."""
    methods = columns()
    lines = [
        f"| | {' | '.join(f'`{name}`' for name in methods)} |",
        f"|---|{'---|' * len(methods)}",
    ]
    for feature, check in CHECKS.items():
        marks = ["●" if check(config) else "**differs**" for config in methods.values()]
        lines.append(f"| {feature} | {' | '.join(marks)} |")
    page = ROOT / "docs" / "matrix.md"
    page.write_text(INTRODUCTION + "\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
