"""How the scripts beside this one hand on what they measured, and where, when and of which commit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from outrider.bench.machine import facts


def stamped(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with the date, the commit and the machine, which it may tell itself."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        **({} if "machine" in result else {"machine": facts()}),
        **result,
    }


def commit() -> str | None:
    """The commit this file is of, with ``-dirty`` behind it where the sources differ from it; None outside git."""
    told = subprocess.run(
        ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip() or None


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
