"""Acceptance rules piece by piece: the registry, verdicts, dice, and the corners of the ratio test."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from table_model import TableModel

from outrider import LLM, Speculation, verify
from outrider.drafters.base import Needs
from outrider.errors import ConfigError
from outrider.law import Law, is_unreadable
from outrider.sampling import RequestSampler, SamplingParams
from outrider.sampling.noise import Purpose, counter_word, uniform
from outrider.tree import Candidate, TokenTree, TreeBuilder, root_only
from outrider.verify import KeyedDice, Verdict, base, check_exact, make_verifier, registered
from outrider.verify.residual import chain_of, law, ratio, residual
from outrider.verify.rows import Asked, TargetRows, rows_of

LOSSLESS = [name for name, rule in registered().items() if rule.lossless]
CHAIN_ONLY = [name for name in LOSSLESS if not registered()[name].trees]


def fork() -> TokenTree:
    """The anchor, children 1 and 2, and 1 → 3 → 4."""
    builder = TreeBuilder(0)
    for parent, token in ((0, 1), (0, 2), (1, 3), (3, 4)):
        builder.add(parent, token)
    return builder.build()


class ScriptedRows:
    """Rows of given laws, with dice that say what a test tells them to say."""

    def __init__(self, probabilities: list[list[float]], coins: list[bool]) -> None:
        self.probabilities = np.array(probabilities)
        self._coins = iter(coins)
        self.weights: list[float] = []
        """Of the last draw."""

    def dice(self, purpose: Purpose) -> ScriptedRows:
        """One object for all purposes."""
        return self

    def coin(self, node: int, probability: float) -> bool:
        """The next scripted answer."""
        return next(self._coins)

    def draw(self, node: int, weights: Law) -> int:
        """The first possible token."""
        self.weights = weights.tolist()
        return int(np.flatnonzero(weights)[0])


# --- Registry ---

NEW_RULE = """
from outrider.verify.base import Draws, Verdict, register

@register
class AlwaysPlain:
    name, lossless, draws = "{name}", True, Draws.PERTURBED
    trees = merged = deterministic = True

    def accept(self, tree, rows):
        return Verdict.of(tree, (), rows.tokens[0])
"""


@pytest.fixture
def folder_of_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which rules are looked for, too; what is found there is forgotten afterwards."""
    monkeypatch.setattr(verify, "__path__", [*verify.__path__, str(tmp_path)])
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    for name in ("always_plain", "other_name"):
        monkeypatch.delitem(sys.modules, f"outrider.verify.{name}", raising=False)
    return tmp_path


def test_a_rule_is_one_file(folder_of_rules: Path) -> None:
    (folder_of_rules / "always_plain.py").write_text(NEW_RULE.format(name="always-plain"))
    verify.discover()
    rule = make_verifier("always_plain")
    assert registered()["always-plain"] is type(rule)
    llm = LLM.from_model(TableModel.random(4, seed=1), speculation=Speculation("ngram", verifier=rule.name))
    plain = LLM.from_model(TableModel.random(4, seed=1), speculation=None)
    params = SamplingParams(max_tokens=16)
    assert llm.generate([[1, 2, 1, 2]], params)[0].token_ids == plain.generate([[1, 2, 1, 2]], params)[0].token_ids


def test_a_rule_has_the_name_of_its_file(folder_of_rules: Path) -> None:
    (folder_of_rules / "other_name.py").write_text(NEW_RULE.format(name="always-plain"))
    with pytest.raises(TypeError, match=r"'always-plain' is in the file other_name\.py"):
        verify.discover()


def test_every_rule_is_made_by_its_name_in_either_spelling() -> None:
    for name, rule in registered().items():
        assert isinstance(make_verifier(name), rule)
        assert isinstance(make_verifier(name.replace("-", "_").upper()), rule)
        assert rule.name == name


def test_an_unknown_rule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no verifier 'lucky'.*block.*coupled"):
        make_verifier("lucky")


