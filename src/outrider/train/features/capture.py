"""Hidden rows of texts, by the forward pass that serves them: several texts a pass, long ones in pieces."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

import torch

from outrider.config import SchedulerConfig, Speculation
from outrider.drafters.base import Committed
from outrider.engine.build import build_engine
from outrider.engine.driver import Driver
from outrider.errors import ConfigError, NumericsError
from outrider.kv.pool import KVPool
from outrider.sampling.params import SamplingParams
from outrider.train.bars import bar
from outrider.train.data.example import Example
from outrider.train.features.buffer import FeatureBuffer
from outrider.train.features.recording import Recording, RowWatcher
from outrider.verify import make_verifier

if TYPE_CHECKING:
    from rich.console import Console

    from outrider.models.base import TargetModel

PASS_ROWS: Final = 512
"""Rows of one pass: enough to use every core well."""
_PAGE: Final = 16
_NO_ANSWER: Final = SamplingParams(max_tokens=0)


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
        """Hand out all rows of a request that has ended, once."""
        parts = self._parts.pop(key)
        return {layer: torch.cat([part[layer] for part in parts]) for layer in self.needs.hidden_layers}


def capture_each(
    target: TargetModel, examples: Sequence[Example], layers: Sequence[int], pass_rows: int = PASS_ROWS
) -> Iterator[tuple[Example, dict[int, torch.Tensor]]]:
    """Run texts through the target, as prompts to which no answer is asked for.

    Args:
        target: the model.
        examples: the texts.
        layers: which hidden rows.
        pass_rows: most rows of one pass.

    Yields:
        Each text, in order, with its hidden rows [tokens, width] of each layer.

    Raises:
        ConfigError: a text is longer than the target's context.
        NumericsError: the target's logits hold NaN or infinity.
    """
    longest = max((len(example.tokens) for example in examples), default=0)
    if longest > target.context_length:
        raise ConfigError(f"a text has {longest} tokens, but the target's context holds {target.context_length}")
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
