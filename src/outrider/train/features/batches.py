"""Padded batches of captured texts, in a seeded order that can resume at a position."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

import torch

from outrider.errors import ConfigError
from outrider.train.features.buffer import Captured

_POOL: Final = 16
"""Texts for this many batches are sorted by length, which saves padding and keeps the order mixed."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Texts of one step, padded to the longest: ``B`` texts of ``T`` positions.

    Row t is what the target computes after token t, so its next token is t + 1.
    """

    tokens: torch.Tensor
    """int64 [B, T]; undefined past a text's end."""
    mask: torch.Tensor
    """bool [B, T]: rows that count, because their next token is part of the answer."""
    features: Mapping[int, torch.Tensor]
    """fp32 [B, T, width] of each layer, zero past a text's end; layer i is the output of block i."""
    lengths: torch.Tensor
    """int64 [B]: tokens of each text."""
    seed: int = 0
    """Seed of everything that a recipe draws for this batch."""
    best: torch.Tensor | None = None
    """int64 [B, T]: the target's most probable next token of every row, if already computed."""

    @property
    def final(self) -> torch.Tensor:
        """Rows after the final norm, which the LM head reads: fp32 [B, T, width]."""
        return self.features[max(self.features)]

    def following(self, by: int) -> torch.Tensor:
        """The token ``by`` places after each row's own: int64 [B, T], 0 past the end."""
        return shifted(self.tokens, by)

    def generator(self) -> torch.Generator:
        """A new generator with the batch's seed."""
        return torch.Generator().manual_seed(self.seed)

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return replace(
            self,
            tokens=self.tokens.to(device),
            mask=self.mask.to(device),
            features={layer: rows.to(device) for layer, rows in self.features.items()},
            lengths=self.lengths.to(device),
            best=None if self.best is None else self.best.to(device),
        )


def shifted(values: torch.Tensor, by: int) -> torch.Tensor:
    """Values [B, T] shifted left by ``by`` columns, filled with zeros (False)."""
    moved = torch.zeros_like(values)
    if by < values.shape[1]:
        moved[:, : values.shape[1] - by] = values[:, by:]
    return moved


@dataclass(frozen=True)
class BatchShape:
    """How texts become batches."""

    layers: tuple[int, ...]
    """Layers whose rows a batch contains; the highest is the final one."""
    rows: int = 2048
    """Most positions of a batch, with padding; a longer text is a batch of its own."""
    max_length: int = 2048
    """Longer texts are cut to this length."""

    def learnable(self, text: Captured) -> bool:
        """Whether a row of the cut text counts."""
        return 0 < text.answer_start < min(len(text.tokens), self.max_length)

    def length(self, text: Captured) -> int:
        """Tokens of the cut text."""
        return min(len(text.tokens), self.max_length)

    def group(self, texts: Sequence[Captured]) -> Iterator[list[Captured]]:
        """Split texts into batches, in order."""
        group: list[Captured] = []
        longest = 0
        for text in texts:
            longest = max(longest, self.length(text))
            if group and longest * (len(group) + 1) > self.rows:
                yield group
                group, longest = [], self.length(text)
            group.append(text)
        if group:
            yield group

    def pad(self, texts: Sequence[Captured], seed: int = 0) -> Batch:
        """Make one fp32 batch of texts."""
        lengths = torch.tensor([self.length(text) for text in texts])
        longest = int(lengths.max())
        tokens = torch.zeros(len(texts), longest, dtype=torch.int64)
        mask = torch.zeros(len(texts), longest, dtype=torch.bool)
        for row, (text, length) in enumerate(zip(texts, lengths.tolist(), strict=True)):
            tokens[row, :length] = torch.as_tensor(text.tokens[:length])
            mask[row, text.answer_start - 1 : length - 1] = True
        features = {layer: self._rows_of(layer, texts, longest) for layer in self.layers}
        return Batch(tokens, mask, features, lengths, seed)

    def _rows_of(self, layer: int, texts: Sequence[Captured], longest: int) -> torch.Tensor:
        first = texts[0].features[layer]
        rows = torch.zeros(len(texts), longest, first.shape[1])
        for row, text in enumerate(texts):
            length = self.length(text)
            rows[row, :length] = text.features[layer][:length]
        return rows


