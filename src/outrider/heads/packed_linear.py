"""Linear layers of a small torch module on the CPU kernels: weights in eight or four bits, activations in eight.

Packed weights have no gradients.  On disk they are stored in the blocks of GGUF files, which any installation can read;
only multiplication needs the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from outrider.errors import ConfigError
from outrider.kernels.native import cpu, missing
from outrider.models.files.dequantize import TENSOR_KINDS, DequantizeJob, dequantize
from outrider.models.native.packed_weights import pack_all, stored_matrix

_KINDS: Final = {kind.name: kind for kind in TENSOR_KINDS.values()}
_PACKED: Final = ("Q8_0", "Q4_0")
_GROUP: Final = 32
"""Inputs that share a scale."""


@dataclass(frozen=True)
class Packing:
    """Kinds to pack a module's matrices in; None leaves them in torch.

    Raises:
        ConfigError: weights cannot be packed in a kind.
    """

    body: str | None = "Q8_0"
    head: str | None = "Q4_0"
    """Kind of the LM head, by far the largest matrix."""
    head_names: tuple[str, ...] = ("lm_head", "lm_heads")
    """Names of the LM head or of a list of them, anywhere in the module."""

    def __post_init__(self) -> None:
        for kind in (self.body, self.head):
            if kind is not None:
                _check_kind(kind)

    def kind(self, name: str) -> str | None:
        """Kind of the matrix with this name."""
        return self.head if set(name.split(".")) & set(self.head_names) else self.body


class PackedLinear(nn.Module):
    """A linear layer on the CPU kernels: rows with any leading dimensions to fp32 rows.

    A row's result has the same bits whatever else is in the call.  Every call returns new memory, because callers keep
    results from one step to the next.
    """

    def __init__(self, matrix: Any, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = int(matrix.inputs), int(matrix.outputs)
        self.matrix = matrix
        self.bias = None if bias is None else bias.detach().float().clone()
        self._added = None if self.bias is None else self.bias.numpy()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., inputs] → [..., outputs].

        Raises:
            ValueError: the rows have another width.
        """
        flat = rows if rows.ndim == 2 else rows.reshape(-1, rows.shape[-1])
        made = np.empty((len(flat), self.out_features), dtype=np.float32)
        cpu.linear(self.matrix, flat.float().contiguous().numpy(), made, self._added)
        result = torch.from_numpy(made)
        return result if rows.ndim == 2 else result.view(*rows.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """Arguments that torch prints."""
        bias = self.bias is not None
        return f"{self.in_features}, {self.out_features}, bias={bias}, kind={self.matrix.kind}"


def pack(module: nn.Module, packing: Packing | None = None) -> nn.Module:
    """Put the linear layers of a module on the CPU kernels, in place; a module that is one itself is replaced.

    Layers whose inputs are no multiple of 32, or that are on another device, stay in torch.  Without kernels all do.
    """
    wanted = packing or Packing()
    linears = {name: part for name, part in module.named_modules() if type(part) is nn.Linear}
    kinds = {name: kind for name, part in linears.items() if (kind := wanted.kind(name)) and _fits(part)}
    matrices, _ = pack_all({name: stored_matrix(linears[name].weight, kind) for name, kind in kinds.items()})
    made: dict[nn.Module, nn.Module] = {
        linears[name]: PackedLinear(matrix, linears[name].bias) for name, matrix in matrices.items()
    }
    for part in list(module.modules()):
        for name, child in part.named_children():
            if child in made:
                setattr(part, name, made[child])
    return made.get(module, module)


def to_stored(weight: torch.Tensor, kind: str) -> torch.Tensor:
    """Store a matrix [outputs, inputs] in GGUF blocks: uint8 [outputs, bytes per row].

    Raises:
        ConfigError: ``kind`` is neither ``Q8_0`` nor ``Q4_0``, the inputs are no multiple of 32, or there are no
            kernels.
    """
    _check_kind(kind)
    outputs, inputs = weight.shape
    if inputs % _GROUP:
        raise ConfigError(f"a matrix of {inputs} inputs cannot be stored as {kind}, which needs a multiple of {_GROUP}")
    if cpu is None:
        raise ConfigError(f"a matrix cannot be stored as {kind}: {missing}")
    raw: np.ndarray[Any, Any] = stored_matrix(weight, kind).raw()
    return torch.from_numpy(raw).view(outputs, -1)


def from_stored(raw: torch.Tensor, kind: str, inputs: int, outputs: int) -> torch.Tensor:
    """Read a matrix that :func:`to_stored` made: fp32 [outputs, inputs].

    Raises:
        ConfigError: there is no such kind, or the bytes do not fit the shape.
    """
    _check_kind(kind)
    due = outputs * inputs // _GROUP * _KINDS[kind].block_bytes
    if inputs % _GROUP or raw.numel() != due:
        raise ConfigError(f"{raw.numel()} bytes are no {kind} matrix of {outputs} × {inputs}, which takes {due}")
    numbers = torch.empty(outputs, inputs)
    dequantize([DequantizeJob(raw.contiguous(), _KINDS[kind], numbers)])
    return numbers


def _fits(linear: nn.Linear) -> bool:
    return cpu is not None and linear.in_features % _GROUP == 0 and linear.weight.device.type == "cpu"


def _check_kind(kind: str) -> None:
    if kind not in _PACKED:
        raise ConfigError(f"weights cannot be packed as {kind!r}; there are: {', '.join(_PACKED)}")
