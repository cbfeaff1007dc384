"""Keyed dice over many rounds: named by the round they keep the target's law, named by the position they do not.

Enumeration proves a rule for dice that are fresh; this proves that the dice are.  Texts are decoded round by round for
many request seeds.  So that there may be enough of them, the real code is run once for each outcome it can have, its
throws are recorded, and all seeds walk the record together with their own numbers; that this is what the real code
does with real keyed dice is a test of its own.

False alarm: 1e-8 for each chi-square test (see ``chi_square``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from outrider.drafters.base import DraftContext, DraftSequence, Frontier, Proposal
from outrider.engine.picker import DRAWS, DrawingPicker
from outrider.law import Law
from outrider.requests.stopping import Endings, Stopper
from outrider.sampling import RequestSampler, SamplingParams
from outrider.sampling.noise import Purpose, counter_word, gumbel_from_words, philox_blocks
from outrider.tree import TokenTree
from outrider.verify import Draws, KeyedDice, Verdict, make_verifier
from statistical import chi_square
from statistical.enumeration import (
    Choices,
    Draw,
    EnumeratedRows,
    Shape,
    TableModel,
    every_run,
    grow,
    independent,
    without_replacement,
)

SYMBOLS = 3
TEXT = 4
"""Tokens of a text that are counted: 81 cells."""
SEEDS = 100_000
"""Enough at 80 degrees of freedom for power 0.99 at total variation 0.02; ``chi_square.check`` makes sure."""


# --- What the real code does with every outcome of its dice, recorded. ---


@dataclass(frozen=True)
class Throw:
    """One number of a round: what it is for, and how it is read."""

    purpose: Purpose
    node: int
    draw: int
    bounds: tuple[float, ...]
    """Where a uniform number must fall for each outcome but the last; or the law that Gumbel noise perturbs."""
    width: int = 0
    """Above 0: the outcome is the order of the so many best perturbed symbols."""
    depth: int = 0
    rank: int = 0
    """Index of the node among those of its depth."""


class Recorder:
    """Dice of one purpose that write down every throw."""

    def __init__(self, choices: Choices, purpose: Purpose, throws: list[tuple[Throw, int]]) -> None:
        self._choices, self._purpose, self._throws = choices, purpose, throws
        self._thrown: dict[int, int] = {}

    def coin(self, node: int, probability: float) -> bool:
        return self._note(node, (probability,), self._choices.choose((probability, 1.0 - probability))) == 0

    def draw(self, node: int, weights: Law) -> int:
        cumulative = weights.cumsum() / weights.sum()
        return self._note(node, tuple(cumulative.tolist()), self._choices.choose((weights / weights.sum()).tolist()))

    def order(self, node: int, q: Law, width: int) -> tuple[int, ...]:
        """Symbols in the order of draws without replacement."""
        orders = list(permutations(range(len(q)), width))
        index = self._choices.choose([1.0 / len(orders)] * len(orders))
        self._throws.append((Throw(self._purpose, node, 0, tuple(q.tolist()), width), index))
        return orders[index]

    def _note(self, node: int, bounds: tuple[float, ...], outcome: int) -> int:
        draw = self._thrown.get(node, 0)
        self._thrown[node] = draw + 1
        self._throws.append((Throw(self._purpose, node, draw, bounds), outcome))
        return outcome


def recorded_draw(drawn: Draw, throws: list[tuple[Throw, int]]) -> Draw:
    """A drafter's draw with its throws written down."""

    def draw(choices: Choices, q: Law, node: int, width: int) -> list[Proposal]:
        dice = Recorder(choices, Purpose.DRAFT, throws)
        if drawn is without_replacement:
            tokens = dice.order(node, q, width)
            return [Proposal(t, float(q[t]), q, tokens[:i]) for i, t in enumerate(tokens)]
        return [Proposal(t, float(q[t]), q, ()) for t in (dice.draw(node, q) for _ in range(width))]

    return draw


class RecordedRows(EnumeratedRows):
    """Rows whose dice write down their throws."""

    def __init__(self, tree: TokenTree, target: TableModel, choices: Choices, throws: list[tuple[Throw, int]]) -> None:
        super().__init__(tree, target, choices)
        self._throws = throws

    def dice(self, purpose: Purpose) -> Recorder:
        super().dice(purpose)
        return Recorder(self._choices, purpose, self._throws)


@dataclass
class Fork:
    """What happens after a number of throws: another throw, or the end of the round."""

    throw: Throw | None = None
    after: dict[int, Fork] = field(default_factory=dict)
    end: tuple[TokenTree, Verdict] | None = None


