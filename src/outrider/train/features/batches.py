"""Padded batches of captured texts, in an order that a seed fixes and a position resumes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

import torch

from outrider.errors import ConfigError
from outrider.train.features.buffer import Captured

_POOL: Final = 16
"""Texts of about equal length are put together among so many batches' worth: less padding, still a mixed order."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Texts of one step, padded to the longest: ``B`` texts of ``T`` positions.

    Words: row t is what the target computed of the text up to token t, so its next token is t + 1.
    """

    tokens: torch.Tensor
    """int64 [B, T]; past a text's end they mean nothing."""
    mask: torch.Tensor
    """bool [B, T]: rows that count, those whose next token is part of the answer."""
    features: Mapping[int, torch.Tensor]
    """fp32 [B, T, width] of each layer, zero past a text's end; layer i is the output of block i."""
    lengths: torch.Tensor
    """int64 [B]: tokens of each text."""
    seed: int = 0
    """Whatever a recipe draws for this batch it draws from a generator seeded with this."""
    best: torch.Tensor | None = None
    """int64 [B, T]: the target's most probable next token of every row, where it has been computed already."""

    @property
    def final(self) -> torch.Tensor:
        """Rows after the final norm, which the LM head reads: fp32 [B, T, width]."""
        return self.features[max(self.features)]

    def following(self, by: int) -> torch.Tensor:
        """The token ``by`` places after each row's own: int64 [B, T], 0 where the batch ends."""
        return shifted(self.tokens, by)

    def generator(self) -> torch.Generator:
        """A fresh generator under the batch's seed."""
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
    """Values [B, T] moved ``by`` columns to the front; what falls in at the end is zero (False)."""
    moved = torch.zeros_like(values)
    if by < values.shape[1]:
        moved[:, : values.shape[1] - by] = values[:, by:]
    return moved


@dataclass(frozen=True)
class BatchShape:
    """How texts become batches."""

    layers: tuple[int, ...]
    """Layers whose rows a batch carries; the highest is the final one."""
    rows: int = 2048
    """Most positions of a batch, padding included; a longer text is a batch of its own."""
    max_length: int = 2048
    """Longer texts are cut here."""

    def learnable(self, text: Captured) -> bool:
        """Whether a row of the text counts once it is cut."""
        return 0 < text.answer_start < min(len(text.tokens), self.max_length)

    def length(self, text: Captured) -> int:
        """Tokens of the text once it is cut."""
        return min(len(text.tokens), self.max_length)

    def group(self, texts: Sequence[Captured]) -> Iterator[list[Captured]]:
        """Texts in batches, in the order given."""
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
        """One batch of texts, in fp32."""
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
        """Pieces there are."""
        ...

    def read(self, shard: int) -> Sequence[Captured]:
        """The texts of one piece."""
        ...


class Position(NamedTuple):
    """A place in the endless order of batches: the next batch to come."""

    epoch: int = 0
    window: int = 0
    batch: int = 0


class Batches:
    """Batches without end, from a position that can be kept and returned to: every text of some shards once per epoch.

    An epoch's shards are shuffled and read ``window`` at a time; texts are shuffled within a window.  So memory holds
    one window, and a place is found again by reading one.
    """

    def __init__(self, shards: Shards, shape: BatchShape, *, seed: int, window: int = 4) -> None:
        self.position = Position()
        """Where the next batch is read; may be set to a position it once had."""
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
        """Pass over a batch, which another worker takes."""
        barren = 0
        while barren < 2:  # an epoch may end with nothing, but not begin and end so
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
            f"there is nothing to train on: no text has an answer that begins before token {self._shape.max_length}"
        )

    def _texts(self, epoch: int, window: int) -> Sequence[Captured] | None:
        """The texts of a window, or None past an epoch's last."""
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
    """Groups of about equally long texts; which texts stand near each other is left to the order given."""
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
        ConfigError: no text has an answer to be judged on.
    """
    learnable = sorted((text for text in texts if shape.learnable(text)), key=shape.length)
    if not learnable:
        raise ConfigError("there are no held-out texts with an answer, so nothing can be judged")
    return [shape.pad(group, seed) for seed, group in enumerate(shape.group(learnable))]
