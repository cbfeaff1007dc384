"""Size of the key-value cache, checked before the first request."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from outrider.errors import ConfigError
from outrider.kv.pool import KVPool

_SHARE: Final = 0.5
"""Share of the free memory for a cache of automatic size."""


def free_bytes(device: torch.device) -> int | None:
    """Free memory in bytes; None if the system does not report it."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def automatic_rows(wanted: int, most: int, row_bytes: int, device: torch.device) -> int:
    """Choose the rows of a cache: as wanted, at most ``most``, or as many as fit half of the free memory."""
    rows = min(wanted, most)
    free = free_bytes(device)
    if free is None or row_bytes == 0:
        return rows
    return max(1, min(rows, int(free * _SHARE) // row_bytes))


def check_fits(pool: KVPool, row_bytes: dict[str, int], device: torch.device) -> None:
    """Refuse caches that do not fit in memory, given each model's bytes per position.

    Raises:
        ConfigError: naming the bytes that each model needs, and those that are free.
    """
    free = free_bytes(device)
    needs = {model: pool.rows * size for model, size in row_bytes.items()}
    if free is None or sum(needs.values()) <= free:
        return
    each = ", ".join(f"{size / 2**30:.1f} GiB for {model}" for model, size in needs.items())
    raise ConfigError(
        f"keys and values of {pool.rows} rows take {each}, but {free / 2**30:.1f} GiB is free; lower the rows or "
        "the context length, or leave out the draft model"
    )
