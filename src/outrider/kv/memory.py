"""How much memory keys and values may take: known and checked before the first request."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from outrider.errors import ConfigError
from outrider.kv.pool import KVPool

_SHARE: Final = 0.5
"""Of the free memory, what a cache whose size nobody chose may take."""


def free_bytes(device: torch.device) -> int | None:
    """Memory that a new allocation can have, or None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def automatic_rows(context_length: int, most: int, row_bytes: int, device: torch.device) -> int:
    """Rows for two whole contexts, or as many as fit half of the free memory; always one page's worth."""
    rows = min(2 * context_length, most)
    free = free_bytes(device)
    if free is None or row_bytes == 0:
        return rows
    return max(1, min(rows, int(free * _SHARE) // row_bytes))


def check_fits(pool: KVPool, row_bytes: dict[str, int], device: torch.device) -> None:
    """Refuse caches that the memory cannot hold, before a request finds out.

    Args:
        pool: every model's pages.
        row_bytes: bytes of one position, by model.
        device: where they are to lie.

    Raises:
        ConfigError: with what each model needs and what is free.
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
