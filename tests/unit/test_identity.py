"""Which model a file holds: the same one in every format, and none that was trained on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf_files import TinyFile
from torch import nn

from outrider.errors import ModelError
from outrider.models.identity import identify, is_same_model, read_identity

ARCHITECTURES = ("llama", "qwen2")
"""Of the first, the converter reorders rows; the second has biases."""
MATRICES = ("embed_tokens", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


def folder(path: Path, module: nn.Module, dtype: torch.dtype = torch.float32) -> Path:
    module.to(dtype).save_pretrained(path)  # type: ignore[operator]
    return path


def moved(architecture: str, kind: str, share: float) -> nn.Module:
    """The model with parameters of one kind moved by a share of their spread, as an adapter does."""
    module = TinyFile(architecture).module()
    generator = torch.Generator().manual_seed(1)
    found = [parameter for name, parameter in module.named_parameters() if kind in name.split(".")]
    assert found, kind
    for parameter in found:
        parameter += share * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return module


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def write(path: Path, architecture: str, quantization: str) -> Path:
    return TinyFile(architecture, quantization=quantization).write(path / f"{architecture}-{quantization}.gguf")


FORMS: dict[str, Callable[[Path, str], Path]] = {
    "Q4_1": lambda path, name: write(path, name, "Q4_1"),
    "Q8_0": lambda path, name: write(path, name, "Q8_0"),
    "F16": lambda path, name: write(path, name, "F16"),
    "F32": lambda path, name: write(path, name, "F32"),
    "folder": lambda path, name: folder(path / "folder", TinyFile(name).module()),
}


@pytest.mark.parametrize("known", ["Q4_1", "F32", "folder"])
@pytest.mark.parametrize("form", FORMS)
def test_a_model_is_the_same_in_every_form(tmp_path: Path, architecture: str, known: str, form: str) -> None:
    reference = identify(FORMS[known](tmp_path, architecture))
    assert is_same_model(FORMS[form](tmp_path / form if form == "folder" else tmp_path, architecture), reference)


def test_a_folder_in_bfloat16_is_told_where_its_vectors_fit_in_it(tmp_path: Path) -> None:
    """As published models' do; a file's vectors then come from the same bits."""
    module = TinyFile().module().bfloat16()
    vectors = {name: value.float() for name, value in module.state_dict().items() if value.ndim == 1}
    replaced = {gguf_name(name): value.numpy() for name, value in vectors.items()}
    file = TinyFile(quantization="Q4_1", tensors=replaced).write(tmp_path / "tiny.gguf")
    assert is_same_model(folder(tmp_path / "half", module, torch.bfloat16), identify(file))


def gguf_name(name: str) -> str:
    """Of a norm."""
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, part, _ = name.split(".")
    return f"blk.{layer}.{'attn_norm' if part == 'input_layernorm' else 'ffn_norm'}.weight"


@pytest.mark.parametrize("kind", MATRICES)
def test_an_adapter_in_any_kind_of_matrix_makes_another_model(tmp_path: Path, architecture: str, kind: str) -> None:
    reference = identify(write(tmp_path, architecture, "Q4_1"))
    assert not is_same_model(folder(tmp_path / "moved", moved(architecture, kind, 0.1)), reference)


@pytest.mark.parametrize("kind", ["norm", "input_layernorm", "bias"])
def test_training_the_vectors_makes_another_model(tmp_path: Path, kind: str) -> None:
    reference = identify(write(tmp_path, "qwen2", "Q4_1"))
    assert not is_same_model(folder(tmp_path / "moved", moved("qwen2", kind, 0.01)), reference)


def test_other_weights_and_other_shapes_are_other_models(tmp_path: Path) -> None:
    reference = identify(write(tmp_path, "llama", "Q8_0"))
    others = {
        "seed": TinyFile(seed=1),
        "layers": TinyFile(config={"num_hidden_layers": 1}),
        "width": TinyFile(config={"hidden_size": 32, "head_dim": 8}),
        "family": TinyFile("qwen2"),
    }
    for name, other in others.items():
        assert not is_same_model(other.write(tmp_path / f"{name}.gguf"), reference), name


def test_coarse_otherwise_cannot_be_told(tmp_path: Path) -> None:
    reference = identify(write(tmp_path, "llama", "Q4_1"))
    assert not is_same_model(write(tmp_path, "llama", "Q4_0"), reference)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = write(tmp_path, "llama", "Q4_1")
    identify(file).write(tmp_path / "target.safetensors")
    assert is_same_model(file, read_identity(tmp_path / "target.safetensors"))


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    known = identify(write(tmp_path, "llama", "Q4_1"))
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "model.safetensors").write_bytes(b"no")
    for name in ("bad.gguf", "bad"):
        with pytest.raises(ModelError, match="bad"):
            is_same_model(tmp_path / name, known)
    with pytest.raises(ModelError, match="does not say which model"):
        read_identity(tmp_path / "bad" / "model.safetensors")
