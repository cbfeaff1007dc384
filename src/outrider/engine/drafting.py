"""The drafters' part of a round: they propose trees and observe the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from outrider.drafters.base import Committed, DraftContext, Drafter, DraftSequence
from outrider.engine.guard import GuardedDrafter
from outrider.engine.picker import DrawingPicker
from outrider.engine.watchdog import Watchdog
from outrider.errors import ConfigError
from outrider.models.base import TargetOutput
from outrider.requests.turn import Turn
from outrider.tree import TokenTree, TreeBatch, root_only
from outrider.verify.base import Draws, Verdict


class Drafting:
    """All drafters of an engine; the budget of a request says which one serves it in a round.

    Args:
        drafters: by the name of their method; the first serves requests unless the controller says otherwise.  Each
            observes every round, so a request may move from one to another between two rounds.
        draws: how the acceptance rule wants a distribution turned into proposals.
        vocabulary: token ids at or past this may not be drafted.
        timeout: seconds that a drafter may take for one call; 0 bounds none.
    """

    picker_type: type[DrawingPicker] = DrawingPicker

    def __init__(self, drafters: Mapping[str, Drafter], draws: Draws, vocabulary: int, timeout: float = 0.0) -> None:
        self.methods = tuple(drafters)
        """Names of the loaded methods; a budget's ``drafter`` is an index of these."""
        watchdog = Watchdog(timeout)
        self.drafters = [GuardedDrafter(drafter, vocabulary, watchdog) for drafter in drafters.values()]
        self.hidden_layers = tuple(sorted({layer for each in self.drafters for layer in each.needs.hidden_layers}))
        self._draws = draws

    def check_loaded(self, name: str | None) -> None:
        """Refuse the name of a method that is not loaded; None is the engine's own.

        Raises:
            ConfigError: listing the loaded ones.
        """
        if name is not None and name not in self.methods:
            told = f"algorithm: {name!r} is not loaded in this engine, which has: {', '.join(self.methods)}"
            raise ConfigError(told, param="algorithm")

    @property
    def switched_off(self) -> dict[tuple[str, str], int]:
        """Requests for which a faulty drafter was switched off, by (method, reason)."""
        pairs = zip(self.methods, self.drafters, strict=True)
        return {(name, reason): n for name, drafter in pairs for reason, n in drafter.switched_off.items()}

    def adopt(self, key: str, tokens: Sequence[int], most: int) -> int:
        """How many of ``most`` reusable target rows a request may adopt: the least that any drafter allows."""
        return min(drafter.adopt(key, tokens, most) for drafter in self.drafters)

    def pause(self, key: str) -> None:
        """Give back a preempted request's pages."""
        for drafter in self.drafters:
            drafter.pause(key)

    def close(self, key: str) -> None:
        """Forget a request."""
        for drafter in self.drafters:
            drafter.close(key)

    def propose(self, turns: Sequence[Turn]) -> None:
        """Give every turn that reaches its anchor a tree: its drafter's if it may draft, else only the anchor."""
        for turn in turns:
            if turn.reaches_anchor:
                turn.tree = root_only(turn.request.inputs[-1])
        drafting = [turn for turn in turns if turn.budget.nodes > 1]
        if not drafting:
            return
        picker = self.picker_type({turn.request.id: turn for turn in drafting}, self._draws)
        for place, drafter in enumerate(self.drafters):
            served = [turn for turn in drafting if turn.budget.drafter == place]
            if served:
                causal = not self._draws.target_alone
                context = DraftContext(tuple(_view(turn, causal) for turn in served), picker, causal)
                for turn, tree in zip(served, drafter.propose(context), strict=True):
                    turn.tree, turn.method = tree, self.methods[place]

    def observe(self, turns: Sequence[Turn], batch: TreeBatch, output: TargetOutput) -> None:
        """Pass the outcome of the round to every drafter."""
        outcome = _Outcome(turns, batch, output)
        for drafter in self.drafters:
            drafter.observe(outcome)


class _Outcome:
    """The outcome of a round; each part is built when a drafter first reads it."""

    def __init__(self, turns: Sequence[Turn], batch: TreeBatch, output: TargetOutput) -> None:
        self._turns, self._batch, self.output = turns, batch, output

    @cached_property
    def _decided(self) -> list[Turn]:
        return [turn for turn in self._turns if turn.reaches_anchor]

    @cached_property
    def sequences(self) -> Sequence[DraftSequence]:
        return [_view(turn, causal=False) for turn in self._decided]

    @cached_property
    def trees(self) -> Sequence[TokenTree]:
        return [turn.tree for turn in self._decided if turn.tree is not None]

    @cached_property
    def verdicts(self) -> Sequence[Verdict]:
        return [turn.verdict for turn in self._decided if turn.verdict is not None]

    @cached_property
    def committed(self) -> Sequence[Committed]:
        return [
            Committed(turn.request.id, turn.request.inputs, rows.context, [first + row for row in turn.kept])
            for turn, first, rows in zip(self._turns, self._batch.starts, self._batch.sequences, strict=True)
            if turn.verdict is None or turn.verdict.tokens or turn.ended_well
        ]


def _view(turn: Turn, causal: bool) -> DraftSequence:
    request = turn.request
    return DraftSequence(
        key=request.id,
        tokens=request.inputs,
        prompt_length=request.prompt_length,
        nodes=turn.budget.nodes,
        depth=turn.most_depth,
        price=turn.budget.price,
        prediction=request.prediction,
        salt=request.salt,
        reads_others=not causal or request.params.seed is None,
    )
