"""DSpark and DFlash: one pass drafts a whole block, with the target's features among the keys of every layer.

Sources: DFlash, Chen, Liang, Liu 2026 (arXiv 2602.06036); DSpark, DeepSeek-AI and Peking University 2026 (arXiv
2607.05147, §3).  A block is the anchor and mask tokens; they see each other and the context.  DSpark adds a sequential
correction, which shifts each slot's logits by the token chosen for the previous slot, and a confidence: an estimate of
each draft's chance of acceptance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from outrider.errors import ModelError
from outrider.heads.blocks import Attend, BlockShape, DecoderBlock, HeadParts, Rotary, Slots, own_embedding, take_over


@dataclass(frozen=True)
class DSparkConfig:
    """Configuration of a block drafter; DFlash has neither correction nor confidence."""

    block: BlockShape
    hidden_layers: tuple[int, ...]
    """Target layers whose outputs are fused, in the order of the projection's inputs."""
    blocks: int
    """Decoder layers."""
    slots: int
    """Rows of a block, anchor included."""
    mask_id: int
    """Target token id of the mask, which fills the slots after the anchor."""
    vocabulary: int = 0
    """Size of the draft vocabulary; 0 is the target's, through the target's LM head."""
    target_width: int = 0
    """Width of the target's rows; 0 is the block's."""
    target_vocabulary: int = 0
    """The target's vocabulary, for the correction."""
    draft_from_anchor: bool = True
    """Whether the anchor's slot drafts the first token (DSpark), or the first mask's does (DFlash)."""
    correction: str = "markov"
    """``independent`` (DFlash), ``markov``, ``gated`` or ``rnn``."""
    rank: int = 256
    """Rank of the correction."""
    confidence: bool = True
    confidence_reads_correction: bool = True
    """Whether the confidence also reads the previous token's row."""
    temperatures: tuple[float, ...] = ()
    """Divisor of each slot's confidence before the sigmoid (sequential temperature scaling); empty is 1."""
    embedding: int = 0
    """Rows of an embedding of its own; 0 is the target's."""

    @property
    def drafts(self) -> int:
        """Tokens of one block."""
        return self.slots - (not self.draft_from_anchor)


class NoCorrection(nn.Module):
    """DFlash: slots are independent."""

    def __init__(self, config: DSparkConfig, outputs: int) -> None:
        super().__init__()

    def forward(
        self, previous: torch.Tensor, hidden: torch.Tensor, state: torch.Tensor | None
    ) -> tuple[torch.Tensor | float, torch.Tensor | None]:
        """Add nothing; see :meth:`MarkovCorrection.forward`."""
        return 0.0, None


