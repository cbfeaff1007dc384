"""Where training texts come from, beside a buffer that holds all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from outrider.errors import ConfigError
from outrider.train.buffer import SHARD_BYTES, Captured, FeatureBuffer
from outrider.train.capture import capture, capture_each, captured_layers
from outrider.train.example import Example
from outrider.train.prompts import Prompt
from outrider.train.regenerate import AnswerConfig, answers

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.target.base import TargetModel


class Pieces:
    """A buffer's texts in pieces that fit into memory, in the order of their keys: damage and repair move none.

    Args:
        buffer: which does not change meanwhile.
        piece_bytes: size of a piece.
    """

    def __init__(self, buffer: FeatureBuffer, piece_bytes: int = SHARD_BYTES) -> None:
        self._buffer = buffer
        self._starts = [0]
        held = 0
        for index, length in enumerate(buffer.lengths):
            size = length * buffer.row_bytes
            if held and held + size > piece_bytes:
                self._starts.append(index)
                held = 0
            held += size
        self._starts.append(len(buffer))

    def __len__(self) -> int:
        """Pieces there are; none of an empty buffer."""
        return len(self._starts) - 1 if self._starts[-1] else 0

    def read(self, piece: int) -> list[Captured]:
        """The texts of one piece."""
        return [self._buffer[index] for index in range(self._starts[piece], self._starts[piece + 1])]


@dataclass(frozen=True)
class RollingSource:
    """All texts, though the buffer may hold only some at a time: it is filled, read, emptied and filled again.

    Where everything fits it stays, and a second iteration captures nothing.
    """

    target: TargetModel
    examples: Sequence[Example]
    layers: tuple[int, ...]
    buffer: FeatureBuffer

    def __iter__(self) -> Iterator[Captured]:
        """Every text once; a filling that an earlier run has left comes first."""
        left = {example.key: example for example in self.examples}
        if not self.buffer.keys <= left.keys():
            self.buffer.clear()  # rows of other texts
        while left:
            report = capture(self.target, list(left.values()), self.layers, self.buffer)
            held = self.buffer.keys
            if not held:
                longest = max(len(example.tokens) for example in left.values())
                raise ConfigError(
                    f"the feature buffer {self.buffer.folder} may take {self.buffer.limit_bytes} bytes, too few for a "
                    f"text of {longest} tokens; allow more"
                )
            yield from self.buffer
            left = {key: example for key, example in left.items() if key not in held}
            if report.left:
                self.buffer.clear()


@dataclass(frozen=True)
class OnlineSource:
    """Texts that are answered and captured while training runs through them; nothing is kept on disk."""

    llm: LLM
    prompts: Sequence[Prompt]
    config: AnswerConfig
    layers: tuple[int, ...]
    block: int = 64
    """Answers that are captured together."""

    def __iter__(self) -> Iterator[Captured]:
        """Every prompt's text once, in the order the answers end."""
        target = self.llm.engine.target
        layers = captured_layers(target, self.layers)
        with closing(answers(self.llm, self.prompts, self.config)) as stream:
            examples = (example for _, example, _ in stream if example is not None)
            while block := list(islice(examples, self.block)):
                for example, features in capture_each(target, block, layers):
                    yield Captured.of(example, features)
