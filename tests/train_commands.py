"""``outrider train`` as tests call it: a tiny model, prompts for it, and commands that take a second."""

from __future__ import annotations

import json
from pathlib import Path

from tiny_folder import make_folder

SMALL = ["--tokens", "300", "--rows", "256", "--held-out", "4", "--precision", "fp32", "--judgements", "4"]
METHOD = ["medusa", "--heads", "2", "--vocabulary", "128"]


def make_place(folder: Path) -> Path:
    """A folder with a model and a file of 150 prompts, of which five are kept to judge by."""
    make_folder(folder / "model")
    lines = [json.dumps({"prompt": f"say {number} and {number * number} aloud"}) + "\n" for number in range(150)]
    (folder / "prompts.jsonl").write_text("".join(lines))
    return folder


def words(place: Path, *more: str, method: list[str] = METHOD) -> list[str]:
    """A command, with whatever of :data:`SMALL` it does not say otherwise."""
    pairs = zip(SMALL[::2], SMALL[1::2], strict=True)
    small = [word for pair in pairs if pair[0] not in more for word in pair]
    return ["train", *method, "--model", str(place / "model"), *small, *more]
