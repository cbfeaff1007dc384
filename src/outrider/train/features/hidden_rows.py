"""The hidden rows of a folder of texts, in a buffer for training texts and one for held-out texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from outrider.llm import LLM
from outrider.models.base import TargetModel
from outrider.train.data.example import Example
from outrider.train.data.prompts import TrainingPrompt
from outrider.train.features.buffer import FeatureBuffer
from outrider.train.features.capture import capture, captured_layers
from outrider.train.features.recording import Recorder, watched

_PREFIX: Final = "hidden-"
_NAMES: Final = {False: "train", True: "held_out"}
"""Names of the buffers, by whether their texts are held out."""


class HiddenRows:
    """Buffers that are filled while answers are decoded; missing texts get a pass of their own.

    Args:
        target: the model.
        folder: the buffers' folder; an existing buffer with at least these layers is used.
        layers: layers that the head reads, in addition to the final rows.
        limit_bytes: most bytes of each buffer.
        held_out: most held-out texts.
        name: the target's name; rows of another target are refused.
        for_training: whether to store rows of training texts.

    Raises:
        ConfigError: see :class:`outrider.train.features.buffer.FeatureBuffer`.
    """

    def __init__(
        self,
        target: TargetModel,
        folder: Path,
        layers: Sequence[int],
        *,
        limit_bytes: int,
        held_out: int,
        name: str = "",
        for_training: bool = True,
    ) -> None:
        self._target, self._held_out, self._for_training = target, held_out, for_training
        self.layers = _kept_layers(folder, captured_layers(target, layers))
        """Layers that are captured."""
        place = folder / f"{_PREFIX}{'-'.join(map(str, self.layers))}"
        self._buffers = {
            judging: FeatureBuffer(place / part, self.layers, target.width, limit_bytes, target=name)
            for judging, part in _NAMES.items()
        }
        self._recorder = Recorder(self.layers)

    def watching(self, llm: LLM) -> LLM:
        """The same target, recorded for :meth:`keep`."""
        return watched(llm, self._recorder)

    def keep(self, prompt: TrainingPrompt, example: Example) -> None:
        """Store the rows of a finished answer, if they fit."""
        text, buffer = self._recorder.take(example), self._buffers[prompt.for_validation]
        full = prompt.for_validation and len(buffer.keys) >= self._held_out
        useless = full or not (prompt.for_validation or self._for_training)
        if text is not None and not useless and example not in buffer and buffer.has_room(example):
            buffer.append(example, text.features)

    @property
    def bytes(self) -> int:
        """Bytes of all stored rows."""
        return sum(buffer.bytes for buffer in self._buffers.values())

    def bytes_to_come(self, examples: Sequence[Example], tokens: int) -> int:
        """Most bytes that the rows of answers, and of ``tokens`` more tokens, will still take."""
        kept = frozenset[str]().union(*(buffer.keys for buffer in self._buffers.values()))
        missing = sum(len(example.tokens) for example in examples if example.key not in kept)
        buffers = self._buffers.values() if self._for_training else [self._buffers[True]]
        room = sum(buffer.limit_bytes - buffer.bytes for buffer in buffers)
        row = self._buffers[True].row_bytes
        return max(0, min(room, (missing + tokens) * row))

    def flush(self) -> None:
        """Write the rows that are still in memory."""
        for buffer in self._buffers.values():
            buffer.flush()

    def filled(self, examples: Sequence[Example], *, judging: bool, console: Console) -> FeatureBuffer:
        """Capture missing texts, and return the buffer."""
        buffer = self._buffers[judging]
        report = capture(self._target, examples, self.layers, buffer, console=console)
        purpose = "held-out" if judging else "training"
        console.print(f"hidden rows: stored for {len(buffer):,} {purpose} texts, {report}")
        return buffer


def _kept_layers(folder: Path, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """The layers of the smallest buffer in a folder with all wanted layers; ``wanted`` if there is none."""
    names = [place.name.removeprefix(_PREFIX) for place in folder.glob(f"{_PREFIX}*")]
    known = [tuple(map(int, name.split("-"))) for name in names if name.replace("-", "").isdigit()]
    return min((layers for layers in known if set(wanted) <= set(layers)), key=len, default=wanted)
