"""Time the CPU kernels and whole forward passes by number of rows, and compare them with the memory bandwidth.

One run times all shapes in turn.  Figures are medians, because machines are noisy.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch

from outrider.bench.machine import facts
from outrider.errors import ConfigError
from outrider.kernels.native import cpu, missing
from outrider.kv.pool import KVPool
from outrider.models.base import TargetModel
from outrider.sampling.best import ChoiceNoise, best_scores
from outrider.sampling.distribution import KEEP_ALL, Truncation
from outrider.tree import SequenceRows, TreeBatch, TreeBuilder, root_only

ROWS: Final = (1, 2, 4, 6, 8, 12, 16, 24, 32, 64)
KINDS: Final = ("Q4_0", "Q4_K", "Q5_0", "Q5_K", "Q6_K", "Q8_0", "BF16")
"""Weight formats that are timed."""
INPUTS, OUTPUTS = 1536, 8960
"""A layer of a model of 1.5 billion parameters."""
LAYERS: Final = 24
"""Copies, so that each is read from memory."""
VOCABULARY: Final = 151_936
"""Logits of a row for sampling."""
SAMPLING: Final = (
    ("greedy", False, KEEP_ALL),
    ("all tokens", True, KEEP_ALL),
    ("min_p 0.05", True, Truncation(min_p=0.05)),
    ("top_k 50", True, Truncation(top_k=50)),
    ("top_p 0.9", True, Truncation(top_p=0.9)),
    ("top_k 50, top_p 0.9", True, Truncation(top_k=50, top_p=0.9)),
)
"""Ways to sample: name, whether there is noise, and truncation."""
SPREADS: Final = (1.0, 3.0)
"""Standard deviations of the logits: a flat row, and one like a model's."""
CONTEXT: Final = 256
_PAGE: Final = 16
_ROWS_A_SAMPLE: Final = 20
_ORDINARY_BYTE: Final = 0x3C
"""Gives ordinary numbers as scales, bf16 and codes; denormals would be slower."""
_READ_BYTES: Final = 1 << 28


def measure_read(data: np.ndarray[Any, Any]) -> float:
    """Bytes per second of one read of some memory by all threads."""
    return len(data) / float(cpu.time_read(data))


def measure(
    model: TargetModel | None, path: str, *, repeat: int, with_kernels: bool, advance: Callable[[], None]
) -> dict[str, Any]:
    """Time the kernels and a model's passes.

    Args:
        model: a native model, or None to time the kernels alone.
        path: the model's name.
        repeat: samples per figure.
        with_kernels: whether to time single kernels.
        advance: called after each part.

    Raises:
        ConfigError: this installation has no kernels.
    """
    if cpu is None:
        raise ConfigError(str(missing))
    memory = np.ones(_READ_BYTES, dtype=np.uint8)
    reads = [measure_read(memory) for _ in range(repeat)]
    result: dict[str, Any] = {"machine": facts(), "instruction_set": cpu.kernel_name(), "threads": cpu.threads()}
    kernels = [_time_kind(kind, repeat, reads, memory, advance) for kind in KINDS] if with_kernels else []
    passes = None if model is None else _time_passes(model, path, repeat, reads, memory, advance)
    bandwidth = statistics.median(reads)
    result["read_bandwidth_gbs"] = bandwidth / 1e9
    if passes is not None:
        passes["share_of_bandwidth"] = passes["bytes_per_token"] / passes["ms_by_rows"]["1"] * 1e3 / bandwidth
        passes["over_read_floor_by_rows"] = {
            rows: ms / 1e3 / (passes["bytes_per_token"] / bandwidth) for rows, ms in passes["ms_by_rows"].items()
        }
    rows = _time_sampling(repeat, advance) if with_kernels else []
    return result | {"model": passes, "kernels": kernels, "sampling": rows}


