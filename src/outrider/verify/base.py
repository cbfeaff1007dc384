"""What an acceptance rule is: the verdict it returns, the rows and dice it may use, and where it is exact."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

import numpy as np

from outrider.errors import ConfigError
from outrider.law import ERROR, Law
from outrider.sampling.noise import Purpose, counter_word, uniform
from outrider.tree import TokenTree


class Draws(enum.Enum):
    """How a rule wants a drafter's distribution turned into proposals."""

    PERTURBED = "best under the target's own noise"
    ARGMAX = "most probable"
    INDEPENDENT = "independent samples"
    WITHOUT_REPLACEMENT = "samples without replacement"

    @property
    def target_alone(self) -> bool:
        """Whether an exact rule with such draws judges them by the target's own token."""
        return self in (Draws.PERTURBED, Draws.ARGMAX)


@dataclass(frozen=True)
class Verdict:
    """What a round kept of one tree."""

    path: tuple[int, ...]
    """Accepted nodes from the anchor's child on; a root-to-node path of the tree."""
    tokens: tuple[int, ...]
    """Emitted tokens: the accepted drafts, then the bonus unless the output ended or failed before it."""
    drafted: tuple[int, ...]
    """Nodes in the tree by depth, depth 1 first."""
    tested: tuple[int, ...]
    """1 at each depth where the accepted path reached a node with a child."""
    accepted: tuple[int, ...]
    """1 at each depth of the accepted path."""
    failed: bool = False
    """Whether the row after the path cannot be read, so that no token follows."""

    @classmethod
    def of(cls, tree: TokenTree, path: Sequence[int], bonus: int) -> Verdict:
        """The verdict that accepts a path of nodes and emits one token after it, or none where it is ``ERROR``."""
        failed = bonus == ERROR
        tokens = (*(tree.tokens[node] for node in path), *(() if failed else (bonus,)))
        drafted, tested, accepted = _counts(tree, path)
        # Drafts behind a row that cannot be read are tested against nothing.
        return cls(tuple(path), tokens, drafted, tested[: len(path)] if failed else tested, accepted, failed)

    @classmethod
    def nothing(cls) -> Verdict:
        """The verdict where the rule itself broke down."""
        return cls((), (), (), (), (), failed=True)

    @property
    def last(self) -> int:
        """The node after which the round ended."""
        return self.path[-1] if self.path else 0

    def cut(self, tree: TokenTree, emitted: int) -> Verdict:
        """The same verdict when the output ends after its first ``emitted`` tokens."""
        if emitted >= len(self.tokens):
            return self
        path = self.path[:emitted]
        drafted, tested, accepted = _counts(tree, path)
        return Verdict(path, self.tokens[:emitted], drafted, tested[:emitted], accepted)


