"""Hidden rows of texts, by the forward pass that serves them: several texts a pass, long ones in pieces."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import torch

from outrider.errors import ConfigError
from outrider.kv.pool import PagedCache
from outrider.train.bars import bar
from outrider.train.data.example import Example
from outrider.train.features.buffer import FeatureBuffer
from outrider.tree import SequenceRows, TreeBatch

if TYPE_CHECKING:
    from rich.console import Console

    from outrider.models.base import TargetModel

PASS_ROWS: Final = 512
"""Rows of one pass: enough to use every core well."""
_PAGE: Final = 16


@dataclass(frozen=True)
class CaptureReport:
    """What a run of captures came to."""

    texts: int
    rows: int
    left: int
    """Texts for which the buffer had no room."""
    seconds: float

    def __str__(self) -> str:
        made = (
            f"{self.texts:,} computed now, {self.rows:,} rows in {self.seconds:.0f} s"
            if self.texts
            else "0 computed now"
        )
        room = f"; {self.left:,} for which --buffer-gb has no room are computed when they are read" if self.left else ""
        return f"{made}{room}"


def captured_layers(target: TargetModel, layers: Sequence[int]) -> tuple[int, ...]:
    """The layers to capture for a head that reads some: those, and the rows after the final norm, the teacher's.

    Raises:
        ConfigError: the target has no such layer.
    """
    wrong = [layer for layer in layers if not 0 <= layer <= target.layers]
    if wrong:
        raise ConfigError(
            f"hidden rows of layers {wrong} were asked for, but the target has layers 0 to {target.layers}"
        )
    return tuple(sorted({*layers, target.layers}))


def capture(
    target: TargetModel,
    examples: Sequence[Example],
    layers: Sequence[int],
    buffer: FeatureBuffer,
    *,
    console: Console | None = None,
) -> CaptureReport:
    """Capture the texts that a buffer does not hold yet, as far as it has room.

    Args:
        target: the model.
        examples: the texts.
        layers: which hidden rows, beside those after the final norm.
        buffer: where they go; shards of it that are found damaged are captured again.
        console: where a progress bar with rows per second goes.

    Raises:
        ConfigError: the buffer is of other layers, a text is longer than the context, or the disk is full.
        NumericsError: a hidden row is not a number.
    """
    wanted = captured_layers(target, layers)
    if wanted != buffer.layers:
        raise ConfigError(
            f"the feature buffer holds layers {list(buffer.layers)}, but {list(wanted)} are to be captured"
        )
    buffer.check()
    begun, texts, rows = time.perf_counter(), 0, 0
    known = buffer.keys
    missing = [example for key, example in {e.key: e for e in examples}.items() if key not in known]
    fitting = _fitting(missing, buffer)
    with bar("computing hidden rows", sum(len(example.tokens) for example in fitting), console) as tick:
        for example, features in capture_each(target, fitting, wanted):
            buffer.append(example, features)
            texts, rows = texts + 1, rows + len(example.tokens)
            tick(rows, f"{rows / (time.perf_counter() - begun):.0f} rows/s")
    buffer.flush()
    return CaptureReport(texts, rows, len(missing) - texts, time.perf_counter() - begun)


def _fitting(examples: Sequence[Example], buffer: FeatureBuffer) -> list[Example]:
    """The first texts, as many as there is room for."""
    room, fitting = buffer.limit_bytes - buffer.bytes, []
    for example in examples:
        room -= len(example.tokens) * buffer.row_bytes
        if room < 0:
            break
        fitting.append(example)
    return fitting


@dataclass
class _Reading:
    """A text on its way through the target."""

    key: str
    example: Example
    done: int = 0
    parts: dict[int, list[torch.Tensor]] = field(default_factory=lambda: defaultdict(list))

    @property
    def left(self) -> int:
        return len(self.example.tokens) - self.done


def capture_each(
    target: TargetModel, examples: Sequence[Example], layers: Sequence[int], pass_rows: int = PASS_ROWS
) -> Iterator[tuple[Example, dict[int, torch.Tensor]]]:
    """Run texts through the target.

    Args:
        target: the model.
        examples: the texts.
        layers: which hidden rows.
        pass_rows: most rows of one pass.

    Yields:
        Each text, in order, with its hidden rows [tokens, width] of each layer.

    Raises:
        ConfigError: a text is longer than the target's context.
    """
    longest = max((len(example.tokens) for example in examples), default=0)
    if longest > target.context_length:
        raise ConfigError(f"a text has {longest} tokens, but the target's context holds {target.context_length}")
    cache = PagedCache(-(-(2 * pass_rows + longest) // _PAGE) + 1, _PAGE)
    readings = [_Reading(str(number), example) for number, example in enumerate(examples)]
    first = 0
    while first < len(readings):
        shares = _pack(readings[first : first + pass_rows], cache, pass_rows)
        _run(target, shares, cache, layers)
        while first < len(readings) and not readings[first].left:
            reading = readings[first]
            cache.release(reading.key)
            yield reading.example, {layer: torch.cat(parts) for layer, parts in reading.parts.items()}
            reading.parts.clear()
            first += 1


def _pack(readings: Sequence[_Reading], cache: PagedCache, pass_rows: int) -> list[tuple[_Reading, int]]:
    """Which texts take part in a pass, in order, and with how many rows each."""
    shares: list[tuple[_Reading, int]] = []
    room = pass_rows
    for reading in readings:
        count = min(room, reading.left)
        if not count or not cache.extend(reading.key, reading.done + count):
            break
        shares.append((reading, count))
        room -= count
    assert shares, "the cache has room for a pass and the longest text"
    return shares


def _run(target: TargetModel, shares: Sequence[tuple[_Reading, int]], cache: PagedCache, layers: Sequence[int]) -> None:
    """One pass; no row's logits are asked for."""
    batch = TreeBatch.pack(
        [
            SequenceRows(
                key=reading.key,
                context=reading.done,
                forced=tuple(reading.example.tokens[reading.done : reading.done + count]),
                tree=None,
            )
            for reading, count in shares
        ],
        target.device,
    )
    hidden = target.forward(batch, cache, tuple(layers)).hidden
    start = 0
    for reading, count in shares:
        for layer in layers:
            reading.parts[layer].append(hidden[layer][start : start + count])
        reading.done += count
        start += count
