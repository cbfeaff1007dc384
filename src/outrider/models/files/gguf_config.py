"""Convert GGUF metadata and tensor names to a transformers configuration and parameter names.

The tables below hold everything that is known; a file that needs more is refused.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider.models.files.dequantize import dequantize
from outrider.models.files.gguf import GGUFFile

ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True)
class Architecture:
    """Properties of one GGUF architecture."""

    model_type: str
    layer_tensors: dict[str, str]
    # Rows of these were reordered by the converter so that rotary pairs are neighbours; -> metadata head count.
    interleaved: dict[str, str] = field(default_factory=dict)
    # Configuration switches that are on when the file holds the named tensor.
    switches: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelPlan:
    """Everything to build a model: configuration values, and each tensor's parameter."""

    model_type: str
    values: dict[str, object]
    parameters: dict[str, str]
    row_orders: dict[str, Tensor]


_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}

ARCHITECTURES = {
    "llama": Architecture(
        model_type="llama",
        layer_tensors=_LAYER_TENSORS,
        interleaved={"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"},
        switches={"attention_bias": "blk.0.attn_output.bias", "mlp_bias": "blk.0.ffn_down.bias"},
    ),
    "qwen2": Architecture(model_type="qwen2", layer_tensors=_LAYER_TENSORS),
    "qwen3": Architecture(
        model_type="qwen3",
        layer_tensors=_LAYER_TENSORS | _QK_NORMS,
        switches={"attention_bias": "blk.0.attn_output.bias"},
    ),
}

# Architecture keys that are read below, and those that change nothing in the forward pass.
_READ_KEYS = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "expert_count",
}
_IGNORED_KEYS = {"vocab_size", "rope.scaling.finetuned", "expert_used_count"}


@dataclass(frozen=True)
class RopeScaling:
    """One value of rope.scaling.type: transformers' rope_type, and the metadata of its parameters."""

    name: str
    rope_type: str
    parameters: dict[str, str] = field(default_factory=dict)


_FACTOR = {"factor": "rope.scaling.factor"}
_ORIGINAL = {"original_max_position_embeddings": "rope.scaling.original_context_length"}
_ROPE_SCALINGS = (
    RopeScaling("none", "default"),
    RopeScaling("linear", "linear", _FACTOR),
    RopeScaling("yarn", "yarn", _FACTOR | _ORIGINAL),
)

# Llama 3.1 and later were all released with these; files keep only the resulting factors, checked below.
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_ORIGINAL = 1.0, 4.0, 8192


def plan_model(file: GGUFFile) -> ModelPlan:
    """Find the configuration and the parameter of every tensor.

    Raises:
        ModelError: the architecture, or something in this file, is not supported.
    """
    name = file.text("general.architecture")
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise file.fail(f"architecture {name!r} is not supported from GGUF yet; use the safetensors folder")
    if file.metadata.get("split.count", 1) not in (0, 1):
        raise file.fail("is one part of a split model; merge the parts with `llama-gguf-split --merge` first")
    _refuse_unknown_keys(file, name)
    values = _config_values(file, name)
    values |= {switch: tensor in file.tensors for switch, tensor in architecture.switches.items()}
    return ModelPlan(
        model_type=architecture.model_type,
        values=values,
        parameters=_parameters(file, architecture, file.integer(f"{name}.block_count")),
        row_orders=_row_orders(file, architecture, name),
    )


def check_tensors(file: GGUFFile, plan: ModelPlan, due: Mapping[str, tuple[int, ...]]) -> None:
    """Check a file's tensors against the shapes of all parameters, before any is read.

    Raises:
        ModelError: a tensor has no parameter or another shape, or one is missing.
    """
    for name, parameter in plan.parameters.items():
        shape = file.tensors[name].shape
        if parameter not in due:
            raise file.fail(f"tensor {name!r} belongs to {parameter!r}, which this model does not have")
        if shape != due[parameter]:
            raise file.fail(f"tensor {name!r} has the shape {list(shape)} instead of {list(due[parameter])}")
    found = Counter(plan.parameters.values())
    for parameter in due:
        if found[parameter] != 1:
            raise file.fail(
                f"holds {'several tensors' if found[parameter] else 'nothing'} for the model's {parameter!r}"
            )


def _refuse_unknown_keys(file: GGUFFile, name: str) -> None:
    known = _READ_KEYS | _IGNORED_KEYS
    for key in file.metadata:
        if key.startswith(f"{name}.") and key.removeprefix(f"{name}.") not in known:
            raise file.fail(f"the metadata's {key!r} is not understood from GGUF; use the safetensors folder")
    if file.integer(f"{name}.expert_count", 0):
        raise file.fail(f"mixture-of-experts {name!r} models are not supported from GGUF; use the safetensors folder")


