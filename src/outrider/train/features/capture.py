"""Computes hidden rows of texts with the engine's own forward pass."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import torch
from rich.console import Console

from outrider.config import SchedulerConfig, Speculation
from outrider.drafters.base import Committed
from outrider.engine.build import build_engine
from outrider.engine.driver import Driver
from outrider.errors import ConfigError, NumericsError
from outrider.kv.pool import KVPool
from outrider.models.base import TargetModel
from outrider.sampling.params import SamplingParams
from outrider.train.bars import bar
from outrider.train.data.example import Example
from outrider.train.features.buffer import FeatureBuffer
from outrider.train.features.recording import Recording, RowWatcher
from outrider.verify import make_verifier

PASS_ROWS: Final = 512
"""Rows of one pass."""
_PAGE: Final = 16
_NO_ANSWER: Final = SamplingParams(max_tokens=0)


@dataclass(frozen=True)
class CaptureReport:
    """The result of :func:`capture`."""

    texts: int
    rows: int
    left: int
    """Texts that did not fit into the buffer."""
    seconds: float

    def __str__(self) -> str:
        made = f", {self.rows:,} rows in {self.seconds:.0f} s" if self.texts else ""
        room = f"; {self.left:,} do not fit into --buffer-gb and are computed when they are read" if self.left else ""
        return f"{self.texts:,} computed now{made}{room}"


def captured_layers(target: TargetModel, layers: Sequence[int]) -> tuple[int, ...]:
    """The layers to capture for a head: those that it reads, and the final rows for the teacher.

    Raises:
        ConfigError: the target has no such layer.
    """
    wrong = [layer for layer in layers if not 0 <= layer <= target.layers]
    if wrong:
        raise ConfigError(
            f"the target has layers 0 to {target.layers}, so hidden rows of layers {wrong} cannot be captured"
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
    """Capture the texts that are missing in a buffer, as far as they fit.

    Args:
        target: the model.
        examples: the texts.
        layers: layers to capture, in addition to the final rows.
        buffer: stores the rows; damaged shards are captured again.
        console: where to show a progress bar.

    Raises:
        ConfigError: the buffer has other layers, a text is longer than the context, or the disk is full.
        NumericsError: a hidden row contains NaN.
    """
    wanted = captured_layers(target, layers)
    if wanted != buffer.layers:
        raise ConfigError(
            f"the feature buffer has layers {list(buffer.layers)}, not {list(wanted)}; name another folder"
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
    """The first texts, as many as fit."""
    room, fitting = buffer.limit_bytes - buffer.bytes, []
    for example in examples:
        room -= len(example.tokens) * buffer.row_bytes
        if room < 0:
            break
        fitting.append(example)
    return fitting


class _Reader(RowWatcher):
    """Keeps the rows of each request until they are taken."""

    def __init__(self, layers: Sequence[int]) -> None:
        super().__init__(layers)
        self._parts: dict[str, list[dict[int, torch.Tensor]]] = defaultdict(list)

    def see(self, kept: Committed, rows: dict[int, torch.Tensor]) -> None:
        self._parts[kept.key].append(rows)

    def pause(self, key: str) -> None:
        self._parts.pop(key, None)

    def take(self, key: str) -> dict[int, torch.Tensor]:
        """Return and forget all rows of a finished request."""
        parts = self._parts.pop(key)
        return {layer: torch.cat([part[layer] for part in parts]) for layer in self.needs.hidden_layers}


def capture_each(
    target: TargetModel, examples: Sequence[Example], layers: Sequence[int], pass_rows: int = PASS_ROWS
) -> Iterator[tuple[Example, dict[int, torch.Tensor]]]:
    """Run texts through the target, as prompts without answers.

    Args:
        target: the model.
        examples: the texts.
        layers: layers to capture.
        pass_rows: most rows of one pass.

    Yields:
        Each text, in order, with its hidden rows [tokens, width] of each layer.

    Raises:
        ConfigError: a text is longer than the target's context.
        NumericsError: the target's logits contain NaN or infinity.
    """
    longest = max((len(example.tokens) for example in examples), default=0)
    if longest > target.context_length:
        raise ConfigError(
            f"a text has {longest} tokens, but the target's context has {target.context_length}; leave the text out"
        )
    reader = _Reader(layers)
    limits = SchedulerConfig(max_running=pass_rows, max_rows=pass_rows, prefill_chunk=pass_rows)
    pool = KVPool(2 * pass_rows + longest + _PAGE, _PAGE, prefix_cache=False)
    rule = make_verifier(Speculation().verifier)
    engine = build_engine(target, None, Recording(reader), rule, pool, scheduler=limits)
    waiting, running, ended, first = iter(enumerate(examples)), dict[str, int](), {}, 0
    with Driver(engine, threaded=False) as driver:
        while first < len(examples):
            for number, example in islice(waiting, pass_rows - len(running)):
                running[driver.submit([(example.tokens, _NO_ANSWER)]).requests[0].id] = number
            for item in driver.step():
                if item.request.error is not None:
                    raise NumericsError(item.request.error)
                ended[running.pop(item.request.id)] = reader.take(item.request.id)
            while first in ended:
                yield examples[first], ended.pop(first)
                first += 1
