"""Every lossless rule keeps the target's distribution exactly, and the known wrong ones are caught: by enumeration.

Nothing here is sampled, so there is no false alarm: a law is right to rounding, or it is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from outrider.law import Law
from outrider.tree import TokenTree, TreeBuilder
from outrider.verify import Verdict, Verifier, make_verifier, registered
from statistical.enumeration import (
    CAUGHT,
    ROUNDING,
    Choices,
    Shape,
    TableModel,
    certain,
    coin_model,
    error_of,
    every_run,
    greedy,
    grow,
    independent,
    merged,
    output_law,
    random_model,
    verdicts,
    with_laws,
    without_replacement,
)

Drafter = Callable[[Choices, TableModel, TableModel], TokenTree]


@dataclass(frozen=True)
class Kind:
    """A kind of draft, and what a rule must claim to be given it."""

    draft: Drafter
    depth: int
    branching: bool = True
    merged: bool = False
    deterministic: bool = False

    def suits(self, rule: type[Verifier]) -> bool:
        """Whether a rule says it is exact for this kind."""
        needs = ((self.branching, rule.trees), (self.merged, rule.merged), (self.deterministic, rule.deterministic))
        return all(claimed for needed, claimed in needs if needed)


def one(shape: Shape) -> Drafter:
    """A single drafter's tree of this shape."""
    return lambda choices, first, second: grow(choices, first, shape)


def two(first_shape: Shape, second_shape: Shape) -> Drafter:
    """Two drafters' trees, merged."""
    return lambda choices, first, second: merged(choices, [(first, first_shape), (second, second_shape)])


def likelier_sibling_grown(choices: Choices, first: TableModel, second: TableModel) -> TokenTree:
    """Two draws below the anchor, and one more below the one of them the drafter believes in more."""
    tree = grow(choices, first, [(without_replacement, 2)])
    best = max(tree.children[0], key=lambda node: float(first.row(())[tree.tokens[node]]))
    below = independent(choices, first.row(tree.paths[best]), best, 1)[0]
    return _with_child(tree, best, below.token, below.q)


def three_draws_or_two_nodes(choices: Choices, first: TableModel, second: TableModel) -> TokenTree:
    """Draws below the anchor until there are two nodes or three draws; then each node is drawn below once.

    Whether there is a next draw depends on the ones before it, as it does where a tree must keep to its budget.
    """
    builder = TreeBuilder(0)
    for _ in range(3):
        if len(builder) < 3:
            token, _, q, _ = independent(choices, first.row(()), 0, 1)[0]
            builder.add(0, token, q=q)
    for node in range(1, len(builder)):
        token, _, q, _ = independent(choices, first.row(builder.paths[node]), node, 1)[0]
        builder.add(node, token, q=q)
    return builder.build()


def _with_child(tree: TokenTree, node: int, token: int, q: Law | None) -> TokenTree:
    added = tree.candidates[0]._replace(node=len(tree), q=q, removed=())
    return TokenTree((*tree.tokens, token), (*tree.parents, node), (*tree.survival, 0.0), (*tree.candidates, added))


IID, WITHOUT, TOP = independent, without_replacement, certain
KINDS = {
    "nothing": Kind(one([]), 0, branching=False),
    "sampled chain": Kind(one([(IID, 1)] * 3), 3, branching=False),
    "certain chain": Kind(one([(TOP, 1)] * 3), 3, branching=False, deterministic=True),
    "sampled, then certain": Kind(one([(IID, 1), (TOP, 1), (TOP, 1)]), 3, branching=False, deterministic=True),
    "certain, then sampled": Kind(one([(TOP, 1), (IID, 1), (IID, 1)]), 3, branching=False, deterministic=True),
    "independent tree": Kind(one([(IID, 2), (IID, 2)]), 2),
    "three independent, then one": Kind(one([(IID, 3), (IID, 1)]), 2),
    "independent, at most two nodes": Kind(three_draws_or_two_nodes, 2),
    "without replacement": Kind(one([(WITHOUT, 2), (WITHOUT, 2)]), 2),
    "without replacement, one grown": Kind(likelier_sibling_grown, 2),
    "deep without replacement": Kind(one([(WITHOUT, 2), (IID, 1), (IID, 1)]), 3),
    "top-k": Kind(one([(TOP, 2), (TOP, 2)]), 2, deterministic=True),
    "deep top-k": Kind(one([(TOP, 2), (TOP, 1), (TOP, 2)]), 3, deterministic=True),
    "sampled, then top-k": Kind(one([(IID, 2), (TOP, 2)]), 2, deterministic=True),
    "two chains": Kind(two([(IID, 1)] * 2, [(IID, 1)] * 2), 2, merged=True),
    "two trees": Kind(two([(IID, 2), (IID, 1)], [(IID, 1), (IID, 1)]), 2, merged=True),
    "two without replacement": Kind(two([(WITHOUT, 2), (IID, 1)], [(WITHOUT, 2)]), 2, merged=True),
    "sampled chain and top-k": Kind(two([(IID, 1)] * 2, [(TOP, 2)] * 2), 2, merged=True, deterministic=True),
    "top-k and sampled tree": Kind(two([(TOP, 2)] * 2, [(IID, 2), (IID, 1)]), 2, merged=True, deterministic=True),
}
RULES = {name: rule for name, rule in registered().items() if rule.lossless}
CASES = [(rule, kind) for rule in RULES for kind in KINDS if KINDS[kind].suits(RULES[rule])]
MODELS = {
    "dense": (random_model(1371, 3), random_model(1372, 3), random_model(1373, 3)),
    "sparse": tuple(random_model(seed, 3, impossible=0.35) for seed in (941, 942, 943)),
    "equal": (random_model(1371, 3), random_model(1371, 3), random_model(1373, 3)),
}
"""Target and two drafters.  The targets like two symbols more than the drafters do, or a residual would be one symbol
and every later test below a node would come out right whatever law it used."""


@pytest.mark.parametrize("models", MODELS)
@pytest.mark.parametrize(("rule", "kind"), CASES)
def test_output_has_exactly_the_targets_law(rule: str, kind: str, models: str) -> None:
    target, first, second = MODELS[models]
    drafter = KINDS[kind]
    found = output_law(make_verifier(rule), lambda c: drafter.draft(c, first, second), target, drafter.depth + 1)
    assert abs(found.law.sum() - 1.0) <= ROUNDING
    assert found.error <= ROUNDING


@pytest.mark.parametrize("rule", RULES)
def test_four_symbols(rule: str) -> None:
    target, first = random_model(41, 4), random_model(42, 4)
    shape: Shape = [(WITHOUT, 3), (IID, 1)] if RULES[rule].trees else [(IID, 1)] * 3
    found = output_law(make_verifier(rule), lambda c: grow(c, first, shape), target, len(shape) + 1)
    assert found.error <= ROUNDING


@pytest.mark.parametrize("draft_greedy", [False, True])
@pytest.mark.parametrize(("rule", "kind"), CASES)
def test_temperature_zero_is_the_longest_match_with_the_argmax(rule: str, kind: str, draft_greedy: bool) -> None:
    target, first, second = (greedy(model) if draft_greedy else model for model in MODELS["dense"])
    target = greedy(target)
    for _, tree in every_run(lambda c: KINDS[kind].draft(c, first, second)):
        node, path = 0, []
        while (child := tree.child(node, int(target.row(tree.paths[node]).argmax()))) is not None:
            path.append(child)
            node = child
        expected = Verdict.of(tree, path, int(target.row(tree.paths[node]).argmax()))
        assert verdicts(make_verifier(rule), tree, target) == [(1.0, expected)]


@pytest.mark.parametrize(("rule", "kind"), CASES)
def test_rows_past_an_impossible_token_are_never_looked_at(rule: str, kind: str) -> None:
    target, first, second = MODELS["sparse"][0], MODELS["dense"][1], MODELS["dense"][2]

    def poisoned_table(path: tuple[int, ...]) -> list[float]:
        possible = all(float(target.row(path[:depth])[token]) > 0.0 for depth, token in enumerate(path))
        return target.row(path).tolist() if possible else [float("nan")] * target.vocabulary

    poisoned = TableModel(poisoned_table, target.vocabulary)
    for _, tree in every_run(lambda c: KINDS[kind].draft(c, first, second)):
        assert verdicts(make_verifier(rule), tree, poisoned) == verdicts(make_verifier(rule), tree, target)


def test_expected_lengths_of_the_papers_toy_model() -> None:
    """Sun et al. 2024, section 2: 10/9 drafts accepted one by one, 11/9 as a block."""
    target, draft = coin_model(1 / 3), coin_model(2 / 3)

    def accepted(rule: str) -> float:
        return output_law(make_verifier(rule), lambda c: grow(c, draft, [(IID, 1)] * 2), target, 3).emitted - 1.0

    assert accepted("rejection") == pytest.approx(10 / 9, abs=ROUNDING)
    assert accepted("block") == pytest.approx(11 / 9, abs=ROUNDING)
    assert accepted("traversal") == pytest.approx(11 / 9, abs=ROUNDING)


@pytest.mark.parametrize("seed", range(8))
def test_chains_block_is_never_shorter_and_traversal_is_block(seed: int) -> None:
    target, draft = (random_model(100 + 2 * seed + i, 3, impossible=0.2 * (seed % 2)) for i in range(2))

    def law(rule: str) -> dict[tuple[TokenTree, Verdict], float]:
        return {
            (tree.tokens, verdict): chance
            for _, tree in every_run(lambda c: grow(c, draft, [(IID, 1)] * 3))
            for chance, verdict in verdicts(make_verifier(rule), tree, target)
        }

    def emitted(rule: str) -> float:
        return output_law(make_verifier(rule), lambda c: grow(c, draft, [(IID, 1)] * 3), target, 4).emitted

    block, traversal = law("block"), law("traversal")
    assert block.keys() == traversal.keys()
    assert max(abs(block[key] - traversal[key]) for key in block) <= ROUNDING
    assert emitted("traversal") == pytest.approx(emitted("block"), abs=ROUNDING)
    assert emitted("block") >= emitted("rejection") - ROUNDING


@pytest.mark.parametrize("seed", range(4))
def test_one_draft_is_accepted_with_the_overlap_of_the_laws(seed: int) -> None:
    target, draft = random_model(200 + seed, 4), random_model(300 + seed, 4)
    overlap = float(np.minimum(target.row(()), draft.row(())).sum())
    for rule in ("rejection", "block", "multi-step", "recursive", "traversal"):
        found = output_law(make_verifier(rule), lambda c: grow(c, draft, [(IID, 1)]), target, 2)
        assert found.emitted - 1.0 == pytest.approx(overlap, abs=ROUNDING)


def test_trees_order_of_the_rules_on_a_fixed_model() -> None:
    """Independent draws < draws without replacement < the same from the leaves: the reason each rule exists."""
    target, draft, _ = MODELS["dense"]

    def emitted(rule: str, draw: Callable) -> float:
        return output_law(make_verifier(rule), lambda c: grow(c, draft, [(draw, 2)] * 2), target, 3).emitted

    ladder = (emitted("multi-step", IID), emitted("recursive", WITHOUT), emitted("traversal", WITHOUT))
    assert ladder == tuple(sorted(ladder))
    assert min(np.diff(ladder)) > 1e-3
    assert emitted("traversal", IID) > emitted("multi-step", IID)


# --- Wrong rules: the real code, told something untrue about its drafts, must be caught. ---


def claiming_base_laws(tree: TokenTree, draft: TableModel) -> TokenTree:
    """Every candidate says it was drawn from the drafter's whole law, whatever was drawn before it and how."""
    return with_laws(tree, lambda node: draft.row(tree.paths[tree.parents[node]]))


SKEWED = TableModel(lambda path: (0.2, 0.5, 0.3), 3)
LOPSIDED = TableModel(lambda path: (0.6, 0.3, 0.1), 3)
WRONG_DRAFTS = {
    "without replacement, law not updated": ("multi-step", [(WITHOUT, 2)]),
    "without replacement, law not updated, from the leaves": ("traversal", [(WITHOUT, 2)]),
    "top-k tested with p/q": ("multi-step", [(TOP, 2)]),
    "top-k tested with p/q, from the leaves": ("traversal", [(TOP, 2)]),
    "greedy chain tested with p/q": ("rejection", [(TOP, 1)] * 2),
    "greedy chain tested with p/q, as a block": ("block", [(TOP, 1)] * 2),
}


@pytest.mark.parametrize("name", WRONG_DRAFTS)
def test_a_draft_with_a_false_law_is_caught(name: str) -> None:
    rule, shape = WRONG_DRAFTS[name]
    length = len(shape) + 1

    def honest(choices: Choices) -> TokenTree:
        return grow(choices, LOPSIDED, shape)

    assert error_of(rule, honest, SKEWED, length) <= ROUNDING
    assert error_of(rule, lambda c: claiming_base_laws(honest(c), LOPSIDED), SKEWED, length) >= CAUGHT


@pytest.mark.parametrize("rule", ["multi-step", "recursive", "traversal"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "without replacement" in kind])
def test_forgetting_the_siblings_drawn_before_is_caught_in_every_shape(kind: str, rule: str) -> None:
    target, first, second = MODELS["dense"]

    def forgetful(choices: Choices) -> TokenTree:
        tree = KINDS[kind].draft(choices, first, second)
        return replace(tree, candidates=tuple(candidate._replace(removed=()) for candidate in tree.candidates))

    assert error_of(rule, forgetful, target, KINDS[kind].depth + 1) >= CAUGHT


def reordered(tree: TokenTree, key: Callable[[int], float]) -> TokenTree:
    """The same draws, tested in another order."""
    return replace(tree, candidates=tuple(sorted(tree.candidates, key=lambda candidate: key(candidate.node))))


def test_independent_draws_may_be_tested_in_any_order_that_ignores_their_tokens() -> None:
    def backwards(choices: Choices) -> TokenTree:
        tree = grow(choices, LOPSIDED, [(IID, 3)])
        return replace(tree, candidates=tree.candidates[::-1])

    def best_first(choices: Choices) -> TokenTree:
        tree = grow(choices, LOPSIDED, [(IID, 3)])
        return reordered(tree, lambda node: -float(LOPSIDED.row(())[tree.tokens[node]]))

    assert error_of("multi-step", backwards, SKEWED, 2) <= ROUNDING
    assert error_of("multi-step", best_first, SKEWED, 2) >= CAUGHT
