"""Trained heads that are part of an installation, and their measurements.

They are in a checkout's ``assets/heads``, and in every installed distribution whose entry point of the group
``outrider.heads`` returns their folder.  Beside a head's own files, ``target.safetensors`` identifies its model, and
``measured.json`` says where it pays.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from outrider.errors import ModelError

GROUP: Final = "outrider.heads"
MEASURED: Final = "measured.json"
TARGET: Final = "target.safetensors"
WORKLOADS: Final = tuple((text, temperature) for text in ("code", "chat") for temperature in (0.0, 1.0))
"""Where a head must pay before ``auto`` uses it, since requests are not known when a model is loaded."""
_CHECKOUT: Final = Path(__file__).parents[3] / "assets" / "heads"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Measurement:
    """Speedup of a head on one kind of text, over plain decoding in the same interleaved run."""

    text: str
    """``code`` or ``chat``."""
    temperature: float
    prompts: str
    speedup: float
    interval: tuple[float, float]
    """95 %, bootstrapped over prompts."""
    lookup: float | None
    """Speedup of the best lookup in the same run."""
    machine: str
    date: str
    source: str
    """File under ``results/``."""

    @property
    def pays(self) -> bool:
        """Whether it was certainly faster than plain decoding, and no slower than lookup."""
        return self.interval[0] > 1 and self.speedup >= (self.lookup or 0)


@dataclass(frozen=True)
class ShippedHead:
    """A trained head of this installation."""

    name: str
    folder: Path
    method: str = ""
    """Drafting method it was measured with."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of that method in the measurement."""
    measurements: tuple[Measurement, ...] = ()

    @property
    def pays(self) -> bool:
        """Whether it was measured on all workloads, and pays on each."""
        paying = {(each.text, each.temperature) for each in self.measurements if each.pays}
        losing = {(each.text, each.temperature) for each in self.measurements if not each.pays}
        return paying - losing >= set(WORKLOADS)

    def is_for(self, model: Path) -> bool:
        """Whether a folder or GGUF file certainly holds the model it was made for."""
        from outrider.models.identity import is_same_model, read_identity  # needs torch, which listing heads does not

        try:
            return is_same_model(model, read_identity(self.folder / TARGET))
        except ModelError as error:  # loading the model reports it
            _log.debug("cannot tell whether %s is for %s: %s", self.name, model, error)
            return False


def shipped_heads() -> tuple[ShippedHead, ...]:
    """All shipped heads, by name; the checkout's come before those of distributions."""
    found: dict[str, ShippedHead] = {}
    for folder in _folders():
        for config in sorted(folder.glob("*/config.json")):
            found.setdefault(config.parent.name, _read(config.parent))
    return tuple(found[name] for name in sorted(found))


def shipped_head(name: str | Path) -> ShippedHead | None:
    """The shipped head with this name or in this folder; None if there is none."""
    named = str(name)
    return next((head for head in shipped_heads() if named in (head.name, str(head.folder))), None)


def head_folder(named: str | Path) -> Path:
    """Folder of a head, given its path or the name of a shipped head; an existing path goes first."""
    path = Path(named)
    if (path / "config.json").is_file():
        return path
    head = shipped_head(named)
    return path if head is None else head.folder


def paying_heads(model: Path) -> tuple[str, ...]:
    """Folder of the shipped head that was made for a model and pays on all workloads; empty if there is none.

    Of several, it is the one with the greatest minimum speedup.
    """
    found = [head for head in shipped_heads() if head.pays and head.is_for(model)]
    best = max(found, key=lambda head: min(each.speedup for each in head.measurements), default=None)
    return () if best is None else (str(best.folder),)


def measured_options(method: str, head: str | Path) -> Mapping[str, Any]:
    """Options that a shipped head was measured with for a method; empty if it was not measured."""
    found = shipped_head(head)
    return found.options if found is not None and found.method == method else {}


@cache
def _folders() -> tuple[Path, ...]:
    return tuple(folder.resolve() for folder in (_CHECKOUT, *_installed()) if folder.is_dir())


def _installed() -> Iterator[Path]:
    for entry in entry_points(group=GROUP):
        try:
            yield Path(entry.load()())
        except Exception as error:  # noqa: BLE001 - code of another distribution
            _log.warning("the heads of %s cannot be found: %s", entry.dist and entry.dist.name, error)


@cache
def _read(folder: Path) -> ShippedHead:
    try:
        told = json.loads((folder / MEASURED).read_text(encoding="utf-8"))
        measurements = tuple(
            Measurement(**(each | {"interval": tuple(each["interval"])})) for each in told["measurements"]
        )
        return ShippedHead(folder.name, folder, told["method"], told["options"], measurements)
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.debug("nothing is known to be measured of the head in %s: %s", folder, error)
        return ShippedHead(folder.name, folder)
