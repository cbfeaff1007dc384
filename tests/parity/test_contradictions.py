"""Folders whose configuration and tensors tell different stories: native answers as transformers does, or refuses.

Each family is written once, then spoilt in one way at a time: a value of the configuration, or the tensors. The `hf`
backend, which runs transformers' own loading, is the judge.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_folder import SMALLEST, make_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from outrider.errors import ModelError
from outrider.kernels.native import cpu, missing
from outrider.kv.pool import KVPool
from outrider.models.backends import LoadOptions, load_model
from outrider.models.native.decoder_plan import FAMILIES
from outrider.tree import SequenceRows, TreeBatch

pytestmark = [
    pytest.mark.skipif(cpu is None, reason=f"{missing}"),
    pytest.mark.filterwarnings("ignore"),  # transformers warns of most of these, each in its own way
]

Tensors = dict[str, torch.Tensor]
CLOSE = 0.004
"""Of the logits' norm: native rounds keys and values to half precision, and differs by a quarter of this at most."""
SMALL: dict[str, Any] = {
    "vocab_size": SMALLEST,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "sliding_window": 5,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_THETA = {"rope_type": "default", "rope_theta": 1e4}

VALUES: dict[str, list[Any]] = {
    "tie_word_embeddings": [True],
    "attention_bias": [True],
    "mlp_bias": [True],
    "qkv_bias": [True],
    "head_dim": [8, 32, None],
    "num_attention_heads": [2, 8, 3],
    "num_key_value_heads": [1, 4, 3],
    "vocab_size": [SMALLEST - 1, SMALLEST + 1],
    "hidden_size": [32, 128],
    "intermediate_size": [48, 128],
    "num_hidden_layers": [1, 3],
    "sliding_window": [None, 3],
    "use_sliding_window": [True, False],
    "max_window_layers": [0, 1],
    "layer_types": [["full_attention"] * 2, ["sliding_attention"] * 2, ["full_attention"], None],
    "use_qk_norm": [True, False],
    "rms_norm_eps": [0.1],
    "partial_rotary_factor": [0.5],
    "rope_theta": [100.0],
    "rope_parameters": [_THETA | {"rope_theta": 100.0}, _THETA | {"partial_rotary_factor": 0.5}],
    "rope_scaling": [{"rope_type": "linear", "factor": 4.0}, None],
    "hidden_act": ["relu", "gelu_pytorch_tanh"],
    "hidden_activation": ["silu"],
    "query_pre_attn_scalar": [3],
    "attn_logit_softcapping": [None, 1.0],
    "final_logit_softcapping": [None, 1.0],
    "attention_chunk_size": [4],
    "logit_scale": [3.0],
    "embedding_multiplier": [3.0],
    "no_rope_layers": [[0, 1]],
    "dtype": ["bfloat16"],
    "max_position_embeddings": [16],
    "model_type": sorted(FAMILIES),
    "architectures": [["LlamaModel"], ["Qwen2ForCausalLM"]],
}
"""Of the configuration, one at a time, whether the family has the option or not."""


def _without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


def _with(name: str, *shape: int) -> Callable[[Tensors], Tensors]:
    dice = torch.Generator().manual_seed(1)
    return lambda tensors: tensors | {name: torch.randn(shape, generator=dice)}


def _cast(name: str, dtype: torch.dtype) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: tensors[name].to(dtype)}


def _renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key.replace(old, new, 1): tensor for key, tensor in tensors.items()}


def _negative_too(old: str, new: str, part: str = "") -> Callable[[Tensors], Tensors]:
    """Some tensors once more, with the opposite sign, under another name."""
    return lambda tensors: (
        tensors | {key.replace(old, new, 1): -tensor for key, tensor in tensors.items() if old in key and part in key}
    )


_DOWN, _NORM, _EMBEDDING, _HEAD = (
    "model.layers.0.mlp.down_proj.weight", "model.norm.weight", "model.embed_tokens.weight", "lm_head.weight"
)  # fmt: skip
TENSORS: dict[str, Callable[[Tensors], Tensors]] = {
    "as they are": lambda tensors: tensors,
    "no output layer": _without(_HEAD),
    "no embedding": _without(_EMBEDDING),
    "the same output layer": lambda tensors: tensors | {_HEAD: tensors[_EMBEDDING].clone()},
    "the same output layer but for precision": lambda t: t | {_HEAD: t[_EMBEDDING].bfloat16()},
    "more rows in the embedding": lambda t: t | {_EMBEDDING: torch.cat([t[_EMBEDDING], t[_EMBEDDING]])},
    "more rows in the output layer": lambda t: t | {_HEAD: torch.cat([t[_HEAD], t[_HEAD]])},
    "fewer rows in the output layer": lambda t: t | {_HEAD: t[_HEAD][:-1]},
    "a query bias": _with("model.layers.0.self_attn.q_proj.bias", 64),
    "an output bias": _with("model.layers.1.self_attn.o_proj.bias", 64),
    "a feed-forward bias": _with("model.layers.1.mlp.down_proj.bias", 64),
    "a bias of the output layer": _with("lm_head.bias", SMALLEST),
    "a bias of a norm": _with("model.norm.bias", 64),
    "a query norm": _with("model.layers.0.self_attn.q_norm.weight", 16),
    "another norm": _with("model.layers.0.pre_feedforward_layernorm.weight", 64),
    "sinks": _with("model.layers.0.self_attn.sinks", 4),
    "fused beside separate": _with("model.layers.0.mlp.gate_up_proj.weight", 192, 64),
    "old frequencies": _with("model.layers.0.self_attn.rotary_emb.inv_freq", 8),
    "frequencies": _with("model.rotary_emb.inv_freq", 8),
    "an adapter's": _with(_DOWN.replace("weight", "lora_A.weight"), 4, 96),
    "scales": _with(f"{_DOWN}_scale_inv", 1, 1),
    "a layer too many": _negative_too("layers.1.", "layers.2."),
    "the embedding twice": _negative_too("model.embed", "embed"),
    "the last norm twice": _negative_too("model.norm", "norm"),
    "a layer's matrices twice": _negative_too("model.", "", "layers.0.mlp"),
    "the output layer twice": _negative_too("lm_head", "model.lm_head"),
    "no prefix": _renamed("model.", ""),
    "two prefixes": _renamed("model.", "model.model."),
    "a foreign prefix": _renamed("model.", "transformer."),
    "old norm names": _renamed("norm.weight", "norm.gamma"),
    "float64": lambda tensors: {key: tensor.double() for key, tensor in tensors.items()},
    "bfloat16": lambda tensors: {key: tensor.bfloat16() for key, tensor in tensors.items()},
    "float16, one": _cast(_NORM, torch.float16),
    "int8, one": _cast(_NORM, torch.int8),
    "float8, one": _cast(_DOWN, torch.float8_e4m3fn),
    "one dimension more": lambda tensors: tensors | {_NORM: tensors[_NORM][None]},
}
_OF_THE_ENDS = ("output layer", "embedding", "prefix", "float")


