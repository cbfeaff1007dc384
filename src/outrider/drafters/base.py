"""The drafter protocol: what a drafter sees, what it returns, and how it registers.

A drafter is one file in this package: a frozen config dataclass whose ``method`` is the file's name, and the class
its ``build`` returns.  Flags, bench rows, metrics and the contract suite follow from the registration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import torch

from outrider.control.price import FREE, RowPrice
from outrider.errors import ConfigError
from outrider.law import Law
from outrider.models.base import Rollback
from outrider.options import Role, option
from outrider.tree import TokenTree, TreeBuilder
from outrider.verify.base import Draws, Verdict

if TYPE_CHECKING:
    from outrider.heads.checkpoint import HeadCheckpoint
    from outrider.kv.pool import KVPool
    from outrider.models.base import TargetModel, TargetOutput
    from outrider.models.files.tokenizer import Tokenizer


@dataclass(frozen=True)
class Needs:
    """What a drafter asks of the engine, as data."""

    branching: bool = False
    """Its trees may branch."""
    merged: bool = False
    """Its trees may hold draws of several drafters below one node."""
    deterministic: bool = False
    """Some drafts are point masses given the text before them, whatever the acceptance rule."""
    hidden_layers: tuple[int, ...] = ()
    """Target layers whose hidden rows it reads; see :class:`outrider.models.base.TargetOutput`."""
    reads_hidden: bool = False
    """It will read hidden rows, of layers that only its weights tell."""
    price: RowPrice = FREE
    """What a draft of its must promise to be verified, unless the controller says otherwise."""


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
    """Deepest draft that can still become text."""
    price: RowPrice | None = None
    """What a draft must promise; None leaves it to the drafter's own :attr:`Needs.price`."""

    def builder(self) -> TreeBuilder:
        """A tree of only the anchor, to grow."""
        return TreeBuilder(self.tokens[-1])


class Proposal(NamedTuple):
    """One token that a drafter's distribution yields under the acceptance rule."""

    token: int
    probability: float
    """The drafter's probability of the token: an estimate of its acceptance."""
    q: Law | None
    """The distribution it was drawn from; None is a point mass."""
    removed: tuple[int, ...]
    """Tokens drawn before it without replacement."""


class Frontier(NamedTuple):
    """Nodes of one sequence's tree that are to get proposals."""

    key: str
    rows: Sequence[int]
    """Each node's row of the drafter's logits."""
    paths: Sequence[Sequence[int]]
    """Drafted tokens from the anchor to each node."""
    nodes: Sequence[int]
    """The nodes, which name their dice under ratio rules."""
    width: int
    """Proposals wanted per node."""


class Picker(Protocol):
    """Turns drafter logits into proposals.  It holds the dice and knows the rule, so that no drafter has to."""

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
        """Turn drafter logits into proposals: the one place where a drafter's distribution meets the dice.

        Ask for all sequences at once: that costs little more than one.

        Args:
            logits: float [rows, ≥ vocabulary], the drafter's, in target token ids.
            frontiers: the nodes that get proposals, by sequence.
            source: which drafter of a merged tree asks.

        Returns:
            For each sequence the proposals of each node, most promising first, in the order drawn where the tree is
            ``causal``; none for a node behind an end of the output, nor for one whose history the request's parameters
            refuse.  Whatever else fails for one sequence stands in its place as an exception.
        """
        return self.picker.pick(logits, frontiers, source)


class Committed(NamedTuple):
    """The rows of a pass that one sequence keeps for good: a prompt's chunk, or an anchor and what was accepted."""

    key: str
    tokens: Sequence[int]
    """Committed token ids, prompt first; with those that the round emitted."""
    start: int
    """Position of the first row."""
    rows: Sequence[int]
    """Rows of the pass, in order of position."""


class Outcome(Protocol):
    """What became of one round.  Each part is put together when it is first asked for."""

    @property
    def sequences(self) -> Sequence[DraftSequence]:
        """Every sequence that got a token; its ``tokens`` hold those of the round already."""
        ...

    @property
    def trees(self) -> Sequence[TokenTree]:
        """What was verified of each of them."""
        ...

    @property
    def verdicts(self) -> Sequence[Verdict]:
        """What became of each tree."""
        ...

    @property
    def output(self) -> TargetOutput:
        """Of the pass."""
        ...

    @property
    def committed(self) -> Sequence[Committed]:
        """Of every sequence in the pass, those that got no token yet included."""
        ...


class Drafter(Protocol):
    """Proposes trees.  It may be wrong, slow or silent; it may not change the output."""

    needs: Needs

    def adopt(self, key: str, tokens: Sequence[int], most: int) -> int:
        """Start or resume a request whose first rows are reusable from the prefix cache.

        Args:
            key: the request.
            tokens: its token ids.
            most: number of reusable target rows.

        Returns:
            How many of these rows to adopt; a drafter that must see the hidden rows of the rest returns less.
        """
        ...

    def propose(self, context: DraftContext) -> list[TokenTree]:
        """One tree per sequence of the context, within its ``nodes`` and ``depth``; the anchor alone is legal."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """Learn what became of every sequence that took part in the round, drafted for or not."""
        ...

    def pause(self, key: str) -> None:
        """Give back a request's pages; it comes back later with the same tokens and more."""
        ...

    def close(self, key: str) -> None:
        """Forget a request and release all that is held for it; unknown keys are ignored."""
        ...


@dataclass(frozen=True, eq=False)
class Workbench:
    """What a drafter's config may build from."""

    target: TargetModel
    tokenizer: Tokenizer | None
    pool: KVPool
    draws: Draws
    device: torch.device
    vocabulary: int
    """Token ids at or past this are never drafted."""
    load: Callable[[str], tuple[TargetModel, Tokenizer | None]]
    """Loads another model in the target's precision, on its device."""
    heads: Mapping[str, HeadCheckpoint] = field(default_factory=dict)
    """Trained heads that are in memory, by name."""
    reserve: Callable[[str, int], None] = lambda name, row_bytes: None
    """Notes how many bytes one position takes in a cache of the drafter's own."""

    def head(self, path: str) -> HeadCheckpoint:
        """A trained head that was made for this target.

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
    """The name of the method: its file's name."""
    automatic_rank: ClassVar[int]
    """Preference when the user leaves the choice open; of the methods that offer themselves the highest wins."""

    @property
    def needs(self) -> Needs:
        """What the drafter will ask, known before anything is loaded."""
        ...

    @property
    def most_nodes(self) -> int:
        """Most nodes of a tree, anchor included; 1 is plain decoding."""
        ...

    def build(self, workbench: Workbench) -> Drafter:
        """Make the drafter."""
        ...

    @classmethod
    def automatic(cls, draft_models: Sequence[str]) -> DrafterConfig | None:
        """The config to use when the user leaves the choice open, or None where the method is not for that."""
        ...


def check_rollback(config: DrafterConfig, model: TargetModel, name: str) -> None:
    """Refuse drafts that a model could not take back.

    Args:
        config: of the method that drafts.
        model: what reads the drafts.
        name: what it is called, for the message.

    Raises:
        ConfigError: naming the method and the model.
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


def survival_option(default: float, what: str = "a draft") -> Any:
    """The field of the least chance of acceptance."""
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
    """Make a method known; its name must be the name of the file it stands in."""
    lacking = [
        name
        for name in ("method", "automatic_rank", "needs", "most_nodes", "build", "automatic")
        if not hasattr(config, name)
    ]
    if lacking:
        raise TypeError(f"drafter config {config.__name__} lacks {', '.join(lacking)}")
    REGISTRY[config.method] = config
    return config