def _counts(tree: TokenTree, path: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Nodes by depth, and what the path tested and accepted."""
    if tree.is_chain:
        drafts = len(tree) - 1
        return (1,) * drafts, (1,) * min(len(path) + 1, drafts), (1,) * len(path)
    drafted = [0] * max(tree.depths)
    for depth in tree.depths[1:]:
        drafted[depth - 1] += 1
    tested = [1 for node in (0, *path) if tree.children[node]]
    return tuple(drafted), tuple(tested), (1,) * len(path)


class Dice(Protocol):
    """The randomness of a ratio rule; tests replace it to enumerate every outcome of the real code."""

    def coin(self, node: int, probability: float) -> bool:
        """Whether an event of this probability happens; one draw at this node."""
        ...

    def draw(self, node: int, weights: Law) -> int:
        """An outcome drawn in proportion to non-negative ``weights``; one draw at this node.

        Args:
            node: names the draw.
            weights: whatever they add up to; all 0 is the law of a row that cannot be read.

        Returns:
            An index, or ``ERROR`` where all weights are 0.
        """
        ...


class KeyedDice:
    """Dice named by request seed, round and node: never by position alone, which a round may look past.

    Args:
        seed: the request's 64-bit seed.
        round_number: rounds this request has begun; the same number never returns.
        choice: index among the ``n`` completions.
        purpose: what the numbers are for.
        source: which drafter of a merged tree throws them.
    """

    def __init__(self, seed: int, round_number: int, choice: int, purpose: Purpose, source: int = 0) -> None:
        self._seed, self._round = seed, round_number
        self._last_word = counter_word(purpose, choice, source)
        self._thrown: dict[int, int] = {}

    def coin(self, node: int, probability: float) -> bool:
        return self._uniform(node) < probability

    def draw(self, node: int, weights: Law) -> int:
        cumulative = weights.cumsum()
        if cumulative[-1] == 0.0:
            return ERROR
        index = int(cumulative.searchsorted(self._uniform(node) * cumulative[-1], side="right"))
        # Rounding may carry the place to the very end; the last possible token is the right one there.
        return index if index < len(weights) else int(np.flatnonzero(weights)[-1])

    def _uniform(self, node: int) -> float:
        draw = self._thrown.get(node, 0)
        self._thrown[node] = draw + 1
        return uniform(self._seed, (draw, self._round, node, self._last_word))


_Answer_co = TypeVar("_Answer_co", covariant=True)


class Answers(Protocol[_Answer_co]):
    """One answer per node, computed when it is read."""

    def __getitem__(self, node: int, /) -> _Answer_co:
        """The answer at a node."""
        ...


class Rows(Protocol):
    """The target's answer to one tree, computed only where a rule looks.

    A row that cannot be read has the outcome :data:`outrider.law.ERROR` for certain, and so has every row behind an end
    of the output: no text gets there, so nobody is asked what would follow.
    """

    @property
    def tokens(self) -> Answers[int]:
        """The target's own token after each node, under the request's choice noise; ``ERROR`` where it has none."""
        ...

    @property
    def probabilities(self) -> Answers[Law]:
        """The target's distribution after each node; all 0 where it has none."""
        ...

    def dice(self, purpose: Purpose) -> Dice:
        """Dice for one purpose in this round."""
        ...


class Verifier(Protocol):
    """One acceptance rule.  Capabilities are data; the engine never asks for a name."""

    name: ClassVar[str]
    lossless: ClassVar[bool]
    """Whether the output keeps the target's law; a rule without is exact for nothing, and takes any drafts."""
    draws: ClassVar[Draws]
    """How drafters that have a distribution must draw from it."""
    trees: ClassVar[bool]
    """Exact for trees that branch."""
    merged: ClassVar[bool]
    """Exact for trees merged from several drafters."""
    deterministic: ClassVar[bool]
    """Exact for drafts that are a point mass given the text before them."""

    def accept(self, tree: TokenTree, rows: Rows) -> Verdict:
        """Decide which path of a tree becomes text, and the token after it."""
        ...


_REGISTRY: dict[str, type[Verifier]] = {}


def register(rule: type[Verifier]) -> type[Verifier]:
    """Make a rule known under its name, which must be the name of the file it stands in."""
    file = rule.__module__.rpartition(".")[2]
    if file != rule.name.replace("-", "_"):
        raise TypeError(f"acceptance rule {rule.name!r} stands in the file {file}.py; give both one name")
    _REGISTRY[rule.name] = rule
    return rule


def registered() -> dict[str, type[Verifier]]:
    """Every rule by name."""
    return dict(sorted(_REGISTRY.items()))


def repeats_plain_text(verifier: Verifier) -> bool:
    """Whether a rule's text is plain decoding's very text under the same seed, and not only of its law."""
    return verifier.lossless and verifier.draws.target_alone


def rule_label(name: str, *, lossless: bool) -> str:
    """A rule's name for people; one that changes the output says so."""
    return name if lossless else f"{name} (lossy: not the target's text)"


def make_verifier(name: str) -> Verifier:
    """The rule of a name.

    Raises:
        ConfigError: listing the rules there are.
    """
    key = name.lower().replace("_", "-")
    if key not in _REGISTRY:
        raise ConfigError(f"there is no verifier {name!r}; there are: {', '.join(registered())}")
    return _REGISTRY[key]()


class Demands(Protocol):
    """What a drafting method asks of a rule; see :class:`outrider.drafters.base.Needs`."""

    @property
    def branching(self) -> bool:
        """Trees that branch."""
        ...

    @property
    def merged(self) -> bool:
        """Trees merged from several drafters."""
        ...

    @property
    def deterministic(self) -> bool:
        """Drafts that come without a law."""
        ...


def check_exact(verifier: Verifier, method: str, needs: Demands) -> None:
    """Refuse a rule for drafts it is not exact for; one that is not lossless has no exactness to lose.

    Args:
        verifier: the rule.
        method: the drafting method's name, for the message.
        needs: what its drafts are.

    Raises:
        ConfigError: naming the rule, the method and what the rule lacks.
    """
    if not verifier.lossless:
        return
    lacking = (
        (needs.branching and not verifier.trees, "trees that branch"),
        (needs.merged and not verifier.merged, "trees merged from several drafters"),
        (needs.deterministic and not verifier.deterministic, "deterministic drafts"),
    )
    for fails, what in lacking:
        if fails:
            raise ConfigError(
                f"verifier {verifier.name!r} is not exact for {what}, which {method!r} proposes; "
                f"use one of: {', '.join(_exact_rules(needs))}"
            )


def _exact_rules(needs: Demands) -> Iterable[str]:
    for name, rule in registered().items():
        exact = ((rule.trees, needs.branching), (rule.merged, needs.merged), (rule.deterministic, needs.deterministic))
        if rule.lossless and all(can or not must for can, must in exact):
            yield name