@pytest.mark.parametrize("name", CHAIN_ONLY)
def test_a_chain_rule_refuses_branches_and_names_the_way_out(name: str) -> None:
    rule = make_verifier(name)
    check_exact(rule, "ngram", Needs(deterministic=True))
    with pytest.raises(
        ConfigError, match=f"{name!r} is not exact for trees that branch, which 'eagle'.*coupled"
    ) as error:
        check_exact(rule, "eagle", Needs(branching=True))
    offered = str(error.value).split("use one of: ")[1].split(", ")
    assert not set(offered) & set(CHAIN_ONLY)


@pytest.mark.parametrize("name", CHAIN_ONLY)
def test_a_chain_rule_does_not_take_a_tree_in_silence(name: str) -> None:
    rows = ScriptedRows([[0.2] * 5] * 5, [True] * 5)
    with pytest.raises(ValueError, match="chains only"):
        make_verifier(name).accept(fork(), rows)
    twice = TreeBuilder(0)
    for _ in range(2):
        twice.add(0, 1)
    with pytest.raises(ValueError, match="chains only"):
        chain_of(twice.build())


# --- Verdicts ---


def test_a_verdict_counts_drafted_tested_and_accepted_by_depth() -> None:
    verdict = Verdict.of(fork(), [1, 3], 7)
    assert verdict == Verdict((1, 3), (1, 3, 7), drafted=(2, 1, 1), tested=(1, 1, 1), accepted=(1, 1))
    assert Verdict.of(fork(), [2], 7) == Verdict((2,), (2, 7), drafted=(2, 1, 1), tested=(1,), accepted=(1,))
    assert Verdict.of(root_only(3), [], 7) == Verdict((), (7,), (), (), ())


@pytest.mark.parametrize(
    ("emitted", "path", "tokens", "tested", "accepted"),
    [
        (9, (1, 3, 4), (1, 3, 4, 7), (1, 1, 1), (1, 1, 1)),
        (4, (1, 3, 4), (1, 3, 4, 7), (1, 1, 1), (1, 1, 1)),
        (3, (1, 3, 4), (1, 3, 4), (1, 1, 1), (1, 1, 1)),
        (2, (1, 3), (1, 3), (1, 1), (1, 1)),
        (0, (), (), (), ()),
    ],
)
def test_a_verdict_is_cut_where_the_output_ends(
    emitted: int, path: tuple[int, ...], tokens: tuple[int, ...], tested: tuple[int, ...], accepted: tuple[int, ...]
) -> None:
    cut = Verdict.of(fork(), [1, 3, 4], 7).cut(fork(), emitted)
    assert cut == Verdict(path, tokens, (2, 1, 1), tested, accepted)


# --- Keyed dice ---


def test_dice_read_the_numbers_of_their_name() -> None:
    """Seed, draw, round, node, purpose, choice and drafter: the n-th throw at a node reads the n-th number."""
    for draw in range(3):
        number = uniform(11, (draw, 4, 6, counter_word(Purpose.ACCEPT, 2, 3)))
        for probability, lands in ((number, False), (math.nextafter(number, 1.0), True)):
            dice = KeyedDice(11, 4, 2, Purpose.ACCEPT, 3)
            for _ in range(draw):
                dice.coin(6, 0.5)
                dice.coin(5, 0.5)
            assert dice.coin(6, probability) is lands


def test_a_certain_coin_always_lands_and_an_impossible_one_never() -> None:
    dice = KeyedDice(1, 0, 0, Purpose.ACCEPT)
    assert all(dice.coin(node, 1.0) for node in range(500))
    assert not any(dice.coin(node, 0.0) for node in range(500))


def test_draws_never_give_an_impossible_index() -> None:
    dice = KeyedDice(1, 0, 0, Purpose.FINAL)
    weights = np.array([0.0, 0.0, 1e-300, 0.0, 2e-300, 0.0])
    assert {dice.draw(node, weights) for node in range(500)} == {2, 4}


class LastPlace(KeyedDice):
    """Dice that always throw the greatest number there is."""

    def _uniform(self, node: int) -> float:
        return 1.0 - 2.0**-53


def test_a_place_rounded_to_the_very_end_is_the_last_possible_index() -> None:
    weights = np.array([0.1, 1e-17, 0.0])
    assert LastPlace(1, 0, 0, Purpose.FINAL).draw(0, weights) == 1


# --- Laws, ratios, residuals ---


