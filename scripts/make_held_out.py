"""Write the hashes of the evaluation prompts, which the trainer refuses: python scripts/make_held_out.py FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from outrider.train.data import decontaminate

FILE = Path(decontaminate.__file__).with_name("held_out.bin")


def main(folder: Path) -> None:
    """Hash every user turn of every prompt file of a folder."""
    turns = [
        turn
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").split("\n")
        if line.strip()
        for turn in json.loads(line).get("turns", [])
    ]
    FILE.write_bytes(decontaminate.EvaluationPrompts.of(turns).packed())
    sys.stdout.write(f"{len(turns)} turns, {FILE.stat().st_size} bytes of hashes in {FILE.name}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
