"""The result of a training: how trained networks are written, and which methods measure their speedup."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from outrider.config import Speculation
from outrider.heads.checkpoint import HeadCheckpoint, TargetFacts, write_head

UNTRAINED: Final = "untrained"
"""Folder of a training's initial network, and its name in tables."""


class Product:
    """How trained networks are written and run; by default as a head, see :mod:`outrider.heads.checkpoint`."""

    shows_untrained = False
    """Whether the initial network can draft; if so, it is written and compared too."""
    starts_from_heads = True
    """Whether a training can start from a written head."""

    def place(self, output: Path, index: int) -> Path:
        """The folder of network ``index``, counted from 0."""
        return output

    def write(self, folder: Path, network: Any, target: TargetFacts, made: Mapping[str, Any]) -> None:
        """Write a network so that its method runs it.

        Args:
            folder: where to; it is created.
            network: the network.
            target: the model it drafts for.
            made: how it was trained, for information.
        """
        kind = type(network).__module__.rpartition(".")[2]
        write_head(folder, HeadCheckpoint(kind, network.config, target, network.state_dict(), made))

    def arms(self, method: str, output: Path) -> dict[str, Speculation]:
        """The methods to compare, by name; the product itself comes last."""
        return {method: Speculation(method).drafting_with(output, "the head")}
