"""Read a trained head: a shipped one, or a folder in Outrider's own format or another project's."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from outrider.errors import ModelError
from outrider.heads.checkpoint import CONFIG, MARK, HeadCheckpoint, read_json, read_own
from outrider.heads.formats.base import read_foreign
from outrider.models.shipped_heads import head_folder, shipped_heads


def read_head(folder: str | Path) -> HeadCheckpoint:
    """Read a head in any known format, from its folder or by the name of a shipped head.

    Raises:
        ModelError: there is none, or its files cannot be read.
    """
    place = head_folder(folder)
    if not (place / CONFIG).is_file():
        along = ", ".join(head.name for head in shipped_heads()) or "none"
        raise ModelError(f"there is no head {str(folder)!r}: no folder with a {CONFIG}; shipped heads are: {along}")
    told = read_json(place / CONFIG)
    return read_own(place, told) if MARK in told else read_foreign(place, told)


def kind_of(folder: str | Path) -> str | None:
    """Kind of the head in a folder, or of a shipped head; None if there is none that can be read."""
    config = head_folder(folder) / CONFIG
    try:
        told = read_json(config)
        return str(told["kind"]) if MARK in told else _foreign_kind(str(config.parent), config.stat().st_mtime_ns)
    except (ModelError, KeyError):
        return None


@lru_cache(maxsize=8)
def _foreign_kind(folder: str, changed: int) -> str:
    """Kind of a head in another project's format; cached, because it takes reading all weights."""
    return read_head(folder).kind