def test_the_law_of_a_candidate_is_what_it_was_drawn_from() -> None:
    q = np.array([0.5, 0.3, 0.2])
    builder = TreeBuilder(0)
    builder.add(0, 1, q=q)
    builder.add(0, 0, q=q, removed=(1,))
    builder.add(0, 2)
    tree = builder.build()
    first, second, third = tree.candidates
    assert law(tree, first, 3) is q
    assert law(tree, second, 3).tolist() == pytest.approx([5 / 7, 0.0, 2 / 7])
    assert law(tree, third, 3).tolist() == [0.0, 0.0, 1.0]
    assert q.tolist() == [0.5, 0.3, 0.2], "a drafter's row is shared by its siblings"


@pytest.mark.parametrize(
    ("p", "q", "expected"),
    [
        (0.2, 0.4, 0.5),
        (0.4, 0.2, 1.0),
        (0.3, 0.3, 1.0),
        (0.0, 0.3, 0.0),
        (0.0, 0.0, 0.0),
        (0.1, 0.0, 1.0),
        (0.1, 5e-324, 1.0),
        (5e-324, 1.0, 5e-324),
    ],
)
def test_ratio(p: float, q: float, expected: float) -> None:
    assert ratio(p, q) == expected


def test_residual_is_what_the_target_has_more_of() -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.3, 0.6])
    assert residual(p, q).tolist() == [1.0, 0.0, 0.0]


def test_a_residual_that_rounding_emptied_is_the_target() -> None:
    p = np.array([0.25, 0.75])
    assert residual(p, p + 1e-17) is p


@pytest.mark.parametrize("name", ["rejection", "block", "multi-step", "recursive", "traversal"])
def test_a_draft_of_the_targets_own_law_rejected_by_rounding_still_ends(name: str) -> None:
    """A coin of probability 1 cannot fail, but nor may a rule divide by the empty residual if one did."""
    p = [0.25, 0.75]
    builder = TreeBuilder(0)
    builder.add(0, 1, q=np.array(p))
    rows = ScriptedRows([p, p], [False, True, True])
    verdict = make_verifier(name).accept(builder.build(), rows)
    assert verdict.path == ()
    assert rows.weights == p


@pytest.mark.parametrize("name", ["rejection", "multi-step", "recursive"])
def test_rows_past_a_rejected_node_have_no_say(name: str) -> None:
    """Rules that walk down from the anchor: what lies below a rejected draft may be anything."""
    nan = [math.nan] * 3
    q = np.array([0.2, 0.3, 0.5])
    builder = TreeBuilder(0)
    builder.add(builder.add(0, 2, q=q), 1, q=q)
    rows = ScriptedRows([[0.6, 0.2, 0.2], nan, nan], [False])
    assert make_verifier(name).accept(builder.build(), rows) == Verdict.of(builder.build(), [], 0)
    assert rows.weights == [1.0, 0.0, 0.0]


def test_a_later_success_overrides_an_earlier_failure_in_a_block() -> None:
    q = np.array([0.2, 0.3, 0.5])
    tree = TreeBuilder(0)
    tree.add(tree.add(0, 2, q=q), 1, q=q)
    rows = [[0.6, 0.2, 0.2], [0.1, 0.8, 0.1], [1.0, 0.0, 0.0]]
    taken = make_verifier("block").accept(tree.build(), ScriptedRows(rows, [True]))
    assert taken.path == (1, 2), "the longest prefix is asked first, and one success is enough"
    shorter = make_verifier("block").accept(tree.build(), ScriptedRows(rows, [False, True]))
    assert shorter.path == (1,)


def test_the_second_draw_of_a_token_is_tested_in_its_own_right() -> None:
    q = np.array([0.5, 0.5])
    builder = TreeBuilder(0)
    for _ in range(2):
        builder.add(0, 0, q=q)
    rows = [[0.6, 0.4], [0.5, 0.5]]
    assert make_verifier("multi-step").accept(builder.build(), ScriptedRows(rows, [False, True])).path == (1,)
    # From the leaves: the first draw's own test, then the second's, then the anchor's.
    assert make_verifier("traversal").accept(builder.build(), ScriptedRows(rows, [False, True])).path == (1,)


