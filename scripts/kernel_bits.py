"""Print a digest of what the CPU kernels compute, which must be the same on every Python.

python scripts/kernel_bits.py

Needs numpy alone; the inputs are made of whole numbers, so that no generator's version shows.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Final

import numpy as np

from outrider.kernels.native import cpu, missing

INPUTS: Final = 256
OUTPUTS: Final = 96
ROWS: Final = (1, 3, 16)
KIND: Final = "Q8_0"
_BLOCK: Final = 32


def numbers(count: int, seed: int) -> np.ndarray:
    """Numbers between -1 and 1, fp32."""
    mixed = (np.arange(seed, seed + count, dtype=np.uint64) * np.uint64(2654435761)) % np.uint64(65521)
    return (mixed.astype(np.float32) / np.float32(32760.5)) - np.float32(1)


def matrix() -> np.ndarray:
    """A matrix in the blocks of a GGUF file: a scale as fp16, then int8."""
    blocks = INPUTS * OUTPUTS // _BLOCK
    scales = (numbers(blocks, 1) / np.float32(64)).astype(np.float16).view(np.uint8).reshape(blocks, 2)
    values = (numbers(blocks * _BLOCK, 2) * np.float32(127)).astype(np.int8).view(np.uint8).reshape(blocks, _BLOCK)
    return np.concatenate([scales, values], axis=1).reshape(-1)


def digest() -> str:
    """SHA-256 of products, best scores under noise, and noise, on every instruction set of this CPU."""
    found = hashlib.sha256()
    packed = np.empty(cpu.packed_bytes(KIND, INPUTS, OUTPUTS), dtype=np.uint8)
    cpu.pack(KIND, INPUTS, OUTPUTS, matrix(), None, packed)
    weights = cpu.Matrix(KIND, INPUTS, OUTPUTS, packed)
    for name in cpu.kernel_names():
        cpu.select_kernels(name)
        for rows in ROWS:
            made = np.empty((rows, OUTPUTS), dtype=np.float32)
            cpu.linear(weights, numbers(rows * INPUTS, 3).reshape(rows, INPUTS), made)
            found.update(made.tobytes())
            ids, scores = np.empty((rows, 4), dtype=np.int64), np.empty((rows, 4), dtype=np.float32)
            places = np.arange(rows, dtype=np.int64)
            seeds, choices = np.full(rows, 7, dtype=np.uint64), np.zeros(rows, dtype=np.int64)
            cpu.best_scores(made, places, OUTPUTS, 0.8, 20, 0.9, -np.inf, seeds, places, choices, 0, ids, scores)
            found.update(ids.tobytes() + scores.tobytes())
    cpu.select_kernels(None)
    found.update(repr([cpu.philox(seed, 1, 2, 3, 4) for seed in range(8)]).encode())
    return found.hexdigest()


if __name__ == "__main__":
    if cpu is None:
        sys.exit(str(missing))
    sys.stdout.write(f"{digest()}\n")
