"""A model's parameters under transformers' names, each read from disk on access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from outrider.models.files.dequantize import dequantize
from outrider.models.files.gguf import GGUFFile
from outrider.models.files.gguf_config import ModelPlan
from outrider.models.files.weight_files import MappedTensors
from outrider.models.loading import ModelFiles


class GGUFParameters(Mapping[str, torch.Tensor]):
    """The tensors of a GGUF file as fp32, dequantised one at a time, with rows in transformers' order."""

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
    """Every parameter of a model on disk, in the file's precision, or fp32 if it is quantised."""
    return MappedTensors(files.weight_files) if files.gguf is None else GGUFParameters(*files.gguf)