class MarkovCorrection(nn.Module):
    """B = W₂ · W₁[previous token]."""

    def __init__(self, config: DSparkConfig, outputs: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(config.target_vocabulary, config.rank)
        self.markov_w2 = nn.Linear(config.rank, outputs, bias=False)

    def forward(
        self, previous: torch.Tensor, hidden: torch.Tensor, state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute the correction of a slot's logits, [..., outputs], and the state for the next slot.

        ``previous`` is the target id of the previous slot's token, int64 [...]; ``hidden`` is the slot's row, [...,
        width]; ``state`` is that of the previous call, None for the first slot.
        """
        return self.markov_w2(self.markov_w1(previous)), None


class GatedCorrection(MarkovCorrection):
    """B = W₂ · (σ(W_g [h; e]) ⊙ e) with e = W₁[previous token]."""

    def __init__(self, config: DSparkConfig, outputs: int) -> None:
        super().__init__(config, outputs)
        self.gate_proj = nn.Linear(config.block.width + config.rank, config.rank)

    def forward(
        self, previous: torch.Tensor, hidden: torch.Tensor, state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        row = self.markov_w1(previous)
        gate = torch.sigmoid(self.gate_proj(torch.cat((hidden, row), dim=-1)))
        return self.markov_w2(gate * row), None


class RecurrentCorrection(MarkovCorrection):
    """z = [s; e; h] → g, c, o;  s' = σ(g) s + (1 − σ(g)) tanh(c);  B = W₂ · tanh(o)."""

    def __init__(self, config: DSparkConfig, outputs: int) -> None:
        super().__init__(config, outputs)
        self.joint_proj = nn.Linear(config.block.width + 2 * config.rank, 3 * config.rank)

    def forward(
        self, previous: torch.Tensor, hidden: torch.Tensor, state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        row = self.markov_w1(previous)
        before = torch.zeros_like(row) if state is None else state
        gate, candidate, output = self.joint_proj(torch.cat((before, row, hidden), dim=-1)).chunk(3, dim=-1)
        keep = torch.sigmoid(gate)
        return self.markov_w2(torch.tanh(output)), keep * before + (1 - keep) * torch.tanh(candidate)


CORRECTIONS: Final[dict[str, Callable[[DSparkConfig, int], nn.Module]]] = {
    "independent": NoCorrection,
    "markov": MarkovCorrection,
    "gated": GatedCorrection,
    "rnn": RecurrentCorrection,
}


class DSparkHead(nn.Module):
    """The network."""

    ids: torch.Tensor | None
    """int64 [vocabulary], ascending target ids of the draft vocabulary; None is all."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        self.config = config
        shape = config.block
        read, outputs = config.target_width or shape.width, config.vocabulary or config.target_vocabulary
        self.embed_tokens = own_embedding(config.embedding, shape)
        self.fc = nn.Linear(len(config.hidden_layers) * read, shape.width, bias=False)
        self.hidden_norm = nn.RMSNorm(shape.width, shape.norm_epsilon)
        self.layers: Sequence[DecoderBlock] = nn.ModuleList(DecoderBlock(shape) for _ in range(config.blocks))  # type: ignore[assignment]
        self.norm = nn.RMSNorm(shape.width, shape.norm_epsilon)
        self.rotary = Rotary(shape)
        self.lm_head = nn.Linear(shape.width, config.vocabulary, bias=False) if config.vocabulary else None
        self.register_buffer("ids", torch.arange(config.vocabulary) if config.vocabulary else None)
        self.markov_head = _correction(config, outputs)
        reads = shape.width + config.rank * config.confidence_reads_correction
        self.confidence_head = nn.Linear(reads, 1) if config.confidence else None

    @torch.no_grad()
    def begin(self, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """Start with the target's LM head and a correction of zero; see :func:`outrider.heads.blocks.take_over`."""
        take_over(self, ids, rows)
        if isinstance(self.markov_head, MarkovCorrection):
            nn.init.normal_(self.markov_head.markov_w1.weight, std=0.1)
            nn.init.zeros_(self.markov_head.markov_w2.weight)

    def fuse(self, features: Sequence[torch.Tensor]) -> torch.Tensor:
        """Make context rows, from which every layer takes keys and values: [..., target width] each → [..., width]."""
        return self.hidden_norm(self.fc(torch.cat(tuple(features), dim=-1)))

    def parts(self) -> HeadParts:
        return HeadParts(
            self.config.block,
            self.rotary.rotation,
            [layer.parts for layer in self.layers],
            final_norm=self.norm,
            lm_head=self.lm_head,
            answers_normed=True,
        )

    def context(self, fused: torch.Tensor, positions: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each layer's keys and values of context rows [batch, rows, width] at positions int64 [batch, rows]."""
        turns = self.rotary(positions)
        return [layer.self_attn.keys_and_values(fused, turns) for layer in self.layers]

    def forward(
        self,
        embeddings: torch.Tensor,
        positions: torch.Tensor,
        attends: Sequence[Attend],
        unembed: Callable[[torch.Tensor], torch.Tensor],
    ) -> Slots:
        """Compute whole blocks.

        ``embeddings`` are the target's, of anchors and masks, fp32 [batch, blocks · slots, width].  Each layer has an
        ``Attend``, which has the context's keys.

        Returns:
            Hidden rows and logits [batch, blocks, drafts, …].
        """
        rows, turns = embeddings, self.rotary(positions)
        for layer, attend in zip(self.layers, attends, strict=True):
            rows = layer(rows, turns, attend)
        hidden = self.norm(rows).unflatten(1, (-1, self.config.slots))[:, :, -self.config.drafts :]
        if self.lm_head is not None:
            return Slots(hidden, self.lm_head(hidden))
        return Slots(hidden, unembed(hidden.flatten(0, -2)).unflatten(0, hidden.shape[:-1]))

    def confidence(self, previous: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Logit of a slot's chance of acceptance if all slots before it are accepted; before temperature.

        ``previous`` is the target id of the previous slot's token, int64 [...]; ``hidden`` is the slot's row, [...,
        width].
        """
        if self.config.confidence_reads_correction:
            assert isinstance(self.markov_head, MarkovCorrection), "nothing to read otherwise"
            hidden = torch.cat((hidden, self.markov_head.markov_w1(previous)), dim=-1)
        assert self.confidence_head is not None, "asked only of heads that have it"
        return self.confidence_head(hidden).squeeze(-1)


def _correction(config: DSparkConfig, outputs: int) -> nn.Module:
    if config.correction not in CORRECTIONS:
        raise ModelError(f"there is no correction {config.correction!r}; there are: {', '.join(CORRECTIONS)}")
    return CORRECTIONS[config.correction](config, outputs)


CONFIG, HEAD = DSparkConfig, DSparkHead
