"""Which backend runs a model, in which precision, on which device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from outrider.errors import ConfigError
from outrider.target.base import TargetModel
from outrider.target.hf import ATTENTION, HFModel
from outrider.target.loading import load
from outrider.target.tokenizer import Tokenizer

_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_AUTO: Final = "auto"


def resolve_device(name: str) -> torch.device:
    """The device of a name; ``auto`` takes a GPU where there is one.

    Raises:
        ConfigError: an unknown device, or one this machine does not have.
    """
    if name == _AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"there is no device {name!r}; use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda was asked for, but torch finds no GPU here; use --device cpu")
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The precision of a name; ``auto`` is float32 on the CPU, where it can keep its word, and bfloat16 on a GPU.

    Raises:
        ConfigError: listing the names there are.
    """
    if name == _AUTO:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in _DTYPES:
        raise ConfigError(f"there is no dtype {name!r}; there are: auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _load_hf(
    model: str | Path, dtype: torch.dtype, device: torch.device, context_length: int | None
) -> tuple[TargetModel, Tokenizer]:
    loaded = load(model, dtype=dtype, device=device, attention=ATTENTION)
    longest = loaded.context_length if context_length is None else context_length
    if not 1 <= longest <= loaded.context_length:
        raise ConfigError(f"context_length must be at least 1 and at most the model's {loaded.context_length}")
    served = HFModel(loaded.module, architecture=loaded.architecture, context_length=longest)
    return served, loaded.tokenizer


_Loader = Callable[[str | Path, torch.dtype, torch.device, int | None], tuple[TargetModel, Tokenizer]]
_BACKENDS: Final[dict[str, _Loader]] = {"hf": _load_hf}
_PREFERENCE: Final = ("hf",)


def backends() -> list[str]:
    """Names of every backend, best first."""
    return list(_PREFERENCE)


def load_model(
    model: str | Path,
    *,
    backend: str,
    dtype: torch.dtype,
    device: torch.device,
    context_length: int | None = None,
) -> tuple[TargetModel, Tokenizer]:
    """Load a model behind the best backend that serves it.

    Args:
        model: see :func:`outrider.target.loading.load`.
        backend: its name, or ``auto``.
        dtype: precision of the weights.
        device: where they go.
        context_length: most positions to serve; None is the model's own.

    Raises:
        ConfigError: an unknown backend, or a context longer than the model's.
        ModelError: the model cannot be found, read or served.
    """
    name = _PREFERENCE[0] if backend == _AUTO else backend
    if name not in _BACKENDS:
        raise ConfigError(f"there is no backend {backend!r}; there are: auto, {', '.join(_BACKENDS)}")
    return _BACKENDS[name](model, dtype, device, context_length)
