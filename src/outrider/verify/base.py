"""The protocol of acceptance rules: verdicts, rows, dice, and the drafts that a rule is exact for."""

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
    """How drafters must draw proposals from their distribution, for a rule."""

    PERTURBED = "best under the target's own noise"
    ARGMAX = "most probable"
    INDEPENDENT = "independent samples"
    WITHOUT_REPLACEMENT = "samples without replacement"

    @property
    def target_alone(self) -> bool:
        """Whether rules with such draws compare drafts with the target's own token."""
        return self in (Draws.PERTURBED, Draws.ARGMAX)


@dataclass(frozen=True)
class Verdict:
    """Outcome of one tree: the accepted path and the emitted tokens."""

    path: tuple[int, ...]
    """Accepted nodes, from the anchor's child downwards."""
    tokens: tuple[int, ...]
    """Emitted tokens: accepted drafts, then the bonus token, unless the output ended or failed before it."""
    drafted: tuple[int, ...]
    """Nodes in the tree by depth, depth 1 first."""
    tested: tuple[int, ...]
    """1 at each depth where the accepted path reached a node with a child."""
    accepted: tuple[int, ...]
    """1 at each depth of the accepted path."""
    failed: bool = False
    """Whether the row after the path is unreadable, so there is no bonus token."""
    forced: int = 0
    """Accepted nodes that a grammar forced; they are left out of ``drafted``, ``tested`` and ``accepted``."""

    @classmethod
    def of(cls, tree: TokenTree, path: Sequence[int], bonus: int) -> Verdict:
        """Accept a path and emit the bonus token after it; ``ERROR`` as the bonus emits none."""
        failed = bonus == ERROR
        tokens = (*(tree.tokens[node] for node in path), *(() if failed else (bonus,)))
        drafted, tested, accepted, forced = _counts(tree, path)
        # Drafts after an unreadable row are not tested.
        return cls(tuple(path), tokens, drafted, tested[: len(path)] if failed else tested, accepted, failed, forced)

    @classmethod
    def nothing(cls) -> Verdict:
        """Verdict of a rule that failed itself."""
        return cls((), (), (), (), (), failed=True)

    @property
    def last(self) -> int:
        """The last accepted node; 0, the anchor, if there is none."""
        return self.path[-1] if self.path else 0

    def cut(self, tree: TokenTree, emitted: int) -> Verdict:
        """Cut the verdict where the output ends, after ``emitted`` tokens."""
        if emitted >= len(self.tokens):
            return self
        path = self.path[:emitted]
        drafted, tested, accepted, forced = _counts(tree, path)
        return Verdict(path, self.tokens[:emitted], drafted, tested[:emitted], accepted, forced=forced)


