"""The controller: each round it asks what a draft is worth and what it costs, over all requests together.

Two decisions, both by tokens per second.  *Before drafting*: whether a request drafts at all, because drafters cost
time too.  *After drafting*: which nodes are verified.  The nodes of all trees are sorted by their chance of being
accepted, and the best number of rows is the one with the most expected tokens per second of the pass (DSpark,
arXiv 2607.05147, algorithm 1, for trees and for any drafter).

It looks at drafted tokens, so it prunes only under rules that accept a draft where it is the target's own token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from outrider.config import SpeculationDefault
from outrider.control.base import LoadedMethod
from outrider.control.control_group import ControlGroup
from outrider.control.draft_costs import DraftCosts
from outrider.control.fair_share import FairShare
from outrider.control.pass_costs import PassCosts
from outrider.control.survival import OwnCorrection, SurvivalEstimates
from outrider.metrics import RoundStats
from outrider.price import RowPrice
from outrider.requests.request import Request
from outrider.requests.turn import PLAIN, Turn
from outrider.tree import TokenTree

_FAIR: Final = 0.85
"""Least speed of any request in a round, relative to plain decoding of the same requests."""
_MEMORY: Final = 0.1
"""Share of a new round in averages over all requests."""
_OWN_ROUNDS: Final = 10.0
"""Rounds that the averages of a request rest on."""
_TYPICAL_ROUNDS: Final = 200.0
"""Rounds that the averages of a method rest on."""
_BORROWED: Final = 2.0
"""What a method's averages count for a new request, in rounds of its own."""
_FIRST_PAUSES: Final = range(1, 33, 4)
"""New requests whose method does not pay at present try it after so many rounds, one after the other."""
_CONTROL_SHARE: Final = 0.02
"""Share of decoding rounds in the control group."""
_DEAREST: Final = 0.9
"""Greatest chance that a draft must promise; the estimates of costs are no better than that."""
_LEAST_PAUSE: Final = 4
_LONGEST_PAUSE: Final = 64
"""Fewest and most rounds between two probes of a request whose drafts do not pay."""


@dataclass(eq=False)
class _History:
    """What is known of one request's drafts."""

    own: OwnCorrection = field(default_factory=OwnCorrection)
    rounds: float = 0.0
    """What the averages rest on: rounds with drafts, those of other requests in part."""
    gain: float = 0.0
    """Mean tokens that drafts added to a round."""
    rows: float = 0.0
    """Mean draft rows of a round."""
    levels: float = 0.0
    """Mean depth of the trees, before they were pruned."""
    pause: int = 0
    """Rounds to wait after a probe that did not pay; it doubles each time."""
    waits: int = 0
    """Rounds until the next probe."""

    def add(self, gain: float, rows: float, levels: float, memory: float) -> None:
        """Book a round with drafts."""
        self.rounds = min(memory, self.rounds + 1)
        share = 1 / self.rounds
        self.gain += share * (gain - self.gain)
        self.rows += share * (rows - self.rows)
        self.levels += share * (levels - self.levels)


