"""Every outcome of the real acceptance code, with its probability.

A program that throws dice is run again and again, each time with one more of its outcomes prescribed, until every
branch has been taken: what comes out is the exact law of what the code does, not an estimate.  Drafts are enumerated
in the same way, draw by draw, so that a rule is judged on average over what its drafter may propose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch

from outrider.drafters.base import Proposal
from outrider.law import ERROR, Law, Laws
from outrider.sampling.noise import Purpose
from outrider.tree import NO_PARENT, TokenTree, TreeBuilder
from outrider.verify import Verdict, Verifier, make_verifier

Result = TypeVar("Result")

ROUNDING = 1e-12
"""Most that an exact law may be off."""
CAUGHT = 0.04
"""Least that a wrong law of the negative controls is off."""


class Choices:
    """The outcomes of one run: the prescribed ones first, then the first possible one each time."""

    def __init__(self, prescribed: tuple[int, ...]) -> None:
        self._prescribed, self._taken = prescribed, []
        self.probability = 1.0
        self.untaken: list[tuple[int, ...]] = []

    def choose(self, weights: Sequence[float]) -> int:
        """One index, possible under non-negative weights that add up to 1."""
        possible = [index for index, weight in enumerate(weights) if weight > 0.0]
        depth = len(self._taken)
        if depth < len(self._prescribed):
            index = self._prescribed[depth]
        else:
            index = possible[0]
            self.untaken += [(*self._taken, other) for other in possible[1:]]
        self._taken.append(index)
        self.probability *= weights[index]
        return index


def every_run(program: Callable[[Choices], Result]) -> Iterator[tuple[float, Result]]:
    """Each way a program can go, with its probability, depth first."""
    pending: list[tuple[int, ...]] = [()]
    while pending:
        choices = Choices(pending.pop())
        result = program(choices)
        yield choices.probability, result
        pending += choices.untaken


class EnumeratingDice:
    """The dice of a ratio rule, thrown by the enumeration."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def coin(self, node: int, probability: float) -> bool:
        assert 0.0 <= probability <= 1.0, f"a coin of probability {probability}"
        return self._choices.choose((probability, 1.0 - probability)) == 0

    def draw(self, node: int, weights: Law) -> int:
        values = weights.tolist()
        total = sum(values)
        assert min(values) >= 0.0 and total < float("inf"), f"weights {values}"
        if total == 0.0:
            return ERROR
        return self._choices.choose([value / total for value in values])


class EnumeratedRows:
    """Stands in for :class:`outrider.verify.Rows`: a table model's rows, and dice that are enumerated."""

    def __init__(self, tree: TokenTree, target: TableModel, choices: Choices) -> None:
        self.tree, self._target, self._choices = tree, target, choices
        self._handed_out: set[Purpose] = set()

    @cached_property
    def probabilities(self) -> Laws:
        return np.stack([self._target.row(path) for path in self.tree.paths])

    @cached_property
    def tokens(self) -> TargetTokens:
        return TargetTokens(self.probabilities, EnumeratingDice(self._choices))

    def dice(self, purpose: Purpose) -> EnumeratingDice:
        assert purpose in (Purpose.ACCEPT, Purpose.FINAL)
        assert purpose not in self._handed_out, "keyed dice asked for twice repeat their numbers"
        self._handed_out.add(purpose)
        return EnumeratingDice(self._choices)


class TargetTokens:
    """The target's own token after each row a rule looks at, drawn when it is first looked at."""

    def __init__(self, probabilities: Laws, dice: EnumeratingDice) -> None:
        self._probabilities, self._dice, self._drawn = probabilities, dice, {}

    def __getitem__(self, node: int) -> int:
        if node not in self._drawn:
            self._drawn[node] = self._dice.draw(node, self._probabilities[node])
        return self._drawn[node]


class TableModel:
    """A model of few symbols: one law per path.

    Args:
        table: gives the law after a path, as numbers that add up to 1.
        vocabulary: how many symbols.
    """

    def __init__(self, table: Callable[[tuple[int, ...]], Sequence[float]], vocabulary: int) -> None:
        self.vocabulary, self._table = vocabulary, table
        self._rows: dict[tuple[int, ...], Law] = {}
        self._joint: dict[tuple[tuple[int, ...], int], np.ndarray] = {}

    def row(self, path: tuple[int, ...]) -> Law:
        """The law after a path."""
        if path not in self._rows:
            self._rows[path] = np.array(self._table(path))
        return self._rows[path]

    def joint(self, path: tuple[int, ...], length: int) -> np.ndarray:
        """The law of the next ``length`` tokens after a path, one axis per token."""
        if length == 0:
            return np.array(1.0)
        key = path, length
        if key not in self._joint:
            after = [self.joint((*path, token), length - 1) for token in range(self.vocabulary)]
            self._joint[key] = np.stack([p * rest for p, rest in zip(self.row(path).tolist(), after, strict=True)])
        return self._joint[key]


def random_model(seed: int, vocabulary: int, *, impossible: float = 0.0) -> TableModel:
    """A model whose every row is drawn from a flat Dirichlet law.

    Args:
        seed: names the model.
        vocabulary: how many symbols.
        impossible: chance that a symbol other than the first has probability 0 in a row.
    """

    def table(path: tuple[int, ...]) -> list[float]:
        rng = np.random.default_rng([seed, *path])
        weights = rng.exponential(size=vocabulary) * (rng.random(vocabulary) >= impossible)
        if weights.sum() == 0.0:
            weights[rng.integers(vocabulary)] = 1.0
        return (weights / weights.sum()).tolist()

    return TableModel(table, vocabulary)


