"""The drafter protocol: what a drafter sees, what it returns, and how it registers.

A method is one file in this package: a frozen config whose ``method`` is the file's name, and the drafter that its
``build`` returns.  Flags, bench rows, metrics and the contract suite follow from the registration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import torch

from outrider.errors import ConfigError
from outrider.law import Law
from outrider.models.base import Rollback
from outrider.options import Role, option
from outrider.price import FREE, RowPrice
from outrider.tree import TokenTree, TreeBuilder
from outrider.verify.base import Verdict

if TYPE_CHECKING:
    from outrider.heads.checkpoint import HeadCheckpoint
    from outrider.kv.pool import KVPool
    from outrider.models.base import TargetModel, TargetOutput
    from outrider.models.files.tokenizer import Tokenizer


@dataclass(frozen=True)
class Needs:
    """What a drafter requires of the engine, as data."""

    branching: bool = False
    """Its trees may branch."""
    merged: bool = False
    """Its trees may hold draws of several drafters below one node."""
    deterministic: bool = False
    """Some drafts are certain given the text before them, whatever the acceptance rule."""
    hidden_layers: tuple[int, ...] = ()
    """Target layers whose hidden rows it reads; see :class:`outrider.models.base.TargetOutput`."""
    reads_hidden: bool = False
    """It reads hidden rows, but which layers is known only once its weights are loaded."""
    reads_prediction: bool = False
    """It drafts from :attr:`DraftSequence.prediction`."""
    price: RowPrice = FREE
    """How good a draft must be to be verified, unless the controller sets another price."""


@dataclass(frozen=True, eq=False)
class DraftSequence:
    """A read-only view of one request that may be drafted for."""

    key: str
    tokens: Sequence[int]
    """Committed token ids, prompt first; the last is the anchor.  Grows in place between rounds."""
    prompt_length: int
    nodes: int
    """Most nodes the tree may have, anchor included."""
    depth: int
    """Maximum depth of a draft that can still become text."""
    price: RowPrice | None = None
    """How good a draft must be to be verified; None uses the drafter's own :attr:`Needs.price`."""
    prediction: Sequence[int] = ()
    """Token ids that the user expects the output to resemble; known before anything is drawn."""
    salt: str | None = None
    """Only requests with the same salt may draft from each other's outputs."""
    reads_others: bool = True
    """Whether it may draft from the outputs of other requests at all; not under a ratio rule with a seed from the user:
    an earlier request may have drawn its tokens with the same dice."""

    def builder(self) -> TreeBuilder:
        """Start a tree with only the anchor."""
        return TreeBuilder(self.tokens[-1])


class Proposal(NamedTuple):
    """One token to draft, chosen from a drafter's distribution in the way the acceptance rule needs."""

    token: int
    probability: float
    """The drafter's probability of the token: an estimate of its acceptance."""
    q: Law | None
    """The distribution it was drawn from; None is a point mass."""
    removed: tuple[int, ...]
    """Tokens drawn before it without replacement."""


class Frontier(NamedTuple):
    """Nodes of one sequence's tree that need proposals."""

    key: str
    rows: Sequence[int]
    """Each node's row of the drafter's logits."""
    paths: Sequence[Sequence[int]]
    """Drafted tokens from the anchor to each node."""
    nodes: Sequence[int]
    """The nodes; ratio rules key their dice by them."""
    width: int
    """Number of proposals per node."""


class Picker(Protocol):
    """Turns drafter logits into proposals.  It holds the dice and knows the rule, so drafters need neither."""

    def pick(
        self, logits: torch.Tensor, frontiers: Sequence[Frontier], source: int
    ) -> list[list[list[Proposal]] | Exception]:
        """Proposals for each sequence, as :meth:`DraftContext.pick` returns them."""
        ...


