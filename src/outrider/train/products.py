"""What comes of a training: what is written for each trained network, and what its payoff is measured by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from outrider.config import Speculation
from outrider.heads.checkpoint import HeadCheckpoint, TargetFacts, write_head

UNTRAINED: Final = "untrained"
"""Folder of what a training began with, and the word for it in tables."""


class Product:
    """How trained networks are kept and run: here as a head in its own folder, see :mod:`outrider.heads.checkpoint`."""

    shows_untrained = False
    """Whether what a training begins with drafts already, so that it is kept, too, and compared with."""
    starts_from_heads = True
    """Whether a training can begin with a head that was written before."""

    def place(self, output: Path, index: int) -> Path:
        """The folder of the network that is trained as number ``index``, from 0."""
        return output

    def write(self, folder: Path, network: Any, target: TargetFacts, made: Mapping[str, Any]) -> None:
        """Write a network so that its method runs it.

        Args:
            folder: where to; it is made.
            network: the network.
            target: what it drafts for.
            made: how it was made, for people.
        """
        kind = type(network).__module__.rpartition(".")[2]
        write_head(folder, HeadCheckpoint(kind, network.config, target, network.state_dict(), made))

    def arms(self, method: str, output: Path) -> dict[str, Speculation]:
        """What is to be compared, by name, the product itself last."""
        return {method: Speculation(method).drafting_with(output, "the head")}
