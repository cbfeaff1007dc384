"""Drafters that follow a script: always right, always wrong, random, empty, or faulty."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from outrider.drafters.base import DraftContext, DraftSequence, Needs, Outcome, Workbench
from outrider.tree import TokenTree, TreeBuilder

Script = Callable[[DraftSequence], TokenTree]

FREE = Needs(deterministic=True, branching=True)


@dataclass(frozen=True)
class Scripted:
    """Config of a drafter that calls a function for every tree."""

    script: Script
    most_nodes: int = 8
    needs: Needs = FREE
    method: ClassVar[str] = "scripted"
    automatic_rank: ClassVar[int] = 0

    def build(self, workbench: Workbench) -> ScriptedDrafter:
        return ScriptedDrafter(self)


class ScriptedDrafter:
    def __init__(self, config: Scripted) -> None:
        self._config, self.needs = config, config.needs
        self.closed: list[str] = []

    def adopt(self, key: str, tokens: Sequence[int], most: int) -> int:
        return 0 if self.needs.hidden_layers else most

    def propose(self, context: DraftContext) -> list[TokenTree]:
        return [self._config.script(sequence) for sequence in context.sequences]

    def observe(self, outcome: Outcome) -> None:
        pass

    def pause(self, key: str) -> None:
        pass

    def close(self, key: str) -> None:
        self.closed.append(key)


def room(sequence: DraftSequence) -> int:
    return min(sequence.nodes - 1, sequence.depth)


def right(answers: dict[tuple[int, ...], tuple[int, ...]]) -> Script:
    """Drafts what plain decoding gave for this prompt."""

    def script(sequence: DraftSequence) -> TokenTree:
        prompt = tuple(sequence.tokens[: sequence.prompt_length])
        done = len(sequence.tokens) - sequence.prompt_length
        return sequence.builder().chain(answers[prompt][done : done + room(sequence)]).build()

    return script


def wrong(answers: dict[tuple[int, ...], tuple[int, ...]], vocabulary: int) -> Script:
    """Drafts a chain whose every token differs from what plain decoding gave."""

    def script(sequence: DraftSequence) -> TokenTree:
        prompt = tuple(sequence.tokens[: sequence.prompt_length])
        done = len(sequence.tokens) - sequence.prompt_length
        truth = answers[prompt][done : done + room(sequence)]
        return sequence.builder().chain([(token + 1) % vocabulary for token in truth]).build()

    return script


def random_trees(vocabulary: int, seed: int, answers: dict[tuple[int, ...], tuple[int, ...]] | None = None) -> Script:
    """Drafts random trees; where the answers are given, half of the tokens are right."""
    dice = random.Random(seed)

    def script(sequence: DraftSequence) -> TokenTree:
        builder: TreeBuilder = sequence.builder()
        truth: tuple[int, ...] = ()
        if answers is not None:
            done = len(sequence.tokens) - sequence.prompt_length
            truth = answers[tuple(sequence.tokens[: sequence.prompt_length])][done:]
        for _ in range(dice.randrange(sequence.nodes)):
            parent = dice.randrange(len(builder))
            depth = len(builder.paths[parent])
            if depth < sequence.depth and len(builder) < sequence.nodes:
                guess = dice.randrange(vocabulary)
                builder.add(parent, truth[depth] if depth < len(truth) and dice.random() < 0.5 else guess)
        return builder.build()

    return script


def empty(sequence: DraftSequence) -> TokenTree:
    """Drafts nothing."""
    return sequence.builder().build()
