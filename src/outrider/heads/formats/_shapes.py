"""Shared by formats: shapes of decoder blocks, rotary embeddings, draft vocabularies, weight names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from outrider.errors import ConfigError, ModelError
from outrider.heads.blocks import BlockShape, Rotary
from outrider.heads.checkpoint import HeadCheckpoint
from outrider.heads.formats._untrusted_config import UntrustedConfig

Weights = dict[str, torch.Tensor]

_ROTATIONS: Final = {"default", "linear", "dynamic", "yarn", "longrope", "llama3"}
_ACTIVATION: Final = "silu"
_SLIDING: Final = "sliding_attention"


def size(name: str, weights: Mapping[str, torch.Tensor], key: str, dimensions: int = 2) -> tuple[int, ...]:
    """Shape of a weight.

    Raises:
        ModelError: there is no such weight, or it has another number of dimensions.
    """
    if key not in weights:
        raise ModelError(f"{name}: its weights do not contain {key!r}")
    shape = tuple(weights[key].shape)
    if len(shape) != dimensions or 0 in shape:
        raise ModelError(f"{name}: {key!r} has the shape {list(shape)}, not {dimensions} dimensions")
    return shape


def block_shape(told: UntrustedConfig, weights: Mapping[str, torch.Tensor], block: str) -> BlockShape:
    """Read a decoder block's shape from its weights and its network's configuration.

    ``block`` is the prefix of its weights' names, dot included.

    Raises:
        ModelError: weights and configuration disagree, or the block needs something that heads do not support.
    """
    _check_plain(told)
    queries, _ = size(told.name, weights, f"{block}self_attn.q_proj.weight")
    keys, _ = size(told.name, weights, f"{block}self_attn.k_proj.weight")
    width, _ = size(told.name, weights, f"{block}self_attn.o_proj.weight")
    inner, _ = size(told.name, weights, f"{block}mlp.gate_proj.weight")
    heads = told.number("num_attention_heads")
    key_heads = told.number("num_key_value_heads", heads)
    head_width = queries // heads
    for key, due, found in (
        ("num_attention_heads", heads * head_width, queries),
        ("num_key_value_heads", key_heads * head_width, keys),
        ("hidden_size", told.number("hidden_size"), width),
        ("head_dim", told.number("head_dim", max(1, head_width)), head_width),
        ("intermediate_size", told.number("intermediate_size", inner), inner),
    ):
        if due != found:
            raise ModelError(f"{told.name}: {key!r} gives its block a size of {due}, but the weights have {found}")
    if heads % key_heads or head_width % 2:
        raise ModelError(f"{told.name}: {heads} heads of {head_width} cannot share {key_heads} key heads")
    shape = BlockShape(
        width=width,
        heads=heads,
        key_heads=key_heads,
        head_width=head_width,
        inner=inner,
        norm_epsilon=told.fraction("rms_norm_eps", 1e-6),
        rope=rotation(told),
        positions=told.number("max_position_embeddings", 4096),
        projection_bias=f"{block}self_attn.q_proj.bias" in weights,
        head_norms=f"{block}self_attn.q_norm.weight" in weights,
        output_bias=f"{block}self_attn.o_proj.bias" in weights,
    )
    _check_rotation(told.name, shape)
    return shape


def _check_plain(told: UntrustedConfig) -> None:
    if (activation := told.text("hidden_act", _ACTIVATION)) != _ACTIVATION:
        raise ModelError(f"{told.name}: its activation is {activation!r}, but heads have {_ACTIVATION!r}")
    if _SLIDING in told.texts("layer_types"):
        raise ModelError(f"{told.name}: some of its layers see only a sliding window, which heads do not support")


def rotation(told: UntrustedConfig) -> dict[str, Any]:
    """Make transformers' ``rope_parameters``, from them or from ``rope_theta`` and ``rope_scaling``.

    Raises:
        ModelError: heads do not support this kind.
    """
    newer = told.part("rope_parameters")
    if isinstance(newer.values.get("full_attention"), dict):
        newer = newer.part("full_attention")
    given = newer.over(told.part("rope_scaling"))
    kind = given.text("rope_type", given.text("type", "default"))
    if kind not in _ROTATIONS or given.says("mrope_section"):
        raise ModelError(f"{told.name}: its rotary embedding is of the kind {kind!r}, which heads do not support")
    share = given.fraction("partial_rotary_factor", told.fraction("partial_rotary_factor", 1.0))
    if share != 1.0:
        raise ModelError(f"{told.name}: it rotates only {share:g} of each head, but heads rotate all of it")
    rest = {key: value for key, value in given.values.items() if key not in ("type", "partial_rotary_factor")}
    theta = given.fraction("rope_theta", told.fraction("rope_theta", 10000.0))
    return {**rest, "rope_type": kind, "rope_theta": theta}


def _check_rotation(name: str, shape: BlockShape) -> None:
    try:
        frequencies, scale = Rotary(shape).rotation
        usable = bool(frequencies.isfinite().all()) and abs(scale) < float("inf")
    except Exception as error:  # for wrong values, transformers may raise anything
        raise ModelError(f"{name}: its rotation {dict(shape.rope)} cannot be made: {type(error).__name__}") from error
    if not usable or len(frequencies) * 2 != shape.head_width:
        raise ModelError(f"{name}: its rotation {dict(shape.rope)} gives no usable angles")


def told_rotation(shape: BlockShape) -> dict[str, Any]:
    """Write rotary parameters in the older form, which every reader knows."""
    rest = {key: value for key, value in shape.rope.items() if key != "rope_theta"}
    scaling = None if rest.get("rope_type", "default") == "default" else rest
    return {"rope_theta": shape.rope["rope_theta"], "rope_scaling": scaling}


def told_block(shape: BlockShape, layers: int, vocabulary: int) -> dict[str, Any]:
    """Write a network's configuration as transformers does."""
    return {
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.head_width,
        "hidden_act": _ACTIVATION,
        "rms_norm_eps": shape.norm_epsilon,
        "max_position_embeddings": shape.positions,
        "attention_bias": shape.projection_bias or shape.output_bias,
        "mlp_bias": False,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        **told_rotation(shape),
    }