def cases() -> dict[str, tuple[dict[str, Any], Callable[[Tensors], Tensors]]]:
    """What is changed in the configuration, and in the tensors."""
    as_they_are = TENSORS["as they are"]
    listed = [(f"{name}: {value}", ({name: value}, as_they_are)) for name, values in VALUES.items() for value in values]
    listed += [(name, ({}, change)) for name, change in TENSORS.items()]
    ends = {name: change for name, change in TENSORS.items() if any(part in name for part in _OF_THE_ENDS)}
    listed += [(f"{name}, tied", ({"tie_word_embeddings": True}, change)) for name, change in ends.items()]
    return dict(listed)


def write_family(kind: str, path: Path) -> None:
    """A tiny model of a family, with numbers that are wide enough for each to matter."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL), dtype=torch.float32)
        for parameter in module.requires_grad_(False).parameters():
            parameter.normal_(0, 0.2)
    module.save_pretrained(path)
    make_tokenizer(SMALLEST).save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def spoilt(path: Path, place: Path, values: dict[str, Any], change: Callable[[Tensors], Tensors]) -> Path:
    shutil.copytree(path, place)
    (place / "config.json").write_text(json.dumps(json.loads((path / "config.json").read_text()) | values))
    changed = change(load_file(path / "model.safetensors"))
    whole = {name: tensor.contiguous().clone() for name, tensor in changed.items()}
    save_file(whole, place / "model.safetensors", {"format": "pt"})
    return place


def answer(path: Path, backend: str) -> torch.Tensor | None:
    """Logits after each token of a short text, or None where the model is refused."""
    try:
        model, _ = load_model(path, LoadOptions(backend=backend))
    except ModelError as error:
        assert "\n" not in str(error)
        return None
    text = tuple(token % model.vocabulary for token in (1, 5, 9, 7, 7, 3, 100, 33, 2, 200))
    pages = KVPool(16, 8).cache("model")
    assert pages.extend("a", len(text))
    batch = TreeBatch.pack([SequenceRows("a", 0, text, None, all_logits=True)])
    return model.forward(batch, pages).logits.float()


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm()) if one.shape == other.shape else float("inf")


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_native_answers_as_transformers_or_refuses(kind: str, tmp_path: Path) -> None:
    write_family(kind, tmp_path / "whole")
    whole = answer(tmp_path / "whole", "hf")
    assert whole is not None
    told_apart, wrong = 0, []
    for index, (name, (values, change)) in enumerate(cases().items()):
        place = spoilt(tmp_path / "whole", tmp_path / str(index), values, change)
        ours, theirs = answer(place, "native"), answer(place, "hf")
        if ours is None:
            automatic = answer(place, "auto")
            if (automatic is None) != (theirs is None) or (theirs is not None and distance(automatic, theirs) > 0):
                wrong.append(f"{name}: not served by the other backend")
        elif theirs is None or distance(ours, theirs) > CLOSE:
            wrong.append(f"{name}: {'hf refuses it' if theirs is None else distance(ours, theirs)}")
        else:
            told_apart += distance(ours, whole) > 3 * CLOSE
        shutil.rmtree(place)
    assert wrong == []
    assert told_apart >= 8, "what is changed should matter, or the comparison sees nothing"


@pytest.mark.parametrize("backend", ["native", "hf"])
@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_an_output_layer_of_its_own_counts(kind: str, backend: str, tmp_path: Path) -> None:
    write_family(kind, tmp_path / "whole")
    tied = spoilt(tmp_path / "whole", tmp_path / "tied", {"tie_word_embeddings": True}, TENSORS["as they are"])
    missing_too = spoilt(tmp_path / "whole", tmp_path / "no", {"tie_word_embeddings": True}, _without(_HEAD))
    own, shared, whole = (answer(path, backend) for path in (tied, missing_too, tmp_path / "whole"))
    assert own is not None
    assert shared is not None
    assert whole is not None
    assert torch.equal(own, whole)
    assert distance(shared, whole) > 0.5
