"""The adaptive controller: with known costs and known chances, it verifies what pays, and no more."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import pytest
from byte_text import SIZE
from oracles import Scripted
from script_target import Script

from outrider import SamplingParams, SchedulerConfig
from outrider.control.adaptive import Adaptive
from outrider.control.base import LoadedMethod
from outrider.control.pass_costs import PassCosts
from outrider.drafters.base import DraftSequence
from outrider.engine.build import build_engine
from outrider.engine.engine import Engine
from outrider.kv.pool import KVPool
from outrider.requests.request import Request
from outrider.tree import TokenTree
from outrider.verify import make_verifier

ANSWER = [1 + place % (SIZE - 2) for place in range(400)]
PROMPT = [1, 2, 3]
FREE = {1: 1.0, 64: 1.0}
LINE = {1: 1.0, 64: 64.0}
STAIRS = {1: 1.0, 8: 1.0, 9: 1.5, 16: 1.5, 17: 3.0, 64: 12.0}


class KnownCosts(PassCosts):
    """A profile that rounds do not change."""

    def observe(self, rows: int, seconds: float) -> None:
        """Learn nothing."""


def drafts(true: Mapping[int, float], told: float, length: int = 8, seed: int = 0) -> Scripted:
    """A drafter that is right with a chance that depends on the request's number, and tells another one."""
    dice = random.Random(seed)

    def script(sequence: DraftSequence) -> TokenTree:
        builder, place = sequence.builder(), len(sequence.tokens) - len(PROMPT)
        for node in range(min(length, sequence.nodes - 1, sequence.depth)):
            right = dice.random() < true[int(sequence.key[1:])]
            token = ANSWER[place + node] if right else SIZE - 1
            builder.add(node, token, survival=told)
        return builder.build()

    return Scripted(script, most_nodes=1 + length)


def engine(costs: Mapping[int, float], method: Scripted) -> Engine:
    controller = Adaptive(method.most_nodes, [LoadedMethod("scripted", method.most_nodes)], KnownCosts(costs))
    return build_engine(
        Script(PROMPT, ANSWER, context_length=512),
        None,
        method,
        make_verifier("coupled"),
        KVPool(8192, 16, prefix_cache=False),
        scheduler=SchedulerConfig(max_rows=512),
        controller=controller,
    )


def served(made: Engine, requests: int, tokens: int = 200, **options: bool) -> list[Request]:
    """Requests that ran side by side to their ends; each has the answer's text."""
    params = SamplingParams(max_tokens=tokens, temperature=0, **options)
    found = [made.submit(PROMPT, params) for _ in range(requests)]
    while not made.idle:
        made.step()
    assert all(list(one.output_ids) == ANSWER[:tokens] for one in found)
    return found


def rows_a_round(made: Engine) -> float:
    rows, rounds = made.seconds.rows, made.seconds.rounds
    return (rows.draft + rows.wasted) / rounds


def test_free_rows_are_filled() -> None:
    made = engine(FREE, drafts({1: 0.5}, told=0.5))
    served(made, 1)
    assert rows_a_round(made) > 6.5


@pytest.mark.parametrize("told", [0.1, 0.9])
def test_dear_rows_are_left_alone_and_drafters_rarely_asked(told: float) -> None:
    made = engine(LINE, drafts({1: 0.3}, told=told))
    (request,) = served(made, 1)
    late = request.stats.rounds
    assert rows_a_round(made) < 0.6
    assert late > 150


def test_a_step_is_not_climbed_for_a_little() -> None:
    """Up to eight rows are free, the ninth costs half a pass: 8 drafts of chance 0.5 are worth 7 rows."""
    made = engine(STAIRS, drafts({1: 0.5}, told=0.5, length=12))
    served(made, 1)
    assert 5.5 < rows_a_round(made) <= 7.2


def test_a_step_is_climbed_where_it_pays() -> None:
    made = engine(STAIRS, drafts({1: 0.97}, told=0.97, length=15))
    served(made, 1)
    assert 11.0 < rows_a_round(made) <= 15.0


def test_confidence_that_is_wrong_is_corrected() -> None:
    """Rows cost a fifth of a pass: drafts of chance 0.9 pay, those of 0.05 do not, whatever the drafter says."""
    costs = {1: 1.0, 64: 1.0 + 0.2 * 63}
    shy, bold = engine(costs, drafts({1: 0.9}, told=0.15)), engine(costs, drafts({1: 0.05}, told=0.95))
    served(shy, 1, 300)
    served(bold, 1, 300)
    assert rows_a_round(shy) > 3.0
    assert rows_a_round(bold) < 0.7


def test_rows_go_to_the_requests_whose_drafts_are_accepted() -> None:
    true = {1: 0.9, 2: 0.9, 3: 0.1, 4: 0.1}
    made = engine({1: 1.0, 4: 1.0, 64: 3.0}, drafts(true, told=0.6))
    found = served(made, 4, 300)
    drafted = [sum(request.stats.drafted) / request.stats.rounds for request in found]
    assert min(drafted[:2]) > 2 * max(drafted[2:])


def test_nobody_is_slowed_much_for_the_others() -> None:
    """One request could use eight rows; its seven neighbours would pay for them and gain nothing."""
    true = {number: 0.97 if number == 1 else 0.0 for number in range(1, 9)}
    made = engine({1: 1.0, 8: 1.0, 16: 3.0, 64: 12.0}, drafts(true, told=0.5))
    slowest = list[float]()

    class Watch:
        def observe(self, turns: object, stats: object) -> None:
            rows = made.scheduler and made.controller.costs.seconds(stats.rows.total)  # type: ignore[attr-defined]
            if stats.rows.decode == 8:  # type: ignore[attr-defined]
                slowest.append(rows)

    made.observers.append(Watch())  # type: ignore[arg-type]
    served(made, 8, 150)
    assert np.mean(slowest[20:]) < 1.25


@pytest.mark.parametrize("speculate", [True, False])
def test_who_says_what_to_do_is_obeyed(speculate: bool) -> None:
    made = engine(LINE if speculate else FREE, drafts({1: 0.5}, told=0.5))
    served(made, 1, speculate=speculate)
    assert (rows_a_round(made) > 7.0) is speculate


def test_the_control_group_measures_rounds_without_drafts() -> None:
    made = engine(FREE, drafts(dict.fromkeys(range(1, 40), 0.9), told=0.9))
    assert isinstance(made.controller, Adaptive)
    for _ in range(8):
        served(made, 1, 350)
    group = made.controller.control_group
    assert any(load.plain for load in group._loads.values())