@dataclass(frozen=True, eq=False)
class DraftContext:
    """What a drafter sees in one round."""

    sequences: tuple[DraftSequence, ...]
    picker: Picker
    causal: bool
    """Whether a tree's shape may depend only on what was known before each token was drawn (ratio rules)."""

    def pick(
        self, logits: torch.Tensor, frontiers: Sequence[Frontier], source: int = 0
    ) -> list[list[list[Proposal]] | Exception]:
        """Turn drafter logits into proposals.

        Pass all sequences in one call: it costs little more than one sequence.

        Args:
            logits: float [rows, ≥ vocabulary], the drafter's, in target token ids.
            frontiers: the nodes that need proposals, by sequence.
            source: index of the drafter in a merged tree.

        Returns:
            For each sequence the proposals of each node: best first, or in the order drawn if the tree is ``causal``.
            A node after the end of the output has none, nor one whose history the request's parameters refuse.  If
            anything else fails for a sequence, the exception stands in its place.
        """
        try:
            return self.picker.pick(logits, frontiers, source)
        except Exception as error:  # noqa: BLE001 - what was drawn before must stand, so nobody's tree is dropped
            return [error] * len(frontiers)


class Committed(NamedTuple):
    """The rows of a pass that one sequence keeps: a prompt's chunk, or the anchor and its accepted drafts."""

    key: str
    tokens: Sequence[int]
    """Committed token ids, prompt first, those of this round included."""
    start: int
    """Position of the first row."""
    rows: Sequence[int]
    """Rows of the pass, in order of position."""


class Outcome(Protocol):
    """The result of one round.  Each part is computed when it is first read."""

    @property
    def sequences(self) -> Sequence[DraftSequence]:
        """Every sequence that got a token; its ``tokens`` include those of this round."""
        ...

    @property
    def trees(self) -> Sequence[TokenTree]:
        """The verified tree of each of these sequences."""
        ...

    @property
    def verdicts(self) -> Sequence[Verdict]:
        """The verdict on each tree."""
        ...

    @property
    def output(self) -> TargetOutput:
        """The target's output."""
        ...

    @property
    def committed(self) -> Sequence[Committed]:
        """The committed rows of every sequence in the pass, prompts without a token yet included."""
        ...


class Drafter(Protocol):
    """Proposes trees.  It may be wrong, slow or silent; it may not change the output.

    A drafter that keeps no rows of its own subclasses this and writes only :meth:`propose`.
    """

    needs: Needs

    def adopt(self, key: str, tokens: Sequence[int], most: int) -> int:
        """Start or resume a request whose first rows are reusable from the prefix cache.

        Args:
            key: the request.
            tokens: its token ids.
            most: number of reusable target rows.

        Returns:
            How many of these rows to adopt; a drafter that must see hidden rows returns fewer.
        """
        return most

    def propose(self, context: DraftContext) -> list[TokenTree]:
        """Return one tree per sequence, within its ``nodes`` and ``depth``; the anchor alone is legal."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """Learn the result of a round, for every sequence in it, drafted for or not."""
        return

    def pause(self, key: str) -> None:
        """Give back the pages of a preempted request; it resumes later with the same tokens and more."""
        return

    def close(self, key: str) -> None:
        """Forget a request and release everything held for it; unknown keys are ignored."""
        return


class SeveralDrafters(Drafter):
    """A drafter made of others, each of which sees every request and round."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = drafters

    def adopt(self, key: str, tokens: Sequence[int], most: int) -> int:
        return min(drafter.adopt(key, tokens, most) for drafter in self._drafters)

    def observe(self, outcome: Outcome) -> None:
        for drafter in self._drafters:
            drafter.observe(outcome)

    def pause(self, key: str) -> None:
        for drafter in self._drafters:
            drafter.pause(key)

    def close(self, key: str) -> None:
        for drafter in self._drafters:
            drafter.close(key)


