"""Sources of training texts, in pieces that fit into memory: a buffer, forward passes, or online answers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from outrider.llm import LLM
from outrider.models.base import TargetModel
from outrider.train.data.example import Example
from outrider.train.data.prompts import TrainingPrompt
from outrider.train.data.regenerate import AnswerConfig, answers
from outrider.train.features.buffer import SHARD_BYTES, Captured, FeatureBuffer, row_bytes
from outrider.train.features.capture import capture_each, captured_layers
from outrider.train.features.recording import Recorder, watched


class Streamed:
    """Texts with their hidden rows: from a buffer if it has them, otherwise captured whenever they are read.

    So the disk is bounded and the texts are not.  Pieces follow the order of the texts' keys, not the buffer.

    Args:
        target: captures missing texts.
        examples: the texts.
        buffer: must not change meanwhile.
        piece_bytes: size of a piece.
    """

    def __init__(
        self, target: TargetModel, examples: Sequence[Example], buffer: FeatureBuffer, piece_bytes: int = SHARD_BYTES
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
        """The number of pieces; 0 without texts."""
        return len(self._starts) - 1 if self._examples else 0

    def read(self, piece: int) -> list[Captured]:
        wanted = self._examples[self._starts[piece] : self._starts[piece + 1]]
        found = {example.key: self._buffer.text(example) for example in wanted}
        missing = [example for example in wanted if found[example.key] is None]
        for example, features in capture_each(self._target, missing, self._buffer.layers):
            found[example.key] = Captured.of(example, features)
        return [text for text in found.values() if text is not None]


class Online:
    """Texts that are answered, with their hidden rows, whenever they are read; nothing is stored.

    Every epoch gives the same answers.  Pieces follow the order of the prompts' keys, and each has as many prompts as
    fit with the longest answers.

    Args:
        llm: the target.
        prompts: the prompts to answer.
        config: options of the answers.
        layers: layers that the head reads, in addition to the final rows.
        piece_bytes: most bytes of a piece; a single text may take more.
    """

    def __init__(
        self,
        llm: LLM,
        prompts: Sequence[TrainingPrompt],
        config: AnswerConfig,
        layers: Sequence[int],
        piece_bytes: int = SHARD_BYTES,
    ) -> None:
        target = llm.engine.target
        self._llm, self._config, self._layers = llm, config, captured_layers(target, layers)
        self._prompts = sorted(prompts, key=lambda prompt: prompt.key)
        longest = min(config.longest_prompt + config.max_tokens, target.context_length)
        self._each = max(1, piece_bytes // (longest * row_bytes(target.width, self._layers)))

    def __len__(self) -> int:
        return -(-len(self._prompts) // self._each)

    def read(self, piece: int) -> list[Captured]:
        prompts = self._prompts[piece * self._each : (piece + 1) * self._each]
        recorder = Recorder(self._layers)
        found: dict[str, Captured] = {}
        with closing(answers(watched(self._llm, recorder), prompts, self._config)) as stream:
            for prompt, example, _ in stream:
                text = None if example is None else recorder.take(example)
                if text is not None:
                    found[prompt.key] = text
        return [found[prompt.key] for prompt in prompts if prompt.key in found]
