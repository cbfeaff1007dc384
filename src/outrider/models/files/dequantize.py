"""Convert the quantised blocks of a GGUF file to numbers.

A decoder reads ``n`` blocks of fixed size at once and writes their elements as fp32.  The order of the fp32 operations
is that of the reference implementation (gguf's ``quants.py``), multiply first and add second without fusing, so results
are equal bit for bit.  Bytes are little-endian, like the format and the supported machines.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.models.files.tensor_kinds import TENSOR_KINDS, TensorKind

__all__ = ["TENSOR_KINDS", "DequantizeJob", "TensorKind", "dequantize"]

CHUNK_ELEMENTS = 1 << 19  # 2 MiB of fp32: large enough to hide call costs, small enough for a large L2 cache
TASK_ELEMENTS = 1 << 22  # what one thread takes at a time


@dataclass(frozen=True)
class DequantizeJob:
    """One tensor to decode.

    raw: the stored bytes, uint8, contiguous, any shape, whole blocks.
    out: contiguous fp32, bf16 or fp16, as many elements as `raw` holds, in the same order; other types than
        fp32 are rounded from the fp32 result.
    """

    raw: Tensor
    kind: TensorKind
    out: Tensor


def dequantize(jobs: Sequence[DequantizeJob]) -> None:
    """Decode tensors into the memory their jobs name, on torch's number of threads.

    Each thread decodes whole pieces.  Splitting every operation instead, as torch does, makes threads wait for each
    other so often that a load takes minutes on a busy machine.
    """
    tasks = [task for job in jobs for task in _split(job)]
    with _one_thread_per_operation() as threads, ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(_decode, tasks):
            pass


def _split(job: DequantizeJob) -> Iterator[DequantizeJob]:
    """Split a job into pieces of at most TASK_ELEMENTS, with one row per block."""
    blocks = job.raw.view(-1, job.kind.block_bytes)
    rows = job.out.view(-1, job.kind.block_elements)
    step = TASK_ELEMENTS // job.kind.block_elements
    for start in range(0, len(blocks), step):
        yield DequantizeJob(blocks[start : start + step], job.kind, rows[start : start + step])


def _decode(task: DequantizeJob) -> None:
    """Decode one piece chunk by chunk."""
    step, decode = CHUNK_ELEMENTS // task.kind.block_elements, _DECODERS[task.kind.name]
    direct = task.out.dtype == torch.float32
    scratch = torch.empty(0 if direct else min(step, len(task.raw)), task.kind.block_elements)
    for start in range(0, len(task.raw), step):
        blocks, goal = task.raw[start : start + step], task.out[start : start + step]
        if direct:
            decode(blocks, goal)
        else:
            decode(blocks, scratch[: len(blocks)])
            goal.copy_(scratch[: len(blocks)])


@contextmanager
def _one_thread_per_operation() -> Iterator[int]:
    """Keep torch from splitting operations while the block runs; yields its number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def _halves(blocks: Tensor, start: int) -> Tensor:
    """Read the fp16 number at byte `start` of every block: [n, bytes] uint8 → [n, 1] fp32."""
    return blocks[:, start : start + 2].view(torch.float16).float()


def _plain(dtype: torch.dtype) -> Callable[[Tensor, Tensor], None]:
    def decode(blocks: Tensor, out: Tensor) -> None:
        out.copy_(blocks.view(dtype))

    return decode


def _q4_0(blocks: Tensor, out: Tensor) -> None:
    scale = _halves(blocks, 0)
    codes = blocks[:, 2:].contiguous()
    out[:, :16] = (codes & 15).view(torch.int8) - 8
    out[:, 16:] = (codes >> 4).view(torch.int8) - 8
    out.mul_(scale)


def _q4_1(blocks: Tensor, out: Tensor) -> None:
    scale, low = _halves(blocks, 0), _halves(blocks, 2)
    codes = blocks[:, 4:].contiguous()
    out[:, :16] = codes & 15
    out[:, 16:] = codes >> 4
    out.mul_(scale).add_(low)


# Row b holds, for the eight bits of byte b from the lowest up, one byte of 16 where the bit is set.
_SPREAD_BITS = ((torch.arange(256).unsqueeze(1) >> torch.arange(8)) & 1).to(torch.uint8).mul_(16)


