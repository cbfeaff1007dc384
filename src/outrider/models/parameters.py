"""A model's numbers under transformers' parameter names, each read from disk when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from outrider.models.files.dequantize import dequantize
from outrider.models.files.gguf import GGUFFile
from outrider.models.files.gguf_config import ModelPlan
from outrider.models.files.weight_files import MappedTensors
from outrider.models.loading import ModelFiles


class GGUFParameters(Mapping[str, torch.Tensor]):
    """The tensors of a GGUF file, made plain numbers one at a time: fp32, in the order of rows of transformers."""

    def __init__(self, file: GGUFFile, plan: ModelPlan) -> None:
        self._file, self._plan = file, plan
        self._names = {parameter: name for name, parameter in plan.parameters.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._file.tensors[self._names[name]]
        job = self._file.job(tensor, torch.float32, self._plan.row_orders.get(tensor.name))
        dequantize([job])
        self._file.release(tensor)
        return job.out

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def parameters(files: ModelFiles) -> Mapping[str, torch.Tensor]:
    """Every parameter of a model on disk, in the precision that its file holds, or fp32 where that is packed.

    Args:
        files: see :func:`outrider.models.loading.open_model`.
    """
    return MappedTensors(files.weight_files) if files.gguf is None else GGUFParameters(*files.gguf)