@pytest.mark.parametrize("name", LOSSLESS)
def test_the_anchor_alone_gives_the_targets_token(name: str) -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    rows = target_rows(logits, root_only(0), temperature=0.0)
    assert make_verifier(name).accept(root_only(0), rows) == Verdict((), (1,), (), (), ())


def target_rows(logits: torch.Tensor, tree: TokenTree, temperature: float) -> TargetRows:
    """The rows a request really gets."""
    return TargetRows(logits, tree, request_sampler(logits.shape[1], temperature=temperature), round_number=3)


def request_sampler(vocabulary: int, **wish: Any) -> RequestSampler:
    """Of a request with one token so far."""
    return RequestSampler(
        SamplingParams(**wish),
        seed=5,
        choice=0,
        vocabulary=vocabulary,
        committed=[0],
        prompt_length=1,
        end_ids=(),
    )


@pytest.mark.parametrize("vocabulary", [3, 500, 70_000])
@pytest.mark.parametrize(
    "wish", [{}, {"temperature": 0.7}, {"top_k": 2}, {"logit_bias": {1: 0.5}}, {"temperature": 0.0}]
)
def test_a_pass_gives_each_request_the_laws_its_sampler_gives(wish: dict[str, Any], vocabulary: int) -> None:
    """However many rows are taken at once, and one that holds no numbers is the business of who reads it alone."""
    tree, generator = TreeBuilder(0).chain([1, 2]).build(), torch.Generator().manual_seed(2)
    logits = torch.randn(7, vocabulary + 5, generator=generator)
    logits[4] = math.nan
    one, other = (request_sampler(vocabulary, **{"temperature": heat} | wish) for heat in (1.0, 1.3))
    asked = [Asked(first, tree, sampler, 3, lambda path: False) for first, sampler in ((0, one), (3, other))]
    rows = rows_of(logits, vocabulary, asked)
    for first, sampler, found in ((0, one, rows[0]), (3, other, rows[1])):
        for node in (0, 2):
            row = logits[first + node].unsqueeze(0)
            expected = sampler.probabilities(row, [tree.paths[node]])[0]
            assert np.array_equal(found.probabilities[node], expected)
    assert is_unreadable(rows[1].probabilities[1])
    assert "NaN" in str(rows[1].failures[1])
    assert list(rows[1].failures) == [1]


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("seed", range(6))
def test_greedy_verdicts_of_real_rows_are_the_longest_match(name: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    drafts = 12 if name not in CHAIN_ONLY else 4
    builder = TreeBuilder(0)
    for node in range(drafts):
        parent = int(torch.randint(len(builder), (1,), generator=generator)) if name not in CHAIN_ONLY else node
        builder.add(parent, int(torch.randint(3, (1,), generator=generator)))
    tree = builder.build()
    logits = torch.randn(len(tree), 3, generator=generator)
    best = logits.argmax(1).tolist()
    path, node = [], 0
    while (child := tree.child(node, best[node])) is not None:
        path.append(child)
        node = child
    assert make_verifier(name).accept(tree, target_rows(logits, tree, 0.0)) == Verdict.of(tree, path, best[node])


@pytest.mark.parametrize("name", LOSSLESS)
def test_the_same_request_and_round_gives_the_same_verdict(name: str) -> None:
    tree = TreeBuilder(0).chain([1, 2, 1, 0]).build()
    logits = torch.randn(len(tree), 3, generator=torch.Generator().manual_seed(1))
    verdicts = {make_verifier(name).accept(tree, target_rows(logits, tree, 1.0)) for _ in range(3)}
    assert len(verdicts) == 1


@pytest.mark.parametrize("name", LOSSLESS)
def test_a_chain_as_long_as_a_pass_may_be(name: str) -> None:
    tree = TreeBuilder(0).chain([1] * 511).build()
    logits = torch.tensor([[0.0, 9.0]]).expand(len(tree), -1)
    assert len(make_verifier(name).accept(tree, target_rows(logits, tree, 0.0)).tokens) == 512


def test_a_candidate_of_no_node_of_its_tree_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="candidate"):
        TokenTree((0, 1), (-1, 0), (1.0, 1.0), (Candidate(2),))