def _fifth_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Spread the 32 high bits of a 5-bit block: [n, 4] uint8 → two [n, 16] uint8 of 0 or 16."""
    words = packed.view(torch.int16).t().to(torch.int32)  # [2, n]: the first half's bits, the second half's
    index = torch.stack((words & 255, (words >> 8) & 255), dim=2).view(-1)
    table = _SPREAD_BITS.view(torch.int64).view(-1)
    first, second = table.index_select(0, index).view(torch.uint8).view(2, -1, 16)
    return first, second


def _q5_0(blocks: Tensor, out: Tensor) -> None:
    scale = _halves(blocks, 0)
    first, second = _fifth_bits(blocks[:, 2:6])
    codes = blocks[:, 6:].contiguous()
    out[:, :16] = ((codes & 15) | first).view(torch.int8) - 16
    out[:, 16:] = ((codes >> 4) | second).view(torch.int8) - 16
    out.mul_(scale)


def _q5_1(blocks: Tensor, out: Tensor) -> None:
    scale, low = _halves(blocks, 0), _halves(blocks, 2)
    first, second = _fifth_bits(blocks[:, 4:8])
    codes = blocks[:, 8:].contiguous()
    out[:, :16] = (codes & 15) | first
    out[:, 16:] = (codes >> 4) | second
    out.mul_(scale).add_(low)


def _q8_0(blocks: Tensor, out: Tensor) -> None:
    out.copy_(blocks[:, 2:].view(torch.int8)).mul_(_halves(blocks, 0))


def _scales_and_mins(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Unpack the K-quants' header: two fp16 factors and 2 × 8 six-bit numbers in 12 bytes, four at a time in an int32.

    [n, bytes] uint8 with the header in the first 16 bytes → scales and minima of the eight groups of 32 elements, each
    [n, 8, 1] fp32.
    """
    a, b, c = blocks[:, 4:16].view(torch.int32).t().contiguous()
    nibbles, upper_two, six = 0x0F0F0F0F, 0x30303030, 0x3F3F3F3F
    scales = torch.stack((a & six, (c & nibbles) | ((a >> 2) & upper_two)), dim=1)
    mins = torch.stack((b & six, ((c >> 4) & nibbles) | ((b >> 2) & upper_two)), dim=1)
    scale = _halves(blocks, 0) * scales.view(torch.uint8)
    low = _halves(blocks, 2) * mins.view(torch.uint8)
    return scale.unsqueeze(2), low.unsqueeze(2)


def _q4_k(blocks: Tensor, out: Tensor) -> None:
    scale, low = _scales_and_mins(blocks)
    codes = blocks[:, 16:].contiguous().view(-1, 4, 32)
    pairs = out.view(-1, 4, 2, 32)
    pairs[:, :, 0] = codes & 15
    pairs[:, :, 1] = codes >> 4
    out.view(-1, 8, 32).mul_(scale).sub_(low)


def _q5_k(blocks: Tensor, out: Tensor) -> None:
    scale, low = _scales_and_mins(blocks)
    high = blocks[:, 16:48].contiguous()
    codes = blocks[:, 48:].contiguous().view(-1, 4, 32)
    groups = out.view(-1, 8, 32)
    for group in range(8):
        nibble = codes[:, group // 2] & 15 if group % 2 == 0 else codes[:, group // 2] >> 4
        bit = (high << 4 - group if group < 4 else high >> group - 4) & 16
        groups[:, group] = nibble | bit
    groups.mul_(scale).sub_(low)


def _q6_k(blocks: Tensor, out: Tensor) -> None:
    scale = (blocks[:, 192:208].view(torch.int8) * _halves(blocks, 208)).unsqueeze(2)
    codes = blocks[:, :128].view(-1, 2, 2, 32).permute(2, 0, 1, 3).contiguous()
    nibbles = (*(codes & 15), *(codes >> 4))
    high = blocks[:, 128:192].contiguous().view(-1, 2, 32)
    quarters = out.view(-1, 2, 4, 32)
    for quarter, nibble in enumerate(nibbles):
        bits = (high << 4 - 2 * quarter if quarter < 3 else high >> 2) & 48
        quarters[:, :, quarter] = (nibble | bits).view(torch.int8) - 32
    out.view(-1, 16, 16).mul_(scale)


_DECODERS: dict[str, Callable[[Tensor, Tensor], None]] = {
    "F32": _plain(torch.float32),
    "F16": _plain(torch.float16),
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "BF16": _plain(torch.bfloat16),
}
"""Decoder of each kind, by name."""
