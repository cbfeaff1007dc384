"""The hidden rows of one folder of texts: of those to train on and of those to judge by, each in a buffer."""

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
"""Names of the buffers, by whether their texts are kept for judging."""


class HiddenRows:
    """Buffers that answers fill as they are decoded, and a pass of its own where one was missed.

    Args:
        target: the model.
        folder: where buffers lie; one that has the layers wanted and more is used as it is.
        layers: read by the head, beside the rows after the final norm.
        limit_bytes: most bytes of each buffer.
        held_out: most texts to judge by.
        name: the target's; rows of another are refused.
        for_training: whether rows of texts to train on are read from here, and so are kept.

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
        """The same target, whose answers :meth:`keep` then knows the rows of."""
        return watched(llm, self._recorder)

    def keep(self, prompt: TrainingPrompt, example: Example) -> None:
        """Take in the rows of an answer that has just ended, if there is room for them."""
        text, buffer = self._recorder.take(example), self._buffers[prompt.for_validation]
        full = prompt.for_validation and len(buffer.keys) >= self._held_out
        useless = full or not (prompt.for_validation or self._for_training)
        if text is not None and not useless and example not in buffer and buffer.has_room(example):
            buffer.append(example, text.features)

    @property
    def bytes(self) -> int:
        """Bytes of all rows that are kept."""
        return sum(buffer.bytes for buffer in self._buffers.values())

    def bytes_to_come(self, examples: Sequence[Example], tokens: int) -> int:
        """Most bytes that rows will yet take, of answers that are there and of so many tokens of others."""
        kept = frozenset[str]().union(*(buffer.keys for buffer in self._buffers.values()))
        missing = sum(len(example.tokens) for example in examples if example.key not in kept)
        buffers = self._buffers.values() if self._for_training else [self._buffers[True]]
        room = sum(buffer.limit_bytes - buffer.bytes for buffer in buffers)
        row = self._buffers[True].row_bytes
        return max(0, min(room, (missing + tokens) * row))

    def flush(self) -> None:
        """Write what is still in memory."""
        for buffer in self._buffers.values():
            buffer.flush()

    def filled(self, examples: Sequence[Example], *, judging: bool, console: Console) -> FeatureBuffer:
        """The buffer of some texts, those that it lacks captured now."""
        buffer = self._buffers[judging]
        report = capture(self._target, examples, self.layers, buffer, console=console)
        purpose = "to judge by" if judging else "to train on"
        console.print(f"hidden rows: kept of {len(buffer):,} texts {purpose}, {report}")
        return buffer


def _kept_layers(folder: Path, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Layers of the smallest buffer in a folder that has all that are wanted; those themselves where there is none."""
    names = [place.name.removeprefix(_PREFIX) for place in folder.glob(f"{_PREFIX}*")]
    known = [tuple(map(int, name.split("-"))) for name in names if name.replace("-", "").isdigit()]
    return min((layers for layers in known if set(wanted) <= set(layers)), key=len, default=wanted)