def record(rule: str, target: TableModel, draft: TableModel, shape: Shape) -> Fork:
    """Every course a round can take."""

    def run(choices: Choices) -> tuple[list[tuple[Throw, int]], tuple[TokenTree, Verdict]]:
        throws: list[tuple[Throw, int]] = []
        tree = grow(choices, draft, [(recorded_draw(drawn, throws), width) for drawn, width in shape])
        verdict = make_verifier(rule).accept(tree, RecordedRows(tree, target, choices, throws))
        return [(_placed(throw, tree), outcome) for throw, outcome in throws], (tree, verdict)

    root = Fork()
    for _, (throws, end) in every_run(run):
        fork = root
        for throw, outcome in throws:
            assert fork.throw in (None, throw)
            fork.throw = throw
            fork = fork.after.setdefault(outcome, Fork())
        fork.end = end
    return root


def _placed(throw: Throw, tree: TokenTree) -> Throw:
    depth = tree.depths[throw.node]
    return replace(throw, depth=depth, rank=throw.node - tree.depths.index(depth))


# --- All seeds at once. ---

Naming = Callable[[Throw, int, int], tuple[int, int, int]]
"""(throw, round, tokens so far) → the last three counter words."""


def by_round(throw: Throw, round_number: int, count: int) -> tuple[int, int, int]:
    """How Outrider names the dice of ratio rules."""
    return round_number, throw.node, counter_word(throw.purpose, 0)


def by_position(throw: Throw, round_number: int, count: int) -> tuple[int, int, int]:
    """The tempting mistake: a token's noise belongs to its place in the text."""
    if throw.purpose is Purpose.FINAL:
        return by_round(throw, round_number, count)
    return count + throw.depth, throw.rank, counter_word(throw.purpose, 0)


class Numbers:
    """Keyed noise of many request seeds, by counter."""

    def __init__(self, seeds: torch.Tensor) -> None:
        self._seeds = seeds
        self._blocks: dict[tuple[int, ...], torch.Tensor] = {}

    def outcomes(self, throw: Throw, words: tuple[int, int, int], lanes: np.ndarray) -> np.ndarray:
        """How a throw comes out for some of the seeds."""
        key = throw.draw, *words
        if key not in self._blocks:
            first = torch.full_like(self._seeds, throw.draw)
            self._blocks[key] = philox_blocks(self._seeds, first, words)  # type: ignore[arg-type]
        block = self._blocks[key][torch.from_numpy(lanes)]
        if throw.width == 0:
            uniform = ((block[:, 1] << 21) | (block[:, 0] >> 11)).numpy() * 2.0**-53
            return np.searchsorted(np.array(throw.bounds), uniform, side="right")
        scores = torch.log(torch.tensor(throw.bounds, dtype=torch.float64)) + gumbel_from_words(block[:, :SYMBOLS])
        best = scores.argsort(dim=1, descending=True)[:, : throw.width]
        orders = list(permutations(range(SYMBOLS), throw.width))
        return np.array([orders.index(tuple(order)) for order in best.tolist()])


def request_seeds(count: int) -> list[int]:
    """The seeds of the requests, the same in every test."""
    return np.random.default_rng(7).integers(-(2**63), 2**63 - 1, count).tolist()


NextLength = Callable[[TokenTree, Verdict], int]
"""How many tokens the next round drafts."""


def always(length: int) -> NextLength:
    """The same number in every round."""
    return lambda tree, verdict: length


def by_rejected_tail(tree: TokenTree, verdict: Verdict) -> int:
    """Three, or one if the last draft was rejected and was the first symbol: a look past the stopping point."""
    rejected = len(verdict.path) < len(tree) - 1
    return 1 if rejected and tree.tokens[-1] == 0 else 3


