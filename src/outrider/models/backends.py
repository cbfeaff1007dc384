"""Choose the backend, precision and device of a model, and load it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from outrider.errors import ConfigError, ModelError, counted
from outrider.kernels.native import warn_of_slow_kernels
from outrider.models.base import TargetModel
from outrider.models.files.tokenizer import Tokenizer
from outrider.models.hf.model import ATTENTION, HFModel
from outrider.models.loading import load, open_model
from outrider.models.native.decoder_plan import reason_against
from outrider.models.native.model import NativeModel
from outrider.models.native.packed_weights import Quantization

_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_DEVICES: Final = ("cpu", "cuda")
_AUTO: Final = "auto"
_log: Final = logging.getLogger("outrider")


def resolve_device(name: str) -> torch.device:
    """Find a device by name; ``auto`` is a GPU if there is one.

    Raises:
        ConfigError: the device is unknown, or this machine does not have it.
    """
    if name == _AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"there is no device {name!r}; use auto, cpu or cuda") from None
    if device.type not in _DEVICES:
        raise ConfigError(f"models cannot run on device {name!r}; use auto, cpu or cuda")
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= there:
        raise ConfigError(f"device {name} was asked for, but torch finds {counted(there, 'GPU')} here; use device cpu")
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Find a precision by name; ``auto`` is float32 on the CPU and bfloat16 on a GPU.

    Raises:
        ConfigError: there is none; the message lists all.
    """
    if name == _AUTO:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in _DTYPES:
        raise ConfigError(f"there is no dtype {name!r}; there are: auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


@dataclass(frozen=True)
class LoadOptions:
    """How to run models."""

    backend: str = _AUTO
    """Name of a backend; ``auto`` is the best one that can run the model."""
    dtype: str = _AUTO
    """Precision of the weights on ``hf``; the native backend keeps the file's own."""
    device: str = _AUTO
    context_length: int | None = None
    """Maximum positions; None is the model's own."""
    quantization: str = Quantization.NONE.value
    """Quantization on the native backend: ``none``, ``w8`` or ``w4``; ``auto`` is ``w4`` if that works."""
    draft_quantization: str = _AUTO
    """The same for draft models; it changes the speed and never the text."""

    @property
    def for_drafter(self) -> LoadOptions:
        """The options for a draft model."""
        return replace(self, context_length=None, quantization=self.draft_quantization)


Served = tuple[TargetModel, Tokenizer]


def _longest(own: int, options: LoadOptions) -> int:
    longest = own if options.context_length is None else options.context_length
    if not 1 <= longest <= own:
        raise ConfigError(f"context_length must be at least 1 and at most the model's {own}")
    return longest


def _load_hf(model: str | Path, options: LoadOptions) -> Served:
    if options.quantization not in (Quantization.NONE.value, _AUTO):
        raise ConfigError(f"the hf backend does not quantise; {options.quantization} needs the native backend")
    device = resolve_device(options.device)
    loaded = load(model, dtype=resolve_dtype(options.dtype, device), device=device, attention=ATTENTION)
    module, files = loaded.module, loaded.files
    longest = _longest(files.context_length, options)
    served = HFModel(module, architecture=type(module).__name__, context_length=longest, source=files.path)
    return served, files.tokenizer


def _load_native(model: str | Path, options: LoadOptions) -> Served:
    if (reason := _native_ruled_out(options)) is not None:
        raise UnsuitableError(reason)
    files = open_model(model)
    if (reason := reason_against(files.config)) is not None:
        raise UnsuitableError(reason)
    quantization = Quantization.W4 if options.quantization == _AUTO else Quantization.named(options.quantization)
    longest = _longest(files.context_length, options)
    warn_of_slow_kernels()
    try:
        return NativeModel.of(files, quantization=quantization, context_length=longest), files.tokenizer
    except ModelError as error:  # weights or a configuration that only another backend supports
        raise UnsuitableError(str(error)) from error


def _native_ruled_out(options: LoadOptions) -> str | None:
    device = resolve_device(options.device)
    if device.type != "cpu":
        return f"it runs on the CPU, not on {device}"
    if options.dtype != _AUTO:
        return (
            f"it keeps the weights' own precision, and dtype {options.dtype} was asked for; leave dtype out to use it"
        )
    return None


def _gives_up_native(options: LoadOptions, served: TargetModel) -> bool:
    """Whether only an argument, not the machine or the model, ruled the native backend out."""
    on_cpu = resolve_device(options.device).type == "cpu"
    argument = options.dtype if on_cpu else options.device
    return argument != _AUTO and isinstance(served, HFModel) and reason_against(served.module.config) is None


class UnsuitableError(ModelError):
    """A backend that cannot run a model as requested; another one may."""


_Loader = Callable[[str | Path, LoadOptions], Served]
_BACKENDS: Final[dict[str, _Loader]] = {"native": _load_native, "hf": _load_hf}
"""Best first."""


def backends() -> list[str]:
    """Names of all backends, best first."""
    return list(_BACKENDS)


def load_model(model: str | Path, options: LoadOptions | None = None) -> Served:
    """Load a model (see :func:`outrider.models.loading.find`) on the best backend that can run it.

    Raises:
        ConfigError: the backend or quantization is unknown, or the context is longer than the model's.
        ModelError: the model cannot be found, read or run.
    """
    wanted = options or LoadOptions()
    if wanted.backend != _AUTO:
        if wanted.backend not in _BACKENDS:
            raise ConfigError(f"there is no backend {wanted.backend!r}; there are: auto, {', '.join(_BACKENDS)}")
        try:
            return _BACKENDS[wanted.backend](model, wanted)
        except UnsuitableError as error:
            raise ModelError(f"the {wanted.backend} backend cannot serve {model}: {error}") from None
    best, *others = _BACKENDS
    return _first_that_serves(model, wanted, best, others)


def _first_that_serves(model: str | Path, options: LoadOptions, name: str, others: Sequence[str]) -> Served:
    if not others:
        return _BACKENDS[name](model, options)
    try:
        return _BACKENDS[name](model, options)
    except UnsuitableError as error:
        reason = error
    try:
        served = _first_that_serves(model, options, others[0], others[1:])
    except ConfigError as error:
        raise ConfigError(f"{error} ({name} cannot serve {model}: {reason})") from error
    # Warn only if the model or an argument ruled the best backend out; with a GPU, the user expects the other one.
    surprising = not _native_ruled_out(options) or _gives_up_native(options, served[0])
    level = logging.WARNING if surprising else logging.INFO
    _log.log(level, "%s runs on the %s backend: %s cannot serve it: %s", model, others[0], name, reason)
    return served
