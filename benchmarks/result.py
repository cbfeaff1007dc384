"""How the scripts beside this one hand on what they measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(result: Mapping[str, Any], file: Path | None) -> None:
    """Print a result as the last line, one JSON object, and write it to a file where one was asked for."""
    text = json.dumps(result) + "\n"
    if file:
        file.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
