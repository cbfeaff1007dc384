"""What comes of a training: what is written for each network that was trained, and which arms show what it buys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from outrider.config import Speculation
from outrider.heads.checkpoint import HeadCheckpoint, TargetFacts, write_head

UNTRAINED: Final = "untrained"
"""Folder of what a training began with, and the word for it in tables."""


class Product(Protocol):
    """How trained networks are kept and run."""

    shows_untrained: bool
    """Whether what a training begins with drafts already, so that it is kept, too, and compared with."""
    starts_from_heads: bool
    """Whether a training can begin with a head that was written before."""

    def place(self, output: Path, index: int) -> Path:
        """The folder of the network that is trained as number ``index``, from 0."""
        ...

    def write(self, folder: Path, network: Any, target: TargetFacts, told: Mapping[str, Any]) -> None:
        """Write a network so that its method runs it.

        Args:
            folder: where to; it is made.
            network: the network.
            target: what it drafts for.
            told: how it was made, for people.
        """
        ...

    def arms(self, method: str, output: Path) -> dict[str, Speculation]:
        """What is to be compared, by name, the product itself last."""
        ...


class HeadProduct:
    """A head in a folder of its own format, see :mod:`outrider.heads.checkpoint`."""

    shows_untrained = False
    starts_from_heads = True

    def place(self, output: Path, index: int) -> Path:
        """See :class:`Product`."""
        return output

    def write(self, folder: Path, network: Any, target: TargetFacts, told: Mapping[str, Any]) -> None:
        """See :class:`Product`."""
        kind = type(network).__module__.rpartition(".")[2]
        write_head(folder, HeadCheckpoint(kind, network.config, target, network.state_dict(), told))

    def arms(self, method: str, output: Path) -> dict[str, Speculation]:
        """See :class:`Product`."""
        return {method: Speculation(method).drafting_with(output, "the head")}