@dataclass(frozen=True, eq=False)
class Workbench:
    """The parts that a drafter is built from."""

    target: TargetModel
    tokenizer: Tokenizer | None
    pool: KVPool
    vocabulary: int
    """Token ids at or past this are never drafted."""
    load: Callable[[str], tuple[TargetModel, Tokenizer | None]]
    """Loads another model in the target's precision, on its device."""
    heads: Mapping[str, HeadCheckpoint] = field(default_factory=dict)
    """Trained heads in memory, by name."""
    reserve: Callable[[str, int], None] = lambda name, row_bytes: None
    """Called with the name of a drafter's own cache and its bytes per position."""

    def head(self, path: str) -> HeadCheckpoint:
        """Read a trained head and fit it to the target.

        Raises:
            ModelError: there is none, or it cannot be read.
            ConfigError: it was made for another target.
        """
        from outrider.heads.loading import read_head

        found = self.heads.get(path) or read_head(path)
        if 0 < found.target.vocabulary < self.vocabulary:
            raise ConfigError(
                f"{found.name} was made for a target of {found.target.vocabulary} tokens, and this one has "
                f"{self.vocabulary}"
            )
        return found.fitted(self.target)


class DrafterConfig(Protocol):
    """The options of one method: a frozen dataclass."""

    method: ClassVar[str]
    """Name of the method and of its file."""
    automatic_rank: ClassVar[int]
    """Rank for ``auto``: of the methods that offer a config, the highest wins."""

    @property
    def needs(self) -> Needs:
        """What the drafter requires, as far as it is known before anything is loaded."""
        ...

    @property
    def most_nodes(self) -> int:
        """Maximum nodes of a tree, anchor included; 1 is plain decoding."""
        ...

    def build(self, workbench: Workbench) -> Drafter:
        """Make the drafter."""
        ...

    @classmethod
    def automatic(cls, draft_models: Sequence[str]) -> DrafterConfig | None:
        """The config that the method offers to ``auto``; None if it offers none."""
        ...


def check_rollback(config: DrafterConfig, model: TargetModel, name: str) -> None:
    """Refuse a method whose drafts a model cannot take back.

    Raises:
        ConfigError: naming the method, and the model by ``name``.
    """
    if config.most_nodes == 1 or model.rollback is Rollback.TREE:
        return
    if model.rollback is Rollback.NONE:
        raise ConfigError(f"{config.method} drafts, but {name} cannot take back a rejected draft; use plain decoding")
    if config.needs.branching:
        raise ConfigError(
            f"{config.method} proposes trees that branch, but {name} can take back only the end of a chain; set "
            "topk to 1, or use a method that drafts chains"
        )


def depth_option(default: int, steps: str, *, high: int = 64) -> Any:
    """The option for the depth of drafts, in ``steps`` per round."""
    text = f"Draft depth: {steps} per round. Raise it if acceptance is high."
    return option(default, text, low=0, high=high, role=Role.DEPTH)


def width_option(default: int, width: str, *, tree: str = "", high: int = 64) -> Any:
    """The option for the width of trees; 1 drafts a chain, more drafts a ``tree``."""
    text = f"{width}; 1 drafts a chain{tree and f', more {tree}'}. Raise it if rows are cheap."
    return option(default, text, low=1, high=high, role=Role.WIDTH)


def tokens_option(default: int, more: str = "", *, high: int = 1024) -> Any:
    """The option for the size of drafts, with ``more`` help."""
    return option(default, f"Maximum draft tokens per round{more}.", low=0, high=high, role=Role.TOKENS)


def survival_option(default: float, what: str = "a draft") -> Any:
    """The option ``min_survival``, which methods that draft with a network share."""
    return option(
        default,
        f"Skip {what} if the estimated chance that it and all drafts before it are accepted is lower. Raise it if rows "
        "are expensive; 0 verifies everything. Ratio rules ignore it.",
        low=0.0,
        high=1.0,
        role=Role.MIN_SURVIVAL,
    )


REGISTRY: Final[dict[str, type[DrafterConfig]]] = {}
"""Methods by name, as far as their files were imported."""


def register(config: type[DrafterConfig]) -> type[DrafterConfig]:
    """Register a method under its name, which must be the name of its file."""
    names = ("method", "automatic_rank", "needs", "most_nodes", "build", "automatic")
    if missing := [name for name in names if not hasattr(config, name)]:
        raise TypeError(f"drafter config {config.__name__} has no {', '.join(missing)}")
    REGISTRY[config.method] = config
    return config
