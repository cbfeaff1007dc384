"""A controller changes the speed only: whatever it decides anew in every round, no text changes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tiny import VOCABULARY
from tiny_heads import tiny_head

from contract.cases import BACKENDS, PROMPTS, by_id, draft_models
from contract.test_lossless import SETTINGS, plain, target_only_rules
from outrider import LLM, SchedulerConfig, Speculation
from outrider.config import SpeculationDefault
from outrider.control.adaptive import Adaptive
from outrider.control.base import Controller, LoadedMethod
from outrider.control.fair_share import FairShare
from outrider.control.pass_costs import PassCosts
from outrider.engine.build import build_engine
from outrider.engine.engine import Engine
from outrider.errors import ConfigError
from outrider.kv.pool import KVPool
from outrider.metrics import RoundStats
from outrider.options import Role, roles_of, with_roles
from outrider.price import RowPrice
from outrider.requests.turn import Budget, Turn
from outrider.verify import make_verifier

METHODS = ["draft_model-tree", "eagle3", "suffix", "dspark", "ngram"]
"""Methods that one engine holds side by side: a draft model, heads that read hidden rows, lookups."""


class Fickle:
    """Decides anew in every round, by dice of its own."""

    def __init__(self, most_nodes: int, drafters: int, seed: int) -> None:
        self.most_nodes, self._drafters, self._dice = most_nodes, drafters, random.Random(seed)
        self.default = SpeculationDefault()
        self.served: set[int] = set()
        self.pruned = 0
        self.stats: list[RoundStats] = []

    def budgets(self, turns: Sequence[Turn], draft_rows: int) -> None:
        assert draft_rows >= 0
        for turn in turns:
            if turn.most_nodes > 1:
                drafter = self._dice.randrange(self._drafters)
                price = self._dice.choice([None, RowPrice(), RowPrice(0.3), RowPrice(row_cost=0.1)])
                turn.budget = Budget(self._dice.randint(1, turn.most_nodes), drafter, price)

    def prune(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            if turn.tree is not None and len(turn.tree) > 1:
                self.served.add(turn.budget.drafter)
                keep = self._dice.randint(1, len(turn.tree))
                self.pruned += len(turn.tree) - keep
                turn.tree = turn.tree.subtree(range(keep))

    def observe(self, turns: Sequence[Turn], stats: RoundStats) -> None:
        assert stats.rows.total == sum(turn.forced + len(turn.tree or ()) for turn in turns)
        self.stats.append(stats)


def engine(rule: str, backend: str, controller: Controller | None = None) -> Engine:
    target = BACKENDS[backend](0)
    configs = [with_roles(by_id(name), {Role.HEAD: name}) for name in METHODS]
    models = draft_models(backend)
    heads = {name: tiny_head(name, target) for name in METHODS if Role.HEAD in roles_of(by_id(name))}
    return build_engine(
        target,
        None,
        configs[0],
        make_verifier(rule),
        KVPool(1024, 4, prefix_cache=False),
        load=lambda name: (models[name], None),
        heads=heads,
        scheduler=SchedulerConfig(max_rows=48, prefill_chunk=6),
        controller=controller or FairShare(8),
        others=configs[1:],
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rule", target_only_rules())
@pytest.mark.parametrize("setting", ["greedy", "temperature", "penalties", "control"])
def test_no_decision_of_a_controller_changes_a_text(setting: str, rule: str, backend: str) -> None:
    controller = Fickle(12, len(METHODS), seed=7)
    made = engine(rule, backend, controller)
    requests = [made.submit(prompt, SETTINGS[setting]) for prompt in PROMPTS]
    while not made.idle:
        made.step()
    assert [tuple(request.output_ids) for request in requests] == plain(setting, backend)
    made.pool.check()
    assert len(controller.served) > 2, "requests were not moved between drafters"
    assert controller.pruned
    total = made.seconds.rows
    assert total.draft + total.wasted > 0
    assert total.decode == sum(request.stats.rounds for request in requests)
    assert total.draft == sum(sum(request.stats.accepted) for request in requests)


@pytest.mark.parametrize(
    "profile", [{1: 1e-6, 64: 1e-6}, {1: 1e-3, 8: 1e-3, 64: 1.0}, None], ids=["free", "stairs", "-"]
)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rule", target_only_rules())
@pytest.mark.parametrize("setting", ["greedy", "temperature"])
def test_what_pays_changes_no_text(
    setting: str, rule: str, backend: str, profile: dict[int, float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Adaptive, "_pays", lambda *_: True)  # tiny targets are faster than any drafter
    methods = [LoadedMethod(name, 12, place == 2) for place, name in enumerate(METHODS)]
    controller = Adaptive(12, methods, PassCosts(profile))
    made = engine(rule, backend, controller)
    for algorithm in (None, "suffix", "eagle3"):
        controller.default = SpeculationDefault(algorithm=algorithm)
        requests = [made.submit(prompt, SETTINGS[setting]) for prompt in PROMPTS]
        while not made.idle:
            made.step()
        assert [tuple(request.output_ids) for request in requests] == plain(setting, backend)
        made.pool.check()


def test_the_controller_is_the_one_that_was_asked_for() -> None:
    def controller(speculation: object) -> object:
        with LLM.from_model(BACKENDS["hf"](0), speculation=speculation) as llm:  # type: ignore[arg-type]
            return type(llm.engine.controller)

    assert (
        controller({"method": "auto", "adaptive": True}) is controller(Speculation("suffix", adaptive=True)) is Adaptive
    )
    assert controller("auto") is controller({"method": "suffix", "adaptive": False}) is FairShare
    with pytest.raises(ConfigError, match="adaptive must be"):
        controller({"method": "suffix", "adaptive": "yes"})


def test_two_methods_with_one_draft_model_are_refused() -> None:
    target = BACKENDS["hf"](0)
    with pytest.raises(ConfigError, match="same model"):
        build_engine(
            target,
            None,
            by_id("draft_model"),
            make_verifier("coupled"),
            KVPool(64, 4),
            others=[by_id("lookup_model")],
        )


def test_decode_figures_exist_where_every_round_holds_some_prompt() -> None:
    """Steady arrivals: no round only decodes, and still it is known how fast tokens come."""
    made = engine("coupled", "hf")
    for start in range(40):
        made.submit([1 + (start + place) % (VOCABULARY - 1) for place in range(12)], SETTINGS["greedy"])
    seconds = made.seconds
    while made.scheduler.waiting or any(request.pending > 1 for request in made.scheduler.running):
        made.step()
    assert seconds.mixed > 0.0
    assert seconds.mixed_tokens > 0
    assert seconds.tokens_per_second > 0.0
    assert seconds.rows.prompt
    assert seconds.rows.decode