def with_biases(weights: Weights, shape: BlockShape) -> Weights:
    """Add zeros for missing biases: transformers has one switch for all of a block's."""
    made = dict(weights)
    if shape.projection_bias or shape.output_bias:
        for key, weight in weights.items():
            part = key.removesuffix(".weight")
            if part.endswith(("q_proj", "k_proj", "v_proj", "o_proj")):
                made.setdefault(f"{part}.bias", torch.zeros(len(weight)))
    return made


def draft_vocabulary(name: str, weights: Weights, vocabulary: int) -> int:
    """Read the size of the draft vocabulary; 0 if the head has no LM head.  ``ids`` replace ``d2t`` and ``t2d``.

    Raises:
        ModelError: the weights name no tokens, or impossible ones.
    """
    if "lm_head.weight" in weights:
        drafted = size(name, weights, "lm_head.weight")[0]
        weights["ids"] = _draft_ids(name, weights, vocabulary, drafted)
        return drafted
    if "d2t" in weights:
        raise ModelError(f"{name}: its weights do not contain 'lm_head.weight', which its reduced vocabulary needs")
    return 0


def _draft_ids(name: str, weights: Weights, vocabulary: int, drafted: int) -> torch.Tensor:
    """Target ids of the draft vocabulary; ``d2t`` holds the difference between a target id and its draft id."""
    offsets, members = weights.pop("d2t", None), weights.pop("t2d", None)
    if offsets is None:
        if drafted != vocabulary:
            raise ModelError(f"{name}: it drafts {drafted} of {vocabulary} tokens, and no 'd2t' says which")
        return torch.arange(drafted)
    if offsets.shape != (drafted,) or offsets.is_floating_point():
        raise ModelError(f"{name}: 'd2t' has the shape {list(offsets.shape)} instead of {[drafted]} whole numbers")
    ids: torch.Tensor = torch.arange(drafted) + offsets.long()
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary or len(ids.unique()) < drafted:
        raise ModelError(f"{name}: 'd2t' does not lead to {drafted} different tokens of {vocabulary}")
    if members is not None and not _are_members(ids, members, vocabulary):
        raise ModelError(f"{name}: 'd2t' and 't2d' name different tokens: it must hold offsets, not token ids")
    return ids


def _are_members(ids: torch.Tensor, members: torch.Tensor, vocabulary: int) -> bool:
    found = members.bool().flatten()
    return len(found) == vocabulary and int(found.sum()) == len(ids) and bool(found[ids].all())


def told_ids(checkpoint: HeadCheckpoint) -> Weights:
    """Make ``d2t`` and ``t2d`` of a head with a draft vocabulary.

    Raises:
        ConfigError: the ids are not ascending, as readers expect.
    """
    ids, vocabulary = checkpoint.tensors["ids"], checkpoint.target.vocabulary
    if len(ids) > 1 and int(ids.diff().min()) <= 0:
        raise ConfigError(f"{checkpoint.name} cannot be exported: the ids of its draft vocabulary are not ascending")
    if int(ids.max()) >= vocabulary:
        raise ConfigError(f"{checkpoint.name} drafts the token {int(ids.max())}, and its target has {vocabulary}")
    members = torch.zeros(vocabulary, dtype=torch.bool)
    members[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": members}


def refuse(checkpoint: HeadCheckpoint, to: str, hurdles: Mapping[str, bool]) -> None:
    """Refuse a head that a format cannot hold; ``hurdles`` says which of its obstacles the head has.

    Raises:
        ConfigError: the head has one; the message names the first.
    """
    for hurdle, met in hurdles.items():
        if met:
            raise ConfigError(f"{checkpoint.name} cannot be exported: {to} has no place for {hurdle}")


def known_vocabulary(checkpoint: HeadCheckpoint) -> int:
    """Size of the target's vocabulary.

    Raises:
        ConfigError: the head does not name it.
    """
    if not checkpoint.target.vocabulary:
        raise ConfigError(f"{checkpoint.name} cannot be exported: it does not name the size of its target's vocabulary")
    return checkpoint.target.vocabulary


def renamed(weights: Mapping[str, torch.Tensor], rename: Callable[[str], str]) -> Weights:
    """Rename weights."""
    return {rename(name): tensor for name, tensor in weights.items()}


def own_embedding_rows(
    name: str, weights: Mapping[str, torch.Tensor], shape: tuple[int, int], target_width: int
) -> int:
    """Rows of a head's own embedding; 0 if it uses the target's.

    Its expected shape is the target's vocabulary and the width of the head's rows.

    Raises:
        ModelError: it has another shape, or is missing though the target's has another width.
    """
    width = shape[1]
    if "embed_tokens.weight" not in weights:
        if width != target_width:
            raise ModelError(
                f"{name}: its rows are {width} wide and its target's {target_width}, so it needs an embedding of its "
                "own, but has none"
            )
        return 0
    if (found := size(name, weights, "embed_tokens.weight")) != shape:
        raise ModelError(f"{name}: 'embed_tokens.weight' has the shape {list(found)} instead of {list(shape)}")
    return shape[0]
