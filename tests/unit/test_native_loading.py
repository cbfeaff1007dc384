"""Hostile model files on the native backend: one sentence, or a model that works, and nothing else."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import FUZZ_LOADS, HOSTILE_NUMBERS, patched
from gguf_files import TinyFile
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from outrider.errors import ModelError
from outrider.kernels.native import cpu, missing
from outrider.kv.pool import KVPool
from outrider.models.backends import LoadOptions, load_model
from outrider.models.native.decoder_plan import FAMILIES
from outrider.tree import SequenceRows, TreeBatch

pytestmark = pytest.mark.skipif(cpu is None, reason=f"{missing}")

MOST_TRACED = 16 << 20
"""Bytes that Python and numpy may have taken at once: the tiny models have a tenth of it."""


def refused(path: Path, *, finite: bool = True) -> str | None:
    """Load a model and run it: why it was refused, or None if it was not.

    Args:
        path: the model.
        finite: whether the weights' own bytes are whole; broken ones may make logits that are no numbers, which end a
            request with an error of its own.
    """
    tracemalloc.start()
    try:
        model, _ = load_model(path, LoadOptions(backend="native"))
    except ModelError as error:
        assert "\n" not in str(error)
        return str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < MOST_TRACED
    rows = SequenceRows("a", 0, tuple(i % model.vocabulary for i in (1, 5, 9, 7, 7)), None, all_logits=True)
    pages = KVPool(16, 8).cache("model")
    assert pages.extend("a", 5)
    logits = model.forward(TreeBatch.pack([rows]), pages).logits
    assert torch.isfinite(logits).all() or not finite
    return None


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    @cache
    def make(architecture: str) -> bytes:
        return TinyFile(architecture).write(tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()

    return make


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_the_whole_files_are_served(tmp_path: Path, gguf_bytes: Callable[[str], bytes], architecture: str) -> None:
    path = tmp_path / "whole.gguf"
    path.write_bytes(gguf_bytes(architecture))
    assert refused(path) is None


def test_the_whole_folder_is_served(folder: Path) -> None:
    assert refused(folder) is None


@FUZZ_LOADS
@given(data=st.data())
def test_a_damaged_gguf_file(tmp_path: Path, gguf_bytes: Callable[[str], bytes], data: st.DataObject) -> None:
    """Cuts, and patches among the metadata and the tensor list."""
    whole = gguf_bytes(data.draw(st.sampled_from(["llama", "qwen2", "qwen3"])))
    header = (
        whole.index(b"tokenizer.ggml.tokens"),
        whole.index(b"token_embd.weight"),
        whole.index(b"output_norm.weight"),
    )
    content = patched(data, whole, [(0, header[0]), (header[1], header[2] + 4096)])
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content[: data.draw(st.sampled_from([None, None, len(content) - 1, len(content) // 2]))])
    refused(path, finite=False)


@FUZZ_LOADS
@given(data=st.data())
def test_a_gguf_file_whose_metadata_lies(tmp_path: Path, data: st.DataObject) -> None:
    """Well-formed, but a number is not what the tensors say, or a tensor has another shape or is missing."""
    architecture = data.draw(st.sampled_from(["llama", "qwen2", "qwen3"]))
    keys = ["context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count"]
    keys += ["attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count"]
    fractions = ["attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor"]
    odd = st.sampled_from([None, 0, 1, 2, 3, 5, 16, 32, 64, 2**31 - 1, 2**31, 2**32 - 1, "text", True, 1.5])
    metadata = {f"{architecture}.{data.draw(st.sampled_from(keys))}": data.draw(odd)}
    metadata[f"{architecture}.{data.draw(st.sampled_from(fractions))}"] = data.draw(
        st.one_of(st.floats(width=32), st.sampled_from([None, 1, "text"]))
    )
    metadata[f"{architecture}.rope.scaling.type"] = data.draw(
        st.sampled_from([None, "none", "linear", "yarn", "longrope", 3])
    )
    names = [
        "token_embd.weight",
        "output.weight",
        "output_norm.weight",
        "blk.1.attn_q.weight",
        "blk.1.attn_norm.weight",
    ]
    names += ["blk.1.attn_q.bias", "blk.1.ffn_down.weight", "blk.0.attn_output.bias", "blk.1.attn_k_norm.weight"]
    shapes = st.sampled_from([None, (1,), (64,), (64, 64), (96, 64), (64, 1), (1, 64), (2, 32, 64), (267, 64)])
    shape = data.draw(shapes)
    tensors = {data.draw(st.sampled_from(names)): None if shape is None else np.full(shape, 0.1, np.float32)}
    refused(TinyFile(architecture, metadata=metadata, tensors=tensors).write(tmp_path / "lies.gguf"))


@FUZZ_LOADS
@given(data=st.data())
def test_a_damaged_safetensors_file(tmp_path: Path, folder: Path, data: st.DataObject) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    content = patched(data, whole, [(0, 8 + int.from_bytes(whole[:8], "little"))])
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken, dirs_exist_ok=True)
    length = data.draw(st.sampled_from([None, 0, 7, 8, 100, len(content) // 2, len(content) - 1]))
    (broken / "model.safetensors").write_bytes(content[:length])
    refused(broken, finite=False)


OPTIONS = [
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act", "attention_bias", "mlp_bias",
    "tie_word_embeddings", "rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor", "sliding_window",
    "use_sliding_window", "max_window_layers", "layer_types", "eos_token_id", "bos_token_id", "quantization_config",
    "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "dtype", "architectures",
]  # fmt: skip
ROPES = [
    {"rope_type": kind, "rope_theta": theta, "factor": factor, "partial_rotary_factor": part} | more
    for kind in ("default", "linear", "yarn", "dynamic", "llama3", "longrope", "no-such-kind", 7)
    for theta, factor, part in ((1e4, 2.0, 1.0), (0.0, 0.0, 1e12), (-1.0, -1.0, 0.0), (1e308, 1e308, 0.5))
    for more in (
        {},
        {"original_max_position_embeddings": 8, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
        {"short_factor": [1.0] * 3, "long_factor": [0.0] * 8, "original_max_position_embeddings": 0},
    )
]


@FUZZ_LOADS
@given(data=st.data())
def test_a_hostile_configuration(tmp_path: Path, folder: Path, data: st.DataObject) -> None:
    """Any value for any option, of every family: the weights are a Llama's."""
    values: dict[str, Any] = json.loads((folder / "config.json").read_text())
    values["model_type"] = data.draw(st.sampled_from(sorted(FAMILIES)))
    for option in data.draw(st.lists(st.sampled_from(OPTIONS), min_size=1, max_size=3)):
        hostile = st.sampled_from(
            [*HOSTILE_NUMBERS, None, True, "", "relu", "gelu_pytorch_tanh", [], [1], {}, {"a": {}}]
        )
        layers = st.lists(
            st.sampled_from(["full_attention", "sliding_attention", "chunked_attention", "x"]), max_size=3
        )
        values[option] = data.draw(st.one_of(hostile, layers, st.sampled_from(ROPES)))
    lying = tmp_path / "lying"
    shutil.copytree(folder, lying, dirs_exist_ok=True)
    (lying / "config.json").write_text(json.dumps(values))
    refused(lying)


WEIGHTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor | None], str]] = {
    "missing": (lambda tensor: None, "do not contain"),
    "another width": (lambda tensor: tensor.repeat(2, *[1] * (tensor.ndim - 1)), "has the shape"),
    "one dimension more": (lambda tensor: tensor[None], "has the shape"),
    "no numbers at all": (lambda tensor: tensor[:0], "has the shape"),
    "integers": (lambda tensor: tensor.to(torch.int8), "has the precision torch.int8"),
    "truth values": (lambda tensor: tensor > 0, "has the precision torch.bool"),
    "eight bits": (lambda tensor: tensor.to(torch.float8_e4m3fn), "has the precision torch.float8_e4m3fn"),
    "complex": (lambda tensor: tensor.to(torch.complex64), "has the precision torch.complex64"),
}
PARAMETERS = ["model.embed_tokens.weight", "model.norm.weight", "model.layers.1.mlp.down_proj.weight"]


@pytest.mark.parametrize("parameter", PARAMETERS)
@pytest.mark.parametrize(("change", "message"), WEIGHTS.values(), ids=WEIGHTS.keys())
def test_a_wrong_weight_is_named(
    tmp_path: Path, folder: Path, parameter: str, change: Callable[[torch.Tensor], torch.Tensor | None], message: str
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    weights = load_file(broken / "model.safetensors")
    changed = change(weights.pop(parameter))
    if changed is not None:
        weights[parameter] = changed.contiguous()
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    why = refused(broken) or ""
    assert message in why
    assert parameter in why


@pytest.mark.parametrize("count", [0, -1, 10**6, 10**12])
def test_layers_that_are_not_there_are_refused_before_anything_grows_with_them(
    tmp_path: Path, folder: Path, count: int
) -> None:
    for kind in sorted(FAMILIES):
        deep = tmp_path / kind
        shutil.copytree(folder, deep)
        values = json.loads((deep / "config.json").read_text())
        (deep / "config.json").write_text(json.dumps(values | {"model_type": kind, "num_hidden_layers": count}))
        assert f"asks for {count} layers" in (refused(deep) or "")


def test_a_bias_that_is_due_is_not_left_out(tmp_path: Path) -> None:
    """A model without one of its biases or norms would be served, and say something else."""
    for architecture, tensor in (("qwen2", "blk.1.attn_q.bias"), ("qwen3", "blk.1.attn_k_norm.weight")):
        path = TinyFile(architecture, tensors={tensor: None}).write(tmp_path / "tiny.gguf")
        assert "holds nothing for the model's" in (refused(path) or "")