def _config_values(file: GGUFFile, name: str) -> dict[str, object]:
    heads = _positive(file, f"{name}.attention.head_count")
    key_heads = _positive(file, f"{name}.attention.head_count_kv", heads)
    width = _positive(file, f"{name}.embedding_length")
    head_width = _positive(file, f"{name}.attention.key_length", width // heads)
    if head_width % 2:
        raise file.fail(f"has attention heads of the odd width {head_width}")
    for key in ("attention.value_length", "rope.dimension_count"):
        if (other := file.integer(f"{name}.{key}", head_width)) != head_width:
            raise file.fail(f"{name}.{key} is {other}, which differs from the key length {head_width}")
    inner = _positive(file, f"{name}.feed_forward_length")
    layers = _positive(file, f"{name}.block_count")
    if heads % key_heads:
        raise file.fail(f"has {heads} attention heads, which {key_heads} key heads do not divide")
    # The metadata's sizes are held against real tensors before anything is built from them.
    vocabulary = _shape(file, "token_embd.weight", (None, width))[0]
    _shape(file, f"blk.{layers - 1}.attn_norm.weight", (width,))
    _shape(file, "blk.0.ffn_gate.weight", (inner, width))
    _shape(file, "blk.0.attn_q.weight", (heads * head_width, width))
    _shape(file, "blk.0.attn_k.weight", (key_heads * head_width, width))
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": head_width,
        "rms_norm_eps": file.number(f"{name}.attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": _positive(file, f"{name}.context_length"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": _rope_parameters(file, name, head_width),
    }


def _positive(file: GGUFFile, key: str, default: int | None = None) -> int:
    number = file.integer(key, default)
    if number < 1:
        raise file.fail(f"the metadata's {key!r} is {number}; it must be positive")
    return number


def _shape(file: GGUFFile, name: str, due: tuple[int | None, ...]) -> tuple[int, ...]:
    """Shape of a tensor, which must exist and match the metadata (None: any size)."""
    tensor = file.tensors.get(name)
    if tensor is None:
        raise file.fail(f"has no tensor {name!r}")
    fits = len(tensor.shape) == len(due) and all(d in (None, s) for s, d in zip(tensor.shape, due, strict=True))
    if not fits:
        wanted = " x ".join("any" if size is None else str(size) for size in due)
        raise file.fail(f"tensor {name!r} has the shape {list(tensor.shape)}; the metadata asks for {wanted}")
    return tensor.shape


def _rope_parameters(file: GGUFFile, name: str, head_width: int) -> dict[str, object]:
    theta = file.number(f"{name}.rope.freq_base", 10000.0)
    if theta <= 0:
        raise file.fail(f"the metadata's '{name}.rope.freq_base' is {theta}; it must be a positive number")
    wanted = file.text(f"{name}.rope.scaling.type", _ROPE_SCALINGS[0].name)
    scaling = next((known for known in _ROPE_SCALINGS if known.name == wanted), None)
    if scaling is None:
        raise file.fail(f"rope scaling {wanted!r} is not supported from GGUF; use the safetensors folder")
    if ROPE_FACTORS in file.tensors:
        return {"rope_theta": theta, **_llama3_scaling(file, theta, head_width)}
    found = {}
    for parameter, key in scaling.parameters.items():
        value = file.metadata.get(f"{name}.{key}")
        if not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise file.fail(f"rope scaling {wanted!r} needs a positive number '{name}.{key}'")
        found[parameter] = value
    return {"rope_theta": theta, "rope_type": scaling.rope_type, **found}


def _llama3_scaling(file: GGUFFile, theta: float, head_width: int) -> dict[str, object]:
    """Recover Llama 3's four rope numbers from the divisor of each frequency in the file."""
    job = file.job(file.tensors[ROPE_FACTORS], torch.float32)
    dequantize([job])
    stored = job.out
    factor = round(float(stored.nan_to_num(0).max()), 4)
    if factor < 1 or stored.shape != (head_width // 2,):
        raise file.fail(f"the factors in {ROPE_FACTORS!r} are not Llama 3's; use the safetensors folder")
    wavelengths = [2 * math.pi * theta ** (2 * i / head_width) for i in range(head_width // 2)]
    expected = torch.tensor([_llama3_divisor(wavelength, factor) for wavelength in wavelengths])
    if not torch.allclose(stored, expected, rtol=1e-4):
        raise file.fail(f"the factors in {ROPE_FACTORS!r} are not Llama 3's; use the safetensors folder")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_ORIGINAL,
    }


def _llama3_divisor(wavelength: float, factor: float) -> float:
    turns = _LLAMA3_ORIGINAL / wavelength
    smooth = min(1.0, max(0.0, (turns - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)))
    return 1 / ((1 - smooth) / factor + smooth)


def _parameters(file: GGUFFile, architecture: Architecture, layers: int) -> dict[str, str]:
    """Name the parameter of every tensor in the file."""
    parameters = {}
    for tensor in file.tensors:
        if tensor == ROPE_FACTORS:
            continue
        target = _TENSORS.get(tensor) or _layer_parameter(tensor, architecture, layers)
        if target is None:
            raise file.fail(f"tensor {tensor!r} has no place in a {architecture.model_type} model")
        parameters[tensor] = target
    return parameters


def _layer_parameter(tensor: str, architecture: Architecture, layers: int) -> str | None:
    """Translate `blk.<layer>.<part>.<weight or bias>`."""
    pieces = tensor.split(".")
    if len(pieces) != 4 or pieces[0] != "blk" or not pieces[1].isdecimal() or int(pieces[1]) >= layers:
        return None
    part = architecture.layer_tensors.get(pieces[2])
    return part and f"model.layers.{int(pieces[1])}.{part}.{pieces[3]}"


def _row_orders(file: GGUFFile, architecture: Architecture, name: str) -> dict[str, Tensor]:
    """Order of rows that the converter interleaved: the stored row of each original row, by tensor."""
    orders = {}
    for tensor in file.tensors.values():
        pieces = tensor.name.split(".")
        heads_key = architecture.interleaved.get(pieces[2]) if len(pieces) == 4 else None
        if heads_key is None:
            continue
        heads = file.integer(f"{name}.{heads_key}", file.integer(f"{name}.attention.head_count"))
        rows = tensor.shape[0]
        if rows % (2 * heads) or tensor.size % rows:
            raise file.fail(f"tensor {tensor.name!r} has {rows} rows, which cannot be divided among {heads} heads")
        orders[tensor.name] = torch.arange(rows).view(heads, -1, 2).transpose(1, 2).reshape(-1)
    return orders