class Shards(Protocol):
    """Captured texts in pieces that fit into memory."""

    def __len__(self) -> int:
        """The number of pieces."""
        ...

    def read(self, shard: int) -> Sequence[Captured]:
        """Read the texts of one piece."""
        ...


class Position(NamedTuple):
    """The next batch in the endless order of batches."""

    epoch: int = 0
    window: int = 0
    batch: int = 0


class Batches:
    """Endless batches, with every text once per epoch, from a position that can be saved and restored.

    An epoch's shards are shuffled and read ``window`` at a time; texts are shuffled within a window.  So memory holds
    one window, and restoring a position reads one.
    """

    def __init__(self, shards: Shards, shape: BatchShape, *, seed: int, window: int = 4) -> None:
        self.position = Position()
        """The next batch to read; may be set to an earlier value."""
        self._shards, self._shape, self._seed, self._window = shards, shape, seed, window
        self._groups: list[list[Captured]] = []
        self._read: tuple[int, int] | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch.

        Raises:
            ConfigError: no text of an epoch has an answer to learn from.
        """
        self.skip()
        epoch, window, after = self.position
        seed = self._draw("draws", epoch, window, after - 1).getrandbits(63)
        return self._shape.pad(self._groups[after - 1], seed)

    def skip(self) -> None:
        """Skip a batch, which another worker takes."""
        barren = 0
        while barren < 2:  # one end of an epoch is fine; two without a batch between mean that there is none
            epoch, window, index = self.position
            if self._read != (epoch, window):
                self._groups, self._read = [], None  # one window at a time
                if (texts := self._texts(epoch, window)) is None:
                    barren += 1
                    self.position = Position(epoch + 1)
                    continue
                self._order(epoch, window, texts)
            if index < len(self._groups):
                self.position = Position(epoch, window, index + 1)
                return
            self.position = Position(epoch, window + 1)
        raise ConfigError(
            f"there is nothing to train on: no text has an answer that starts before token {self._shape.max_length}"
        )

    def _texts(self, epoch: int, window: int) -> Sequence[Captured] | None:
        """The texts of a window; None past an epoch's last."""
        order = list(range(len(self._shards)))
        self._draw("shards", epoch).shuffle(order)
        mine = order[window * self._window : (window + 1) * self._window]
        return [text for shard in mine for text in self._shards.read(shard)] if mine else None

    def _order(self, epoch: int, window: int, texts: Sequence[Captured]) -> None:
        learnable = [text for text in texts if self._shape.learnable(text)]
        dice = self._draw("texts", epoch, window)
        dice.shuffle(learnable)
        self._groups = list(_evened(learnable, self._shape))
        dice.shuffle(self._groups)
        self._read = (epoch, window)

    def _draw(self, *what: object) -> random.Random:
        return random.Random(f"{self._seed} {what}")


def _evened(texts: list[Captured], shape: BatchShape) -> Iterator[list[Captured]]:
    """Split texts into batches of about equal lengths, pool by pool."""
    pool: list[Captured] = []
    held = 0
    for text in texts:
        pool.append(text)
        held += shape.length(text)
        if held >= _POOL * shape.rows:
            yield from shape.group(sorted(pool, key=shape.length))
            pool, held = [], 0
    yield from shape.group(sorted(pool, key=shape.length))


def held_out_batches(texts: Iterable[Captured], shape: BatchShape) -> list[Batch]:
    """Batches of held-out texts, the same each time.

    Raises:
        ConfigError: no text has an answer.
    """
    learnable = sorted((text for text in texts if shape.learnable(text)), key=shape.length)
    if not learnable:
        raise ConfigError("no held-out text has an answer, so the head cannot be evaluated; give more prompts")
    return [shape.pad(group, seed) for seed, group in enumerate(shape.group(learnable))]
