"""The published forward passes of heads, restated in plain torch on their own names: an oracle for reading them."""

from __future__ import annotations

import torch
from torch.nn.functional import silu

Weights = dict[str, torch.Tensor]


def normed(rows: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-5) -> torch.Tensor:
    return rows / (rows.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() * weight


def rotated(rows: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """[heads, rows, width] turned as in Llama: dimension i with dimension i + width / 2."""
    half = rows.shape[-1] // 2
    angles = positions[:, None] / theta ** (torch.arange(half) / half)
    left, right = rows[..., :half], rows[..., half:]
    return torch.cat((left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()), -1)


def attention(
    rows: torch.Tensor,
    weights: Weights,
    prefix: str,
    positions: torch.Tensor,
    seen: torch.Tensor,
    *,
    context: torch.Tensor | None = None,
    head_width: int = 8,
    theta: float = 5000.0,
) -> torch.Tensor:
    """One attention layer.

    Args:
        rows: [rows, inputs].
        weights: under the format's names.
        prefix: of the layer's names.
        positions: of the context's rows, if there are any, and the rows.
        seen: bool [rows, context and rows].
        context: more rows whose keys and values are seen.
    """

    def project(part: str, read: torch.Tensor) -> torch.Tensor:
        made = read @ weights[f"{prefix}{part}_proj.weight"].T
        bias = weights.get(f"{prefix}{part}_proj.bias")
        made = made if bias is None else made + bias
        heads = made.unflatten(-1, (-1, head_width)).transpose(0, 1)
        norm = weights.get(f"{prefix}{part}_norm.weight")
        return heads if norm is None else normed(heads, norm)

    every = rows if context is None else torch.cat((context, rows))
    query = rotated(project("q", rows), positions[-len(rows) :], theta)
    key, value = rotated(project("k", every), positions, theta), project("v", every)
    key, value = (part.repeat_interleave(len(query) // len(part), 0) for part in (key, value))
    scores = (query @ key.transpose(-1, -2) / head_width**0.5).masked_fill(~seen, -torch.inf)
    mixed = torch.softmax(scores, -1) @ value
    return mixed.transpose(0, 1).flatten(1) @ weights[f"{prefix}o_proj.weight"].T


def network(rows: torch.Tensor, weights: Weights, prefix: str) -> torch.Tensor:
    gate, up, down = (weights[f"{prefix}{part}_proj.weight"] for part in ("gate", "up", "down"))
    return (silu(rows @ gate.T) * (rows @ up.T)) @ down.T


def eagle(weights: Weights, embeddings: torch.Tensor, features: torch.Tensor, blocks: int = 1) -> torch.Tensor:
    """EAGLE-1: guessed features of a causal text, [rows, width]."""
    rows = torch.cat((embeddings, features), -1) @ weights["fc.weight"].T + weights.get("fc.bias", torch.zeros(()))
    positions = torch.arange(len(rows))
    seen = torch.ones(len(rows), len(rows)).tril().bool()
    for layer in range(blocks):
        prefix = f"layers.{layer}."
        read = normed(rows, weights[f"{prefix}input_layernorm.weight"]) if layer else rows
        rows = rows + attention(read, weights, f"{prefix}self_attn.", positions, seen)
        rows = rows + network(
            normed(rows, weights[f"{prefix}post_attention_layernorm.weight"]), weights, f"{prefix}mlp."
        )
    return rows


def eagle3(
    weights: Weights,
    embeddings: torch.Tensor,
    layers: list[torch.Tensor],
    *,
    block: str = "midlayer.",
    normed_residual: bool = False,
    newer: bool = False,
    head_width: int = 8,
) -> tuple[torch.Tensor, torch.Tensor]:
    """EAGLE-3: what the next step reads and the logits in draft ids, of a causal text."""
    if newer:
        layers = [normed(rows, weights[f"fc_norm.{place}.weight"]) for place, rows in enumerate(layers)]
    joined = torch.cat(layers, -1)
    if "input_norm.weight" in weights:
        joined = normed(joined, weights["input_norm.weight"])
    feature = joined @ weights["fc.weight"].T
    quiet = normed(feature, weights[f"{block}hidden_norm.weight"])
    both = torch.cat((normed(embeddings, weights[f"{block}input_layernorm.weight"]), quiet), -1)
    positions = torch.arange(len(both))
    seen = torch.ones(len(both), len(both)).tril().bool()
    rows = quiet if normed_residual else feature
    rows = rows + attention(both, weights, f"{block}self_attn.", positions, seen, head_width=head_width)
    rows = rows + network(normed(rows, weights[f"{block}post_attention_layernorm.weight"]), weights, f"{block}mlp.")
    final = normed(rows, weights["norm.weight"])
    return final if newer else rows, final @ weights["lm_head.weight"].T


def dspark_hidden(
    weights: Weights, layers: list[torch.Tensor], embeddings: torch.Tensor, blocks: int = 2
) -> torch.Tensor:
    """DSpark and DFlash: normed rows of one block after a context, [slots, width]."""
    context = normed(torch.cat(layers, -1) @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    rows, total = embeddings, len(context) + len(embeddings)
    positions, seen = torch.arange(total), torch.ones(len(embeddings), total).bool()
    for layer in range(blocks):
        prefix = f"layers.{layer}."
        read = normed(rows, weights[f"{prefix}input_layernorm.weight"])
        rows = rows + attention(read, weights, f"{prefix}self_attn.", positions, seen, context=context)
        rows = rows + network(
            normed(rows, weights[f"{prefix}post_attention_layernorm.weight"]), weights, f"{prefix}mlp."
        )
    return normed(rows, weights["norm.weight"])


def dspark_bias(weights: Weights, kind: str, previous: list[int], hidden: torch.Tensor) -> torch.Tensor:
    """What the sequential correction adds to each slot's logits, [slots, draft vocabulary]."""
    w1, w2 = weights["markov_head.markov_w1.weight"], weights["markov_head.markov_w2.weight"]
    state, added = torch.zeros(w1.shape[1]), []
    for token, row in zip(previous, hidden, strict=True):
        latent = w1[token]
        if kind == "gated":
            read = torch.cat((row, latent))
            latent = latent * torch.sigmoid(
                weights["markov_head.gate_proj.weight"] @ read + weights["markov_head.gate_proj.bias"]
            )
        elif kind == "rnn":
            read = torch.cat((state, latent, row))
            made = weights["markov_head.joint_proj.weight"] @ read + weights["markov_head.joint_proj.bias"]
            gate, candidate, out = made.chunk(3)
            state = torch.sigmoid(gate) * state + (1 - torch.sigmoid(gate)) * torch.tanh(candidate)
            latent = torch.tanh(out)
        added.append(w2 @ latent)
    return torch.stack(added)