def _counts(tree: TokenTree, path: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    """Nodes by depth, what the path tested and accepted, and how many of its nodes were forced, which do not count."""
    forced = tree.forced
    accepted = len(path) - sum(node in forced for node in path) if forced else len(path)
    if tree.is_chain:
        drafts = len(tree) - 1 - len(forced)
        return (1,) * drafts, (1,) * min(accepted + 1, drafts), (1,) * accepted, len(path) - accepted
    depths = [depth for node, depth in enumerate(tree.depths) if node not in forced]
    drafted = [0] * max(depths)
    for depth in depths[1:]:
        drafted[depth - 1] += 1
    tested = [1 for node in (0, *path) if not forced.issuperset(tree.children[node])]
    return tuple(drafted), tuple(tested), (1,) * accepted, len(path) - accepted


class Dice(Protocol):
    """The randomness of a ratio rule; tests replace it to enumerate all outcomes."""

    def coin(self, node: int, probability: float) -> bool:
        """Draw whether an event of this probability happens."""
        ...

    def draw(self, node: int, weights: Law) -> int:
        """Draw an index in proportion to non-negative weights, which need not be normalized; the node keys the draw.

        If all weights are 0, the row is unreadable, and the draw is ``ERROR``.
        """
        ...


class KeyedDice:
    """Dice keyed by request seed, round and node; never by position alone, because rounds look ahead."""

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
        # Rounding may move the index past the end; the last possible token is right then.
        return index if index < len(weights) else int(np.flatnonzero(weights)[-1])

    def _uniform(self, node: int) -> float:
        draw = self._thrown.get(node, 0)
        self._thrown[node] = draw + 1
        return uniform(self._seed, (draw, self._round, node, self._last_word))


_Answer_co = TypeVar("_Answer_co", covariant=True)


class Answers(Protocol[_Answer_co]):
    """One value per node, computed when it is read."""

    def __getitem__(self, node: int, /) -> _Answer_co:
        """The value at a node."""
        ...


class Rows(Protocol):
    """The target's rows for one tree, computed only where a rule reads them.

    An unreadable row gives :data:`outrider.law.ERROR`, and so does every row after the end of the output.
    """

    @property
    def tokens(self) -> Answers[int]:
        """The target's own token after each node, under the request's choice noise; ``ERROR`` if there is none."""
        ...

    @property
    def probabilities(self) -> Answers[Law]:
        """The target's distribution after each node; all 0 if there is none."""
        ...

    def dice(self, purpose: Purpose) -> Dice:
        """Dice for one purpose in this round."""
        ...


class Verifier(Protocol):
    """An acceptance rule; the engine reads its capabilities and never its name."""

    name: ClassVar[str]
    lossless: ClassVar[bool]
    """Whether the output keeps the target's distribution; a lossy rule takes any drafts."""
    draws: ClassVar[Draws]
    """How drafters must draw from their distribution."""
    trees: ClassVar[bool]
    """Exact for branching trees."""
    merged: ClassVar[bool]
    """Exact for trees merged from several drafters."""
    deterministic: ClassVar[bool]
    """Exact for drafts that are certain given the text before them."""

    def accept(self, tree: TokenTree, rows: Rows) -> Verdict:
        """Decide which path of the tree is accepted, and the token after it."""
        ...


_REGISTRY: dict[str, type[Verifier]] = {}


def register(rule: type[Verifier]) -> type[Verifier]:
    """Register a rule under its name, which must be the name of its file."""
    file = rule.__module__.rpartition(".")[2]
    if file != rule.name.replace("-", "_"):
        raise TypeError(f"acceptance rule {rule.name!r} is in the file {file}.py; give both the same name")
    _REGISTRY[rule.name] = rule
    return rule


def registered() -> dict[str, type[Verifier]]:
    """All rules by name."""
    return dict(sorted(_REGISTRY.items()))


def repeats_plain_text(verifier: Verifier) -> bool:
    """Whether a rule gives exactly the text of plain decoding for a seed, and not only its distribution."""
    return verifier.lossless and verifier.draws.target_alone


def rule_label(name: str, *, lossless: bool) -> str:
    """A rule's name for output, with a note if it is lossy."""
    return name if lossless else f"{name} (lossy: not the target's text)"


def make_verifier(name: str) -> Verifier:
    """Make the rule with this name.

    Raises:
        ConfigError: there is none; the message lists all rules.
    """
    key = name.lower().replace("_", "-")
    if key not in _REGISTRY:
        raise ConfigError(f"there is no verifier {name!r}; there are: {', '.join(registered())}")
    return _REGISTRY[key]()


class Demands(Protocol):
    """What a method requires of a rule; :class:`outrider.drafters.base.Needs` implements it."""

    @property
    def branching(self) -> bool:
        """Whether its trees branch."""
        ...

    @property
    def merged(self) -> bool:
        """Whether its trees are merged from several drafters."""
        ...

    @property
    def deterministic(self) -> bool:
        """Whether its drafts are certain, without a distribution."""
        ...


def check_exact(verifier: Verifier, method: str, needs: Demands) -> None:
    """Refuse a lossless rule that is not exact for a method's drafts.

    Raises:
        ConfigError: naming the method, and the rules that are exact.
    """
    if not verifier.lossless:
        return
    gaps = (
        (needs.branching and not verifier.trees, "trees that branch"),
        (needs.merged and not verifier.merged, "trees merged from several drafters"),
        (needs.deterministic and not verifier.deterministic, "deterministic drafts"),
    )
    for fails, what in gaps:
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
