"""A small decoder of the target's family, cut out of the target.

It has some of the layers and, of each, the most useful channels of the feed-forward part.  The usefulness of a channel
is ‖gate‖·‖up‖·‖down‖, the product of the norms of its weights, which bounds what it can add to a row.  Embeddings and
LM head are the target's; only the blocks are trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.errors import ConfigError
from outrider.heads.checkpoint import writing
from outrider.models.base import TargetModel
from outrider.models.hf.blueprint import blueprint
from outrider.models.hf.pruned import BODY, body, run, smaller_config, write_folder
from outrider.models.loading import ModelFiles, open_model
from outrider.models.native.decoder_plan import FAMILIES
from outrider.models.tensors import parameters


@dataclass(frozen=True)
class Cut:
    """What is kept of a target."""

    layers: tuple[int, ...]
    """In order."""
    inner: int = 0
    """Channels of each feed-forward part; 0 is all."""


def spread_layers(count: int, layers: int) -> tuple[int, ...]:
    """``count`` evenly spread layers with the first and the last; a single one is the first.

    Raises:
        ConfigError: the target has fewer layers.
    """
    if not 1 <= count <= layers:
        raise ConfigError(f"the target has {layers} layers, so keep from 1 to {layers} of them, not {count}")
    return tuple(round(place * (layers - 1) / max(1, count - 1)) for place in range(count))


def parse_layers(text: str, layers: int) -> tuple[int, ...]:
    """Parse layers such as ``0,9,29``.

    Raises:
        ConfigError: the text is malformed, or the target has no such layer.
    """
    try:
        chosen = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"layers are numbers separated by commas, such as 0,9,29, not {text!r}") from None
    if list(chosen) != sorted(set(chosen)):
        raise ConfigError(f"layers must be in ascending order, each once, not {text!r}")
    if wrong := [layer for layer in chosen if not 0 <= layer < layers]:
        raise ConfigError(f"there is no layer {wrong[0]} to keep: the target's are 0 to {layers - 1}")
    return chosen


class SmallDecoder(torch.nn.Module):
    """The trained part of a small decoder: blocks and final norm, between the target's embeddings and LM head.

    Args:
        files: the target's files.
        cut: what to keep.
        ids: int64 [v], the tokens of the loss; None is all.
    """

    ids: torch.Tensor | None

    def __init__(self, files: ModelFiles, cut: Cut, ids: torch.Tensor | None) -> None:
        super().__init__()
        self.files, self.cut = files, cut
        self.register_buffer("ids", None if ids is None else ids.clone())
        self.config = smaller_config(files.config, cut.layers, cut.inner or files.config.intermediate_size)
        self.body = body(self.config, files.context_length)
        kept = {name.removeprefix(BODY): weight for name, weight in _kept(files, self.config, cut)}
        self.body.load_state_dict(kept, assign=True)
        self.body.requires_grad_(True)

    def forward(self, embedded: torch.Tensor) -> torch.Tensor:
        """Embedded texts [B, T, width] to rows after the final norm [B, T, width]."""
        return run(self.body, embedded)

    def write(self, folder: Path) -> None:
        """Write a complete model, with the target's embeddings, LM head and tokenizer."""
        own = {f"{BODY}{name}": weight for name, weight in self.body.state_dict().items()}
        numbers = parameters(self.files)
        due = blueprint(self.config).shapes
        ends = {name: numbers[name] for name in due if name not in own}
        with writing(folder):
            write_folder(folder, self.config, own | ends, self.files.tokenizer)


def source_of(target: TargetModel) -> ModelFiles:
    """The files of a target, to cut a smaller decoder out of it.

    Raises:
        ConfigError: the target was made in memory, or its family is not supported.
    """
    if target.source is None:
        raise ConfigError(
            "a draft model is cut out of the target's files, but this target has none; load one from disk"
        )
    files = open_model(target.source)
    if files.config.model_type not in FAMILIES:
        raise ConfigError(
            f"no draft model can be cut out of {files.name}: its model type {files.config.model_type!r} is not among "
            f"{', '.join(FAMILIES)}"
        )
    if absent := blueprint(files.config).shapes.keys() - set(parameters(files)):
        raise ConfigError(
            f"no draft model can be cut out of {files.name}: its weights hold nothing named {min(absent)!r}"
        )
    return files


def check_cut(cut: Cut, files: ModelFiles) -> None:
    """Refuse to keep more channels than the target has.

    Raises:
        ConfigError: the message names the number of channels.
    """
    if cut.inner > files.config.intermediate_size:
        raise ConfigError(
            f"{files.name} has {files.config.intermediate_size} channels in a feed-forward part; keep at most as many, "
            f"not {cut.inner}"
        )


def _kept(files: ModelFiles, small: Any, cut: Cut) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters of the blocks and the final norm, by name in the small model."""
    due, numbers = blueprint(small).shapes, parameters(files)
    for name in due:
        if name.startswith(BODY) and not name.startswith((f"{BODY}layers.", f"{BODY}embed_tokens.")):
            yield name, numbers[name].float().clone()
    for place, layer in enumerate(cut.layers):
        begins = f"{BODY}layers.{place}."
        shapes = {name.removeprefix(begins): shape for name, shape in due.items() if name.startswith(begins)}
        parts = {name: numbers[f"{BODY}layers.{layer}.{name}"].float() for name in shapes}
        channels = most_useful_channels(parts, shapes, files.config.intermediate_size, small.intermediate_size)
        for name, part in parts.items():
            yield f"{begins}{name}", keep_channels(part, shapes[name], files.config.intermediate_size, channels).clone()


def most_useful_channels(
    parts: Mapping[str, torch.Tensor], shapes: Mapping[str, Sequence[int]], inner: int, wanted: int
) -> torch.Tensor:
    """The most useful channels of one feed-forward part, ascending: int64 [wanted].

    Args:
        parts: parameters of a layer; a tensor may contain several matrices one after the other.
        shapes: shape of each in the smaller model.
        inner: number of channels.
        wanted: number of channels to keep.
    """
    score = torch.ones(inner, dtype=torch.float64)
    for name, part in parts.items():
        for dimension in _differing(part.shape, shapes[name]) if part.ndim > 1 else ():
            norms = part.double().norm(dim=1 - dimension)
            score *= norms.view(-1, inner).prod(0)
    return score.topk(wanted).indices.sort().values


def keep_channels(part: torch.Tensor, shape: Sequence[int], inner: int, channels: torch.Tensor) -> torch.Tensor:
    """A parameter with some of its channels, in the dimension in which it is larger than in the smaller model."""
    for dimension in _differing(part.shape, shape):
        matrices = torch.arange(part.shape[dimension] // inner) * inner
        part = part.index_select(dimension, (matrices[:, None] + channels).flatten())
    return part


def _differing(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [dimension for dimension, sizes in enumerate(zip(one, other, strict=True)) if sizes[0] != sizes[1]]