@dataclass(frozen=True)
class Decoding:
    """A rule, how drafts are drawn at each depth, and how long the next draft is."""

    rule: str
    shape: Shape
    next_length: NextLength

    @cache  # noqa: B019  the few instances live as long as the module
    def round_from(self, token: int, length: int) -> Fork:
        """Every course of a round whose anchor is a token."""
        target = TableModel(lambda path: TARGET[(token, *path)[-1]], SYMBOLS)
        draft = TableModel(lambda path: DRAFT[(token, *path)[-1]], SYMBOLS)
        return record(self.rule, target, draft, self.shape[:length])

    def texts(self, seeds: int, naming: Naming) -> np.ndarray:
        """The first tokens of a text for each seed, int [seeds, TEXT]."""
        numbers = Numbers(torch.tensor(request_seeds(seeds)))
        longest = TEXT + len(self.shape)
        texts = np.zeros((seeds, longest), dtype=np.int64)
        counts, lengths = np.zeros(seeds, dtype=np.int64), np.full(seeds, len(self.shape))
        for round_number in range(TEXT):
            anchors = np.where(counts > 0, texts[np.arange(seeds), counts - 1], 0)
            state = np.stack((counts, lengths, anchors), axis=1)
            for count, length, anchor in np.unique(state[counts < TEXT], axis=0).tolist():
                lanes = np.flatnonzero((state == (count, length, anchor)).all(axis=1))
                pending = [(self.round_from(anchor, length), lanes)]
                while pending:
                    fork, lanes = pending.pop()
                    if fork.end is not None:
                        tree, verdict = fork.end
                        texts[lanes, count : count + len(verdict.tokens)] = verdict.tokens
                        counts[lanes] += len(verdict.tokens)
                        lengths[lanes] = self.next_length(tree, verdict)
                        continue
                    outcomes = numbers.outcomes(fork.throw, naming(fork.throw, round_number, count), lanes)
                    assert set(np.unique(outcomes).tolist()) <= fork.after.keys()
                    pending += [(after, lanes[outcomes == outcome]) for outcome, after in fork.after.items()]
                    pending = [item for item in pending if len(item[1])]
        return texts[:, :TEXT]


TARGET = ((0.55, 0.3, 0.15), (0.2, 0.45, 0.35), (0.3, 0.1, 0.6))
DRAFT = ((0.2, 0.35, 0.45), (0.5, 0.15, 0.35), (0.25, 0.55, 0.2))
CHAIN: Shape = ((independent, 1),) * 3
INDEPENDENT_TREE: Shape = ((independent, 2), (independent, 1))
TREE: Shape = ((without_replacement, 2), (independent, 1), (independent, 1))
DECODINGS = {
    "rejection": Decoding("rejection", CHAIN, always(3)),
    "rejection, length from the rejected tail": Decoding("rejection", CHAIN, by_rejected_tail),
    "block": Decoding("block", CHAIN, always(3)),
    "multi-step": Decoding("multi-step", INDEPENDENT_TREE, always(2)),
    "recursive": Decoding("recursive", TREE, always(3)),
    "traversal": Decoding("traversal", TREE, always(3)),
}
LAW = TableModel(lambda path: TARGET[(0, *path)[-1]], SYMBOLS).joint((), TEXT)


def counted(texts: np.ndarray) -> np.ndarray:
    """How often each text was decoded."""
    cells = np.ravel_multi_index(tuple(texts.T), LAW.shape)
    return np.bincount(cells, minlength=LAW.size)


@pytest.mark.parametrize("name", DECODINGS)
def test_dice_named_by_the_round_keep_the_targets_law(name: str) -> None:
    chi_square.check(counted(DECODINGS[name].texts(SEEDS, by_round)), LAW)


@pytest.mark.parametrize("name", ["rejection, length from the rejected tail", "block", "traversal"])
def test_dice_named_by_the_position_are_caught_where_a_round_looks_past_its_end(name: str) -> None:
    assert chi_square.differs(counted(DECODINGS[name].texts(SEEDS, by_position)), LAW)


def test_the_position_alone_does_no_harm_to_a_rule_that_never_looks_past_its_end() -> None:
    """So what the test above catches is the second look, not some other fault of that naming."""
    chi_square.check(counted(DECODINGS["rejection"].texts(SEEDS, by_position)), LAW)


# --- The record against the real code with real keyed dice. ---

REAL = {independent: Draws.INDEPENDENT, without_replacement: Draws.WITHOUT_REPLACEMENT}


class KeyedRows(EnumeratedRows):
    """Rows with the dice a request really has."""

    def __init__(self, tree: TokenTree, target: TableModel, seed: int, round_number: int) -> None:
        super().__init__(tree, target, Choices(()))
        self._seed, self._round = seed, round_number

    def dice(self, purpose: Purpose) -> KeyedDice:
        super().dice(purpose)
        return KeyedDice(self._seed, self._round, 0, purpose)


