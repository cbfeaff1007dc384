"""Where training texts come from, in pieces that fit into memory: a buffer, the target's passes, or its answers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.train.buffer import SHARD_BYTES, Captured, FeatureBuffer
from outrider.train.capture import capture_each, captured_layers
from outrider.train.example import Example
from outrider.train.recording import Recorder, watched
from outrider.train.regenerate import AnswerConfig, answers

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.target.base import TargetModel
    from outrider.train.prompts import Prompt


class Streamed:
    """Texts with their hidden rows: from a buffer as far as it holds them, the others captured whenever they are read.

    So the disk is bounded and the texts are not.  Pieces are cut in the order of the texts' keys: what a buffer holds,
    loses and gets back moves no text.

    Args:
        target: captures what is missing.
        examples: the texts.
        buffer: which does not change meanwhile.
        piece_bytes: size of a piece.
    """

    def __init__(
        self,
        target: TargetModel,
        examples: Sequence[Example],
        buffer: FeatureBuffer,
        piece_bytes: int = SHARD_BYTES,
    ) -> None:
        self._target, self._buffer = target, buffer
        self._examples = sorted({example.key: example for example in examples}.values(), key=lambda text: text.key)
        self._starts = [0]
        held = 0
        for index, example in enumerate(self._examples):
            size = len(example.tokens) * buffer.row_bytes
            if held and held + size > piece_bytes:
                self._starts.append(index)
                held = 0
            held += size
        self._starts.append(len(self._examples))

    def __len__(self) -> int:
        """Pieces there are; none of no texts."""
        return len(self._starts) - 1 if self._examples else 0

    def read(self, piece: int) -> list[Captured]:
        """The texts of one piece."""
        wanted = self._examples[self._starts[piece] : self._starts[piece + 1]]
        found = {example.key: self._buffer.text(example) for example in wanted}
        missing = [example for example in wanted if found[example.key] is None]
        for example, features in capture_each(self._target, missing, self._buffer.layers):
            found[example.key] = Captured.of(example, features)
        return [text for text in found.values() if text is not None]


@dataclass(frozen=True, eq=False)
class Online:
    """Texts that are answered when they are read, their hidden rows kept as they are decoded; nothing is on disk.

    Every epoch answers anew, to the same texts.
    """

    llm: LLM
    prompts: Sequence[Prompt]
    config: AnswerConfig
    layers: Sequence[int]
    """Read by the head, beside the rows after the final norm."""
    piece: int = 256
    """Prompts of a piece."""

    def __len__(self) -> int:
        """Pieces there are."""
        return -(-len(self.prompts) // self.piece)

    def read(self, piece: int) -> list[Captured]:
        """The texts of one piece, in the order of their prompts."""
        prompts = self.prompts[piece * self.piece : (piece + 1) * self.piece]
        recorder = Recorder(captured_layers(self.llm.engine.target, self.layers))
        found: dict[str, Captured] = {}
        with closing(answers(watched(self.llm, recorder), prompts, self.config)) as stream:
            for prompt, example, _ in stream:
                text = None if example is None else recorder.take(example)
                if text is not None:
                    found[prompt.key] = text
        return [found[prompt.key] for prompt in prompts if prompt.key in found]
