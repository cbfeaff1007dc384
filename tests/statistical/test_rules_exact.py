"""Every lossless rule keeps the target's distribution exactly, and the known wrong ones are caught: by enumeration.

Nothing here is sampled, so there is no false alarm: a law is right to rounding, or it is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
import torch

from outrider.tree import TokenTree, TreeBuilder
from outrider.verify import Verdict, Verifier, make_verifier, registered
from statistical.enumeration import (
    Choices,
    OutputLaw,
    Shape,
    TableModel,
    certain,
    every_run,
    first_nodes,
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

ROUNDING = 1e-12
CAUGHT = 0.04

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


def _with_child(tree: TokenTree, node: int, token: int, q: torch.Tensor | None) -> TokenTree:
    added = replace(tree.candidates[0], node=len(tree), q=q, removed=())
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


def coin_model(probability: float) -> TableModel:
    """Two symbols, the first with this probability, whatever came before."""
    return TableModel(lambda path: (probability, 1.0 - probability), 2)


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
    overlap = float(torch.minimum(target.row(()), draft.row(())).sum())
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


def error_of(rule: str, draft: Callable[[Choices], TokenTree], target: TableModel, length: int) -> float:
    """Greatest error of the output's law."""
    return output_law(make_verifier(rule), draft, target, length).error


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
        return replace(tree, candidates=tuple(replace(candidate, removed=()) for candidate in tree.candidates))

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
        tree = grow(choices, draft, [(IID, 1)] * 3)
        return first_nodes(tree, cut(tree, draft))

    return error_of(rule, cut_chain, target, 4)


@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_a_cut_may_look_at_the_prefix_before_the_slot(rule: str) -> None:
    _, draft = CUT_MODELS
    lengths = {by_prefix(tree, draft) for _, tree in every_run(lambda c: grow(c, draft, [(IID, 1)] * 3))}
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
        return float(torch.minimum(self.targets[request].row(before), self.drafts[request].row(before)).sum())

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
    chains = [list(every_run(lambda c, d=d: grow(c, d, [(IID, 1)] * pair.slots))) for d in pair.drafts]
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
        for drafted, tree in every_run(lambda c: grow(c, draft, [(IID, 1)] * 2)):
            (length,) = choose([[0.8, 0.8 * 0.9 if tree.tokens[1] == 0 else 0.0]], speed)
            for accepted, verdict in verdicts(make_verifier("rejection"), first_nodes(tree, length), target):
                found.add(drafted * accepted, verdict)
        return found.law.sum((1, 2))

    assert first_token(global_best) == pytest.approx([0.85, 0.15], abs=ROUNDING)
    assert first_token(early_stop) == pytest.approx([0.7, 0.3], abs=ROUNDING)