def _time_kind(
    kind: str, repeat: int, reads: list[float], memory: np.ndarray[Any, Any], advance: Callable[[], None]
) -> dict[str, Any]:
    size = cpu.packed_bytes(kind, INPUTS, OUTPUTS)
    weights = [np.full(size, _ORDINARY_BYTE, dtype=np.uint8) for _ in range(LAYERS)]
    matrices = [cpu.Matrix(kind, INPUTS, OUTPUTS, each) for each in weights]
    seconds: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(max(2, repeat // 2)):
        reads.append(measure_read(memory))
        for rows in ROWS:
            data = np.random.default_rng(1).standard_normal((rows, INPUTS), dtype=np.float32)
            seconds[rows] += cpu.time_linear(matrices, data, 1)
    advance()
    middle = {rows: statistics.median(times) for rows, times in seconds.items()}
    return {
        "kind": kind,
        "inputs": INPUTS,
        "outputs": OUTPUTS,
        "bytes": size,
        "ms_by_rows": {str(rows): 1e3 * value for rows, value in middle.items()},
        "gbs_by_rows": {str(rows): size / value / 1e9 for rows, value in middle.items()},
        "gmacs_by_rows": {str(rows): rows * INPUTS * OUTPUTS / value / 1e9 for rows, value in middle.items()},
    }


def _time_sampling(repeat: int, advance: Callable[[], None]) -> list[dict[str, Any]]:
    """Milliseconds to choose a token from one row at temperature 0.8 on one thread, with the call from Python."""
    result = []
    for spread in SPREADS:
        row = spread * torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(1))
        seconds: dict[str, list[float]] = {name: [] for name, _, _ in SAMPLING}
        for position in range(_ROWS_A_SAMPLE * repeat):
            for name, noisy, truncation in SAMPLING:
                noise = ChoiceNoise.of(1, [position], 0) if noisy else None
                ask = row, VOCABULARY, 0.8 if noisy else 1.0, noise, 1, truncation
                seconds[name].append(_seconds(lambda ask=ask: best_scores(*ask)))  # type: ignore[misc]
        result += [
            {
                "rule": name,
                "spread": spread,
                "vocabulary": VOCABULARY,
                "ms": 1e3 * statistics.median(times),
                "least_ms": 1e3 * min(times),
            }
            for name, times in seconds.items()
        ]
    advance()
    return result


def _time_passes(
    model: TargetModel,
    path: str,
    repeat: int,
    reads: list[float],
    memory: np.ndarray[Any, Any],
    advance: Callable[[], None],
) -> dict[str, Any]:
    """Time passes over 1 … 64 rows after a context of 256 tokens, and a prompt of 512."""
    cache = KVPool(CONTEXT + 1024, _PAGE).cache("model")
    cache.extend("text", CONTEXT + 600)
    tokens = [int(token) for token in torch.randint(model.vocabulary, (CONTEXT + 512,))]
    model.forward(TreeBatch.pack([SequenceRows("text", 0, tuple(tokens[:CONTEXT]), None)]), cache)
    prompt = TreeBatch.pack([SequenceRows("text", CONTEXT, tuple(tokens[CONTEXT:]), None)])
    passes = {rows: _chain(tokens[:rows]) for rows in ROWS}
    seconds: dict[int, list[float]] = {rows: [] for rows in ROWS}
    prefills = []
    for _ in range(repeat):
        reads.append(measure_read(memory))
        for rows, batch in passes.items():
            seconds[rows].append(_seconds(lambda batch=batch: model.forward(batch, cache)))  # type: ignore[misc]
        prefills.append(_seconds(lambda: model.forward(prompt, cache)))
        advance()
    middle = {rows: statistics.median(times) for rows, times in seconds.items()}
    return {
        "path": path,
        "packed_bytes": model.packed_bytes,
        "bytes_per_token": model.token_bytes,
        "context": CONTEXT,
        "ms_by_rows": {str(rows): 1e3 * value for rows, value in middle.items()},
        "verify_curve": {str(rows): value / middle[1] for rows, value in middle.items()},
        "prefill_tokens": len(prompt.tokens),
        "prefill_tokens_per_s": len(prompt.tokens) / statistics.median(prefills),
    }


def _chain(tokens: Sequence[int]) -> TreeBatch:
    tree = TreeBuilder(tokens[0]).chain(tokens[1:]).build() if len(tokens) > 1 else root_only(tokens[0])
    return TreeBatch.pack([SequenceRows("text", CONTEXT, (), tree)])


def _seconds(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun
