"""How many of its drafts a round verifies, and what that decision may look at: by enumeration.

A ratio rule is exact on average over what the drafter may draw, so a decision about a slot may use anything known
before the slot's token was drawn, and nothing that was known after.  Target-only rules are exact for every draft, so
they allow any decision.  Nothing here is sampled; there is no false alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from outrider.tree import TokenTree
from outrider.verify import make_verifier
from statistical.enumeration import (
    CAUGHT,
    ROUNDING,
    Choices,
    OutputLaw,
    TableModel,
    coin_model,
    error_of,
    every_run,
    first_nodes,
    grow,
    independent,
    random_model,
    verdicts,
)


def chain(choices: Choices, draft: TableModel, length: int) -> TokenTree:
    """A sampled chain."""
    return grow(choices, draft, [(independent, 1)] * length)


# --- Length cuts: what a drafter may look at before it decides how many of its tokens are verified. ---

Cut = Callable[[TokenTree, TableModel], int]
"""How many drafts of a chain go to the target."""


def _leading(keeps: Callable[[int], bool], drafts: int) -> int:
    """How many leading slots (from 1) are kept."""
    return next((slot for slot in range(drafts) if not keeps(slot + 1)), drafts)


def by_prefix(tree: TokenTree, draft: TableModel) -> int:
    """Slot k is verified when the drafter, *before* it drew x_k, was sure of itself."""
    return _leading(lambda k: float(draft.row(tree.paths[k - 1]).max()) >= 0.6, len(tree) - 1)


def by_drafted_token(tree: TokenTree, draft: TableModel) -> int:
    """Slot k is verified when the token x_k it drew is likely."""
    return _leading(lambda k: float(draft.row(tree.paths[k - 1])[tree.tokens[k]]) >= 0.4, len(tree) - 1)


def by_later_slots(tree: TokenTree, draft: TableModel) -> int:
    """Slot k is verified when the token drawn after it is likely."""
    last = len(tree) - 1
    return _leading(lambda k: k == last or float(draft.row(tree.paths[k])[tree.tokens[k + 1]]) >= 0.4, last)


CHAIN_RULES = ("rejection", "block", "multi-step", "recursive", "traversal")
CUT_MODELS = random_model(30, 2), random_model(530, 2)


def cut_error(rule: str, cut: Cut) -> float:
    """Error of a rule on sampled chains of three, cut before they are verified."""
    target, draft = CUT_MODELS

    def cut_chain(choices: Choices) -> TokenTree:
        tree = chain(choices, draft, 3)
        return first_nodes(tree, cut(tree, draft))

    return error_of(rule, cut_chain, target, 4)


@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_a_cut_may_look_at_the_prefix_before_the_slot(rule: str) -> None:
    _, draft = CUT_MODELS
    lengths = {by_prefix(tree, draft) for _, tree in every_run(lambda c: chain(c, draft, 3))}
    assert len(lengths) > 1, "a cut that never differs proves nothing"
    assert cut_error(rule, by_prefix) <= ROUNDING


@pytest.mark.parametrize("cut", [by_drafted_token, by_later_slots])
@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_a_cut_that_looks_at_the_slot_or_past_it_is_caught(rule: str, cut: Cut) -> None:
    assert cut_error(rule, cut) >= CAUGHT


@pytest.mark.parametrize("cut", [by_prefix, by_drafted_token, by_later_slots])
@pytest.mark.parametrize("rule", ["point-mass", "coupled"])
def test_target_only_rules_allow_any_cut(rule: str, cut: Cut) -> None:
    assert cut_error(rule, cut) <= ROUNDING


# --- Two requests that share one pass: which of their drafts get its rows. ---

Policy = Callable[[Sequence[TokenTree], "Pair"], tuple[int, ...]]


@dataclass(frozen=True)
class Pair:
    """Two requests, each with its own target and drafter."""

    targets: tuple[TableModel, TableModel]
    drafts: tuple[TableModel, TableModel]
    slots: int = 2

    def confidence(self, request: int, tree: TokenTree, slot: int) -> float:
        """Chance that a slot is accepted, from the prefix before it alone."""
        before = tree.paths[slot - 1]
        return float(np.minimum(self.targets[request].row(before), self.drafts[request].row(before)).sum())

    def survival(self, request: int, tree: TokenTree) -> list[float]:
        """Chance of each slot that it and all before it are accepted."""
        return np.cumprod([self.confidence(request, tree, slot) for slot in range(1, self.slots + 1)]).tolist()


def steps_per_second(rows: int) -> float:
    """Profiles of real machines fall in steps, so that the goodput has more than one peak."""
    return {2: 1.0, 3: 0.7, 4: 0.54, 5: 0.44, 6: 0.42}[rows]


def early_stop(
    survival: Sequence[Sequence[float]], speed: Callable[[int], float] = steps_per_second
) -> tuple[int, ...]:
    """DSpark's algorithm 1: admit slots by survival until the goodput falls, and look no further."""
    order = [(a, request, slot) for request, row in enumerate(survival) for slot, a in enumerate(row, 1)]
    order.sort(key=lambda item: -item[0])
    lengths = [0] * len(survival)
    rows, tokens = len(survival), float(len(survival))
    best = tokens * speed(rows)
    for a, request, slot in order:
        rows, tokens = rows + 1, tokens + a
        if tokens * speed(rows) <= best:
            break
        best = tokens * speed(rows)
        lengths[request] = slot
    return tuple(lengths)


def global_best(
    survival: Sequence[Sequence[float]], speed: Callable[[int], float] = steps_per_second
) -> tuple[int, ...]:
    """The lengths of greatest goodput of all: it looks at every slot's confidence, past the ones it drops."""

    def goodput(lengths: tuple[int, ...]) -> float:
        tokens = sum(1.0 + sum(row[:length]) for row, length in zip(survival, lengths, strict=True))
        return tokens * speed(len(survival) + sum(lengths))

    return max(product(*(range(len(row) + 1) for row in survival)), key=goodput)


def most_likely(scores: Sequence[Sequence[float]], rows: int) -> tuple[int, ...]:
    """The best so many slots of all requests; scores never rise along a request."""
    order = [(score, request, slot) for request, row in enumerate(scores) for slot, score in enumerate(row, 1)]
    order.sort(key=lambda item: -item[0])
    lengths = [0] * len(scores)
    for _, request, slot in order[:rows]:
        lengths[request] = slot
    return tuple(lengths)


def with_early_stop(trees: Sequence[TokenTree], pair: Pair) -> tuple[int, ...]:
    return early_stop([pair.survival(request, tree) for request, tree in enumerate(trees)])


def with_global_best(trees: Sequence[TokenTree], pair: Pair) -> tuple[int, ...]:
    return global_best([pair.survival(request, tree) for request, tree in enumerate(trees)])


def by_survival(trees: Sequence[TokenTree], pair: Pair) -> tuple[int, ...]:
    return most_likely([pair.survival(request, tree) for request, tree in enumerate(trees)], 2)


def by_own_scores(trees: Sequence[TokenTree], pair: Pair) -> tuple[int, ...]:
    scores = []
    for request, tree in enumerate(trees):
        law = pair.drafts[request]
        scores.append(np.cumprod([float(law.row(tree.paths[k - 1])[tree.tokens[k]]) for k in range(1, len(tree))]))
    return most_likely([row.tolist() for row in scores], 2)


def pair_errors(rule: str, policy: Policy, pair: Pair) -> tuple[float, float]:
    """Greatest error of a request's own law, and of the law of both texts together."""
    verifier, length = make_verifier(rule), pair.slots + 1
    chains = [list(every_run(lambda c, d=d: chain(c, d, pair.slots))) for d in pair.drafts]
    laws: dict[tuple[int, int, int], np.ndarray] = {}

    def law(request: int, index: int, drafts: int) -> np.ndarray:
        if (request, index, drafts) not in laws:
            found = OutputLaw(pair.targets[request], length)
            for chance, verdict in verdicts(verifier, first_nodes(chains[request][index][1], drafts), found.target):
                found.add(chance, verdict)
            laws[request, index, drafts] = found.law.ravel()
        return laws[request, index, drafts]

    joint = 0.0
    lengths_seen = set()
    for (i, (chance_i, tree_i)), (j, (chance_j, tree_j)) in product(*map(enumerate, chains)):
        lengths = policy((tree_i, tree_j), pair)
        lengths_seen.add(lengths)
        joint = joint + chance_i * chance_j * np.outer(law(0, i, lengths[0]), law(1, j, lengths[1]))
    assert len(lengths_seen) > 1, "a policy that never differs proves nothing"
    wanted = [target.joint((), length).ravel() for target in pair.targets]
    own = max(np.abs(joint.sum(1 - axis) - wanted[axis]).max() for axis in range(2))
    return float(own), float(np.abs(joint - np.outer(*wanted)).max())


def hinged(first: float, after_first: float, after_second: float) -> TableModel:
    """Two symbols; the chance of the first one at the start, and after each of the two."""

    def table(path: tuple[int, ...]) -> tuple[float, float]:
        chance = (after_first, after_second)[path[-1]] if path else first
        return chance, 1.0 - chance

    return TableModel(table, 2)


GOODPUT_PAIR = Pair(
    (hinged(0.6, 0.9, 0.95), hinged(0.7, 0.9, 0.95)),
    (hinged(0.5, 0.9, 0.05), hinged(0.5, 0.9, 0.05)),
)
"""After the first symbol the drafters agree with their targets, after the second they do not."""
RANKED_PAIR = Pair((random_model(764, 2), random_model(765, 2)), (random_model(766, 2), random_model(767, 2)))


@pytest.mark.parametrize(("policy", "pair"), [(with_early_stop, GOODPUT_PAIR), (by_survival, RANKED_PAIR)])
@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_sharing_rows_by_what_precedes_each_slot_is_exact(rule: str, policy: Policy, pair: Pair) -> None:
    own, together = pair_errors(rule, policy, pair)
    assert own <= ROUNDING
    assert together <= ROUNDING


@pytest.mark.parametrize(("policy", "pair"), [(with_global_best, GOODPUT_PAIR), (by_own_scores, RANKED_PAIR)])
@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_sharing_rows_by_what_a_slot_holds_is_caught(rule: str, policy: Policy, pair: Pair) -> None:
    own, _ = pair_errors(rule, policy, pair)
    assert own >= CAUGHT


@pytest.mark.parametrize(("policy", "pair"), [(with_global_best, GOODPUT_PAIR), (by_own_scores, RANKED_PAIR)])
@pytest.mark.parametrize("rule", ["point-mass", "coupled"])
def test_target_only_rules_allow_any_sharing(rule: str, policy: Policy, pair: Pair) -> None:
    assert max(pair_errors(rule, policy, pair)) <= ROUNDING


def test_the_published_counterexample_to_the_global_optimum() -> None:
    """One request; the second slot's confidence tells what the first token was: (0.7, 0.3) becomes (0.85, 0.15)."""
    target, draft = coin_model(0.7), coin_model(0.5)
    speed = {1: 1.0, 2: 0.5, 3: 0.45}.__getitem__

    def first_token(choose: Callable) -> np.ndarray:
        found = OutputLaw(target, 3)
        for drafted, tree in every_run(lambda c: chain(c, draft, 2)):
            (length,) = choose([[0.8, 0.8 * 0.9 if tree.tokens[1] == 0 else 0.0]], speed)
            for accepted, verdict in verdicts(make_verifier("rejection"), first_nodes(tree, length), target):
                found.add(drafted * accepted, verdict)
        return found.law.sum((1, 2))

    assert first_token(global_best) == pytest.approx([0.85, 0.15], abs=ROUNDING)
    assert first_token(early_stop) == pytest.approx([0.7, 0.3], abs=ROUNDING)
