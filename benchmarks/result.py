"""How the scripts beside this one hand on what they measured, and where, when and of which commit."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.bench.machine import facts


def stamped(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with the machine, the date and the commit, which it may tell itself."""
    return {"machine": facts(), **result}


def write(result: Mapping[str, Any], file: Path | None) -> None:
    """Print a result as the last line, one JSON object, and write it to a file where one was asked for."""
    text = json.dumps(stamped(result)) + "\n"
    if file:
        file.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


def write_file(result: Mapping[str, Any], file: Path | None) -> None:
    """Write a result to a file where one was asked for, and print nothing."""
    if file:
        file.write_text(json.dumps(stamped(result), indent=1) + "\n", encoding="utf-8")