class Adaptive:
    """Lets a request draft where that pays, and verifies the drafts that pay.

    Args:
        most_nodes: most nodes of a tree, anchor included.
        methods: what the engine has loaded, in its order.
        costs: seconds of a pass by rows.
    """

    def __init__(self, most_nodes: int, methods: Sequence[LoadedMethod], costs: PassCosts) -> None:
        self.most_nodes, self.costs = most_nodes, costs
        self.control_group = ControlGroup(_CONTROL_SHARE)
        self._compared: bool | None = None
        """Whether the round belongs to the control group; None if it is compared with none."""
        self.default = SpeculationDefault()
        self._wishes = FairShare(most_nodes, methods=methods)
        self._survival = SurvivalEstimates()
        self._known: WeakKeyDictionary[Request, _History] = WeakKeyDictionary()
        self._drafted: dict[Request, TokenTree] = {}
        """The round's trees before they were pruned."""
        self._drafts = [DraftCosts() for _ in methods]
        self._typical = [_History() for _ in methods]
        self._started = 0
        self._idle_seconds = 0.0
        """Mean seconds that drafters take for one request that does not draft."""

    def budgets(self, turns: Sequence[Turn], draft_rows: int) -> None:
        """Let each request draft as its method wants, or not at all where that has not paid."""
        self._wishes.default = self.default
        self._wishes.budgets(turns, draft_rows)
        decoding = sum(turn.decodes for turn in turns)
        open_ones = [turn for turn in turns if turn.budget.nodes > 1 and turn.request.params.speculate is None]
        self._compared = self.control_group.draw() if open_ones and decoding == len(turns) else None
        seconds = self._row_seconds(turns, open_ones)
        rate = decoding / self.costs.seconds(decoding) if decoding else 0.0
        for turn in open_ones:
            if self._compared or not self._pays(turn, rate, seconds, len(open_ones)):
                turn.budget = PLAIN
            else:
                step = self._drafts[turn.budget.drafter].step / len(open_ones)
                price = RowPrice(min(_DEAREST, rate * (seconds + step)))
                turn.budget = turn.budget._replace(price=price)

    def _row_seconds(self, turns: Sequence[Turn], drafting: Sequence[Turn]) -> float:
        """Seconds of a draft row, if all of these requests draft as they did before."""
        rows = sum(turn.least_rows for turn in turns)
        more = math.ceil(sum(self._known[turn.request].rows for turn in drafting if turn.request in self._known))
        table = self.costs.table(rows + more)
        return float(table[rows + more] - table[rows]) / max(1, more)

    def _pays(self, turn: Turn, rate: float, row_seconds: float, drafting_requests: int) -> bool:
        """Whether a request should draft: its drafts pay, or it is time to try them again."""
        known = self._of(turn)
        if not known.rounds:
            return True
        drafts = self._drafts[turn.budget.drafter]
        drafting = drafts.request + known.levels * drafts.step / drafting_requests
        if known.gain >= rate * (drafting + known.rows * row_seconds):
            known.pause = 0
            return True
        if known.waits > 0:
            known.waits -= 1
            return False
        known.pause = min(_LONGEST_PAUSE, max(_LEAST_PAUSE, 2 * known.pause))
        known.waits = known.pause
        return True

    def _of(self, turn: Turn) -> _History:
        """What is known of a request; a new one begins with what is typical of its method."""
        known = self._known.get(turn.request)
        if known is None:
            self._started += 1
            common, waits = self._typical[turn.budget.drafter], _FIRST_PAUSES[self._started % len(_FIRST_PAUSES)]
            averages = common.gain, common.rows, common.levels
            known = _History(OwnCorrection(), min(_BORROWED, common.rounds), *averages, _LEAST_PAUSE, waits)
            self._known[turn.request] = known
        return known

    def prune(self, turns: Sequence[Turn]) -> None:
        """Verify the nodes that make the most expected tokens per second."""
        self._drafted.clear()
        chances: list[tuple[float, int, int]] = []
        decoding = [turn for turn in turns if turn.tree is not None]
        for place, turn in enumerate(decoding):
            tree = turn.tree
            if tree is None or len(tree) == 1 or turn.method is None or turn.request.params.speculate is not None:
                continue
            known = self._of(turn)
            self._drafted[turn.request] = tree
            survival = self._survival.survival(turn.method, tree, known.own)
            chances += [(-survival[node], place, node) for node in range(1, len(tree))]
        if not chances:
            return
        chances.sort()
        kept = self._best(turns, decoding, chances)
        keep: dict[int, list[int]] = {}
        for _, place, node in chances[:kept]:
            keep.setdefault(place, [0]).append(node)
        for place, turn in enumerate(decoding):
            if turn.request in self._drafted and turn.tree is not None:
                nodes = sorted(keep.get(place, [0]))
                if len(nodes) < len(turn.tree):
                    turn.tree = turn.tree.subtree(nodes)

    def _best(self, turns: Sequence[Turn], decoding: Sequence[Turn], chances: Sequence[tuple[float, int, int]]) -> int:
        """How many of the nodes to verify."""
        held = sum(len(turn.tree or ()) - 1 for turn in decoding if turn.request not in self._drafted)
        rows = sum(turn.least_rows for turn in turns) + held
        prompt = sum(turn.least_rows for turn in turns if not turn.decodes)
        table = self.costs.table(rows + len(chances))
        # A prompt's rows are computed in any case; drafts pay for what they add to them.
        seconds = table[rows - prompt] + table[rows : rows + len(chances) + 1] - table[rows]
        gains = np.array([-chance for chance, _, _ in chances])
        tokens = len(decoding) + np.concatenate([[0.0], np.cumsum(gains)])
        spent = self._draft_cost([turn for turn in decoding if turn.request in self._drafted])
        worth = tokens / (spent + seconds)
        own = np.zeros((len(chances) + 1, len(decoding)))
        own[np.arange(1, len(chances) + 1), [place for _, place, _ in chances]] = gains
        least = (1.0 + np.cumsum(own, axis=0)).min(axis=1)
        worth[least * seconds[0] < _FAIR * seconds] = 0.0
        return int(np.argmax(worth))

    def observe(self, turns: Sequence[Turn], stats: RoundStats) -> None:
        """Learn what was accepted and what it cost."""
        self.costs.observe(stats.rows.total, stats.verify + stats.other)
        drafting = [turn for turn in turns if turn.method is not None]
        decoding = sum(turn.decodes for turn in turns)
        if not decoding:
            return
        if self._compared is not None:
            self.control_group.observe(decoding, stats.tokens, stats.seconds, control=self._compared)
        if drafting:
            self._learn_costs(drafting, max(0.0, stats.draft - self._idle_seconds * decoding))
        elif not stats.rows.prompt:
            self._idle_seconds += _MEMORY * (stats.draft / decoding - self._idle_seconds)
        for turn in drafting:
            self._learn(turn)

    def _learn(self, turn: Turn) -> None:
        verdict, tree = turn.verdict, self._drafted.get(turn.request, turn.tree)
        known = self._of(turn)
        if verdict is None or tree is None or turn.method is None or turn.tree is None:
            return
        self._survival.observe(turn.method, tree, verdict.tokens, known.own)
        for averages, memory in ((known, _OWN_ROUNDS), (self._typical[turn.budget.drafter], _TYPICAL_ROUNDS)):
            averages.add(len(verdict.path), len(turn.tree) - 1, max(tree.depths), memory)

    def _learn_costs(self, drafting: Sequence[Turn], seconds: float) -> None:
        """What drafting cost; a round with several methods does not tell which took how long."""
        places = {turn.budget.drafter for turn in drafting}
        if len(places) == 1:
            self._drafts[places.pop()].observe(len(drafting), self._levels(drafting), seconds)

    def _draft_cost(self, drafting: Sequence[Turn]) -> float:
        """Estimated seconds of the round's drafting."""
        served: dict[int, list[Turn]] = {}
        for turn in drafting:
            served.setdefault(turn.budget.drafter, []).append(turn)
        return sum(self._drafts[place].seconds(len(mine), self._levels(mine)) for place, mine in served.items())

    def _levels(self, turns: Sequence[Turn]) -> int:
        """Depth of the deepest tree, before it was pruned."""
        trees = [self._drafted.get(turn.request, turn.tree) for turn in turns]
        return max((max(tree.depths) for tree in trees if tree is not None), default=0)