def text_of(decoding: Decoding, seed: int) -> list[int]:
    """One request, round by round, with nothing recorded."""
    text: list[int] = []
    length, round_number = len(decoding.shape), 0
    while len(text) < TEXT:
        anchor = text[-1] if text else 0
        target = TableModel(lambda path, anchor=anchor: TARGET[(anchor, *path)[-1]], SYMBOLS)
        draft = TableModel(lambda path, anchor=anchor: DRAFT[(anchor, *path)[-1]], SYMBOLS)
        sampler = SimpleNamespace(seed=seed, choice=0)

        def real(drawn: Draw, now: int = round_number) -> Draw:
            return lambda choices, q, node, width: DRAWS[REAL[drawn]](sampler, now, q, node, width, 0)  # type: ignore[arg-type]  # noqa: B023

        tree = grow(Choices(()), draft, [(real(drawn), wanted) for drawn, wanted in decoding.shape[:length]])
        verdict = make_verifier(decoding.rule).accept(tree, KeyedRows(tree, target, seed, round_number))
        text += verdict.tokens
        length, round_number = decoding.next_length(tree, verdict), round_number + 1
    return text[:TEXT]


@pytest.mark.parametrize("name", DECODINGS)
def test_the_record_is_what_the_real_code_does(name: str) -> None:
    count = 150
    decoding = DECODINGS[name]
    assert [text_of(decoding, seed) for seed in request_seeds(count)] == decoding.texts(count, by_round).tolist()


# --- How ``pick`` draws. ---

ROW = torch.log(torch.tensor([0.45, 0.3, 0.2, 0.05]))


def context(draws: Draws, round_number: int) -> DraftContext:
    """One request that samples at temperature 1."""
    sampler = RequestSampler(
        SamplingParams(temperature=1.0),
        seed=2024,
        choice=0,
        vocabulary=len(ROW),
        committed=[0],
        prompt_length=1,
        end_ids=(),
    )
    request = SimpleNamespace(sampler=sampler, round_number=round_number)
    turn = SimpleNamespace(request=request, endings=Endings(Stopper(SamplingParams(), frozenset(), 8, None)))
    picker = DrawingPicker({"request": turn}, draws)  # type: ignore[dict-item]
    return DraftContext((DraftSequence("request", [0], 1, 8, 4),), picker, not draws.target_alone)


def picked_rows(of: DraftContext, nodes: int, width: int, source: int = 0) -> list[list[Proposal]]:
    """What is picked for as many nodes with the same row and path."""
    frontier = Frontier("request", [0] * nodes, [()] * nodes, range(nodes), width)
    (picked,) = of.pick(ROW.unsqueeze(0), [frontier], source)
    assert isinstance(picked, list)
    return picked


@pytest.mark.parametrize("twin", [independent, without_replacement])
def test_pick_draws_by_the_law_its_candidates_claim(twin: Draw) -> None:
    """Pairs over rounds and nodes against the enumerated twin; each candidate's law is checked as well."""
    rounds, nodes, width = 15, 1000, 2
    counts = np.zeros((len(ROW),) * width)
    for round_number in range(rounds):
        drawn = picked_rows(context(REAL[twin], round_number), nodes, width)
        np.add.at(counts, tuple(np.array([[p.token for p in proposals] for proposals in drawn]).T), 1)
    q = drawn[0][0].q
    assert q is not None
    assert np.allclose(q, torch.softmax(ROW.double(), 0), atol=1e-7)
    law = np.zeros_like(counts)
    for chance, proposals in every_run(lambda choices: twin(choices, q, 0, width)):
        first, second = proposals
        law[first.token, second.token] += chance
        real = next((p for p in drawn if [item.token for item in p] == [first.token, second.token]), None)
        if real is not None:
            assert [item.removed for item in real] == [item.removed for item in proposals]
            assert [item.probability for item in real] == [item.probability for item in proposals]
    chi_square.check(counts, law, variation=0.04)


def test_pick_draws_anew_for_each_source_and_round() -> None:
    """Two drafters of a merged tree, or two rounds, that shared dice would make one another's tokens certain."""
    nodes = 2000

    def tokens(round_number: int, source: int, draws: Draws) -> list[int]:
        return [drawn[0].token for drawn in picked_rows(context(draws, round_number), nodes, 1, source)]

    q = np.exp(ROW.double().numpy())
    agreement = float((q**2).sum())
    for draws in (Draws.INDEPENDENT, Draws.WITHOUT_REPLACEMENT):
        one = tokens(0, 0, draws)
        assert one == tokens(0, 0, draws)
        for other in (tokens(0, 1, draws), tokens(1, 0, draws)):
            same = sum(a == b for a, b in zip(one, other, strict=True))
            chi_square.check(np.array([same, nodes - same]), np.array([agreement, 1 - agreement]), variation=0.2)