def greedy(model: TableModel) -> TableModel:
    """The same model at temperature 0: every row is one-hot at its best token."""

    def table(path: tuple[int, ...]) -> list[float]:
        best = int(model.row(path).argmax())
        return [float(token == best) for token in range(model.vocabulary)]

    return TableModel(table, model.vocabulary)


Draw = Callable[[Choices, Law, int, int], list[Proposal]]
"""Turns the law below a node into so many proposals: the enumerated twin of a function behind ``pick``."""


def independent(choices: Choices, q: Law, node: int, width: int) -> list[Proposal]:
    """Twin of ``Draws.INDEPENDENT``."""
    tokens = [choices.choose(q.tolist()) for _ in range(width)]
    return [Proposal(token, float(q[token]), q, ()) for token in tokens]


def without_replacement(choices: Choices, q: Law, node: int, width: int) -> list[Proposal]:
    """Twin of ``Draws.WITHOUT_REPLACEMENT``, drawn one by one from what is left."""
    tokens: list[int] = []
    left = q.tolist()
    for _ in range(min(width, int(np.count_nonzero(q)))):
        mass = sum(left)
        tokens.append(choices.choose([weight / mass for weight in left]))
        left[tokens[-1]] = 0.0
    return [Proposal(token, float(q[token]), q, tuple(tokens[:i])) for i, token in enumerate(tokens)]


def certain(choices: Choices, q: Law, node: int, width: int) -> list[Proposal]:
    """Twin of ``Draws.ARGMAX``: the most probable tokens, no dice."""
    tokens = torch.topk(torch.from_numpy(q), min(width, int(np.count_nonzero(q)))).indices.tolist()
    return [Proposal(token, float(q[token]), None, ()) for token in tokens]


Shape = Sequence[tuple[Draw, int]]
"""How to draw at each depth, and how many below each node."""


def grow(choices: Choices, draft: TableModel, shape: Shape) -> TokenTree:
    """Draft level by level: every node of a level is expanded once, however often it was drawn."""
    builder = TreeBuilder(0)
    level = [0]
    for draw, width in shape:
        grown: dict[int, None] = {}
        for node in level:
            for token, probability, q, removed in draw(choices, draft.row(builder.paths[node]), node, width):
                grown[builder.add(node, token, survival=probability, q=q, removed=removed)] = None
        level = list(grown)
    return builder.build()


def merged(choices: Choices, parts: Iterable[tuple[TableModel, Shape]]) -> TokenTree:
    """Trees of several drafters, each grown on its own, merged into one."""
    builder = TreeBuilder(0)
    for source, (draft, shape) in enumerate(parts):
        builder.graft(grow(choices, draft, shape), source)
    return builder.build()


def first_nodes(tree: TokenTree, drafts: int) -> TokenTree:
    """The tree of the anchor and its first ``drafts`` nodes: a chain cut to that length."""
    return tree.subtree(range(drafts + 1))


def with_laws(tree: TokenTree, law: Callable[[int], Law]) -> TokenTree:
    """The same tree, its candidates claiming to be drawn from ``law(node)`` with nothing removed."""
    claimed = tuple(candidate._replace(q=law(candidate.node), removed=()) for candidate in tree.candidates)
    return replace(tree, candidates=claimed)


def verdicts(rule: Verifier, tree: TokenTree, target: TableModel) -> list[tuple[float, Verdict]]:
    """Everything a rule may do with one tree."""
    return list(every_run(lambda choices: rule.accept(tree, EnumeratedRows(tree, target, choices))))


class OutputLaw:
    """The law of the first tokens of the text, gathered round by round; the target finishes what a round left short."""

    def __init__(self, target: TableModel, length: int) -> None:
        self.target, self._length = target, length
        self.law = np.zeros((target.vocabulary,) * length)
        self.emitted = 0.0
        """Expected number of tokens emitted in the round."""

    def add(self, probability: float, verdict: Verdict) -> None:
        """Count one outcome of a round."""
        tokens = verdict.tokens
        assert len(tokens) <= self._length
        self.law[tokens] += probability * self.target.joint(tokens, self._length - len(tokens))
        self.emitted += probability * len(tokens)

    @property
    def error(self) -> float:
        """Greatest absolute difference of a probability from the target's."""
        return float(np.abs(self.law - self.target.joint((), self._length)).max())


def output_law(rule: Verifier, draft: Callable[[Choices], TokenTree], target: TableModel, length: int) -> OutputLaw:
    """The exact law of a text's first tokens when its first round drafts and accepts like this."""
    found = OutputLaw(target, length)
    for drafted, tree in every_run(draft):
        assert tree.parents[0] == NO_PARENT
        for accepted, verdict in verdicts(rule, tree, target):
            found.add(drafted * accepted, verdict)
    return found


def error_of(rule: str, draft: Callable[[Choices], TokenTree], target: TableModel, length: int) -> float:
    """Greatest error of a probability of the output's law, under a rule by name."""
    return output_law(make_verifier(rule), draft, target, length).error


def coin_model(probability: float) -> TableModel:
    """Two symbols, the first with this probability, whatever came before."""
    return TableModel(lambda path: (probability, 1.0 - probability), 2)
