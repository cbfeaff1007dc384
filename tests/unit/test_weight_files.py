"""Which files of a folder are its weights: those that transformers reads, whatever else lies beside them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_folder import make_folder
from transformers import AutoModelForCausalLM

from outrider.errors import ModelError
from outrider.kernels.native import cpu, missing
from outrider.kv.pool import KVPool
from outrider.models.backends import LoadOptions, load_model
from outrider.models.files.weight_files import MappedTensors, weight_files
from outrider.models.loading import open_model
from outrider.models.native import packed_cache
from outrider.models.native import packed_weights as native_weights
from outrider.models.tensors import parameters
from outrider.tree import SequenceRows, TreeBatch

INDEX = "model.safetensors.index.json"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("whole") / "model")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy without weights."""
    shutil.copytree(whole, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    return tmp_path / "model"


def negative(tensors: Tensors) -> Tensors:
    return {name: -tensor for name, tensor in tensors.items()}


def write(folder: Path, name: str, tensors: Tensors) -> str:
    (folder / name).parent.mkdir(exist_ok=True)
    save_file(tensors, folder / name, {"format": "pt"})
    return name


def write_index(folder: Path, homes: Any, name: str = INDEX) -> None:
    (folder / name).write_text(json.dumps({"metadata": {}, "weight_map": homes}))


def set_option(folder: Path, value: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": value}))


def one_file(folder: Path, tensors: Tensors) -> None:
    write(folder, "model.safetensors", tensors)


def one_shard(folder: Path, tensors: Tensors) -> None:
    write_index(folder, dict.fromkeys(tensors, write(folder, "model-00001-of-00001.safetensors", tensors)))


def two_shards(folder: Path, tensors: Tensors) -> None:
    names = sorted(tensors)
    parts = {f"model-0000{n}-of-00002.safetensors": names[n - 1 :: 2] for n in (1, 2)}
    for shard, part in parts.items():
        write(folder, shard, {name: tensors[name] for name in part})
    write_index(folder, {name: shard for shard, part in parts.items() for name in part})


def shards_that_overlap(folder: Path, tensors: Tensors) -> None:
    """The index names the first shard; the second, which holds the same tensors, is read later."""
    first, second = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    write(folder, first, negative(tensors))
    write(folder, second, tensors)
    write_index(folder, dict.fromkeys(tensors, first) | {sorted(tensors)[0]: second})


def shards_in_a_folder(folder: Path, tensors: Tensors) -> None:
    write_index(folder, dict.fromkeys(tensors, write(folder, "parts/a.safetensors", tensors)))


def file_and_index(folder: Path, tensors: Tensors) -> None:
    one_shard(folder, negative(tensors))
    one_file(folder, tensors)


def named_file(folder: Path, tensors: Tensors) -> None:
    one_file(folder, negative(tensors))
    set_option(folder, write(folder, "other.safetensors", tensors))


def named_index(folder: Path, tensors: Tensors) -> None:
    one_file(folder, negative(tensors))
    write_index(folder, dict.fromkeys(tensors, write(folder, "x.safetensors", tensors)), "x.safetensors.index.json")
    set_option(folder, "x.safetensors.index.json")


LAYOUTS = [
    one_file,
    one_shard,
    two_shards,
    shards_that_overlap,
    shards_in_a_folder,
    file_and_index,
    named_file,
    named_index,
]
STRAYS = ["old-checkpoint.safetensors", "consolidated.safetensors", "a/model.safetensors", "zz.safetensors"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stray", [None, *STRAYS])
def test_the_tensors_are_those_that_transformers_reads(
    whole: Path, folder: Path, layout: Callable[[Path, Tensors], None], stray: str | None
) -> None:
    tensors = load_file(whole / "model.safetensors")
    layout(folder, tensors)
    if stray is not None:
        write(folder, stray, negative(tensors))
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    ours = MappedTensors(weight_files(folder, "model"))
    assert set(ours) == set(theirs)
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
        assert torch.equal(tensor, tensors[name]), name
    files = open_model(folder)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in parameters(files).items())
    assert files.weight_files == weight_files(folder, "model")


def broken_index(homes: Any) -> Callable[[Path, Tensors], None]:
    return lambda folder, tensors: write_index(folder, homes)


def only_strays(folder: Path, tensors: Tensors) -> None:
    write(folder, "weights.safetensors", tensors)


def with_adapter(folder: Path, tensors: Tensors) -> None:
    one_file(folder, tensors)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')


def distributed(folder: Path, tensors: Tensors) -> None:
    one_file(folder, tensors)
    write(folder, "shard-00001-model-00001-of-00002.safetensors", tensors)


def named(value: Any) -> Callable[[Path, Tensors], None]:
    def layout(folder: Path, tensors: Tensors) -> None:
        one_file(folder, tensors)
        set_option(folder, value)

    return layout


REFUSED: dict[str, tuple[Callable[[Path, Tensors], None], str]] = {
    "nothing": (lambda folder, tensors: None, r"no \.safetensors weights: neither model\.safetensors nor"),
    "only a stray file": (only_strays, r"weights\.safetensors is read only if an index names it"),
    "a shard is missing": (broken_index({"a": "gone.safetensors"}), r"'gone\.safetensors' is not there"),
    "another format": (broken_index({"a": "pytorch_model.bin"}), r"'pytorch_model\.bin' .* is no \.safetensors file"),
    "outside": (broken_index({"a": "../x.safetensors"}), r"'\.\./x\.safetensors' lies outside"),
    "absolute": (broken_index({"a": "/x.safetensors"}), r"'/x\.safetensors' lies outside"),
    "no files": (broken_index({}), "must map the tensors' names to files"),
    "no map": (broken_index(["a"]), "must map the tensors' names to files"),
    "numbers": (broken_index({"a": 1}), "must map the tensors' names to files"),
    "no JSON": (lambda folder, tensors: (folder / INDEX).write_text("{"), r"its model\.safetensors\.index\.json"),
    "no object": (lambda folder, tensors: (folder / INDEX).write_text("[1]"), "it holds no object"),
    "an adapter": (with_adapter, r"adapter_config\.json is an adapter; merge it"),
    "a distributed checkpoint": (distributed, r"shard-00001-model-00001-of-00002\.safetensors is a part of"),
    "a number for a name": (named(3), "must be a file's name, not 3"),
    "a named file that is missing": (named("gone.safetensors"), r"'gone\.safetensors' is not there"),
    "a named file outside": (named("../model/model.safetensors"), "lies outside"),
}


@pytest.mark.parametrize(("layout", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_refused_by_name(
    whole: Path, folder: Path, layout: Callable[[Path, Tensors], Any], reason: str
) -> None:
    layout(folder, load_file(whole / "model.safetensors"))
    for backend in ("native", "hf", "auto"):
        with pytest.raises(ModelError, match=reason) as caught:
            load_model(folder, LoadOptions(backend=backend))
        assert str(caught.value).startswith("model: ")
        assert "\n" not in str(caught.value)


def test_layers_are_counted_though_weights_are_missing(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"model_type": "qwen2", "num_hidden_layers": 10**12}))
    with pytest.raises(ModelError, match="asks for 1000000000000 layers, and there are no weights"):
        open_model(folder)


@pytest.mark.skipif(cpu is None, reason=f"{missing}")
def test_the_packed_model_is_that_of_the_files_that_are_read(
    whole: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = folder.parent / "packed"
    monkeypatch.setenv(packed_cache.VARIABLE, str(packed))
    monkeypatch.setattr(native_weights, "LEAST_BYTES", 1)

    def answer() -> torch.Tensor:
        model, _ = load_model(folder, LoadOptions(backend="native"))
        pages = KVPool(16, 8).cache("model")
        assert pages.extend("a", 3)
        return model.forward(TreeBatch.pack([SequenceRows("a", 0, (5, 6, 7), None, all_logits=True)]), pages).logits

    tensors = load_file(whole / "model.safetensors")
    one_shard(folder, tensors)
    first = answer()
    write(folder, "other.safetensors", negative(tensors))
    assert torch.equal(answer(), first)
    assert len(list(packed.glob("*.packed"))) == 1, "a stray file made another entry"
    write_index(folder, dict.fromkeys(tensors, "other.safetensors"))
    other = answer()
    assert not torch.allclose(other, first)
    assert len(list(packed.glob("*.packed"))) == 2
    one_file(folder, tensors)
    assert torch.equal(answer(), first), "the file comes before the index"
    shutil.rmtree(packed)
    (folder / "model.safetensors").unlink()
    assert torch.equal(answer(), other)
