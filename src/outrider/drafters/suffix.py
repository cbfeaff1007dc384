"""Suffix lookup: finds the longest earlier match of the text's end and drafts its most frequent continuation.

Unlike prompt lookup it finds matches of every length, counts their continuations, and drafts longer after a longer
match.  Source: Oliaro et al., "SuffixDecoding", 2024 (arXiv 2411.04975), with the automaton of Hu et al., "SAM
decoding", 2024, in place of a suffix tree.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar, Final, NamedTuple

from outrider.drafters._calibration import Calibration
from outrider.drafters._corpora import SEPARATOR, Corpora
from outrider.drafters._prediction import PredictionCursor
from outrider.drafters._suffix_automaton import ROOT, SuffixAutomaton
from outrider.drafters.base import (
    DraftContext,
    Drafter,
    DraftSequence,
    Needs,
    Outcome,
    Workbench,
    register,
    tokens_option,
    width_option,
)
from outrider.options import Role, check_options, option
from outrider.price import RowPrice
from outrider.tree import TokenTree, TreeBuilder

_SUFFIXES_TRIED: Final = 6


@register
@dataclass(frozen=True)
class Suffix:
    """Options of suffix lookup."""

    method: ClassVar[str] = "suffix"
    automatic_rank: ClassVar[int] = 3

    num_draft_tokens: int = tokens_option(16)
    topk: int = width_option(1, "Branches per node")
    min_match: int = option(
        2,
        "Shortest match to accept. Raise it if many drafts are rejected.",
        low=1,
        high=1024,
        flag="speculative-suffix-min-match",
        role=Role.SHORTEST_MATCH,
    )
    length_factor: float = option(
        2.0,
        "Maximum draft tokens per matched token. Raise it for texts with long copies.",
        low=0.1,
        high=64,
        flag="speculative-suffix-length-factor",
    )
    min_survival: float = option(
        0.25,
        "Drop drafts whose estimated chance of acceptance is lower; the request's earlier drafts correct the estimate.",
        low=0,
        high=1,
        flag="speculative-suffix-min-survival",
    )
    corpus_megabytes: int = option(
        0,
        "Memory for earlier outputs, in one corpus for each cache salt; the least recently used is dropped. 0 looks up "
        "only the request's own text. Set it if outputs resemble each other.",
        low=0,
        high=65536,
        flag="speculative-suffix-corpus-megabytes",
    )

    def __post_init__(self) -> None:
        """Refuse values out of bounds."""
        check_options(self)

    @property
    def needs(self) -> Needs:
        price = RowPrice(self.min_survival)
        return Needs(deterministic=True, branching=self.topk > 1, reads_prediction=True, price=price)

    @property
    def most_nodes(self) -> int:
        return 1 + self.num_draft_tokens

    def build(self, workbench: Workbench) -> SuffixDrafter:
        return SuffixDrafter(self)

    @classmethod
    def automatic(cls, draft_models: Sequence[str]) -> Suffix | None:
        return None if draft_models else cls()


class Match(NamedTuple):
    """A suffix of the text that occurs elsewhere, too."""

    automaton: SuffixAutomaton
    state: int
    length: int


@dataclass(eq=False)
class _Text:
    """One request's automaton, and where its end matches the corpus."""

    prompt_length: int
    salt: str | None
    cursor: PredictionCursor
    own: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    calibration: Calibration = field(default_factory=Calibration)
    drafted: TokenTree | None = None
    """The last proposed tree; the verified one may come from another drafter."""
    shared: dict[int, tuple[SuffixAutomaton, int, int]] = field(default_factory=dict)
    output: list[int] = field(default_factory=list)

    def catch_up(self, tokens: Sequence[int], corpus: Sequence[SuffixAutomaton]) -> None:
        """Add the tokens committed since the last round."""
        fresh = tokens[self.own.tokens :]
        self.output += tokens[max(self.own.tokens, self.prompt_length) :]
        self.own.extend(fresh)
        self.shared = {id(half): self._follow(half, tokens, fresh) for half in corpus}

    def _follow(
        self, half: SuffixAutomaton, tokens: Sequence[int], fresh: Sequence[int]
    ) -> tuple[SuffixAutomaton, int, int]:
        known = self.shared.get(id(half))
        _, state, length = known or (half, ROOT, 0)
        while state != ROOT and length <= half.length[half.link[state]]:
            state = half.link[state]  # the corpus has grown and split the state of the match
        for token in fresh if known else tokens[-_WARM_UP:]:
            state, length = half.step(state, length, token)
        return half, state, length

    def matches(self, min_length: int) -> Iterator[Match]:
        """Suffixes of the text with a continuation elsewhere, longest first in each automaton."""
        state = self.own.link[self.own.last] if self.own.tokens else ROOT
        yield from _suffixes(self.own, state, self.own.length[max(state, ROOT)], min_length)
        for half, place, length in self.shared.values():
            yield from _suffixes(half, place, length, min_length)


_WARM_UP: Final = 256


def _suffixes(automaton: SuffixAutomaton, state: int, length: int, min_length: int) -> Iterator[Match]:
    for _ in range(_SUFFIXES_TRIED):
        if state <= ROOT or length < min_length:
            return
        yield Match(automaton, state, length)
        state = automaton.link[state]
        length = automaton.length[state]


class SuffixDrafter(Drafter):
    """Keeps one automaton per request, and a corpus per salt."""

    def __init__(self, config: Suffix) -> None:
        self._config = config
        self.needs = config.needs
        self.corpora = Corpora(config.corpus_megabytes)
        self._texts: dict[str, _Text] = {}

    def propose(self, context: DraftContext) -> list[TokenTree]:
        return [self._draft(sequence) for sequence in context.sequences]

    def observe(self, outcome: Outcome) -> None:
        if not self._texts:
            return
        for sequence, tree, verdict in zip(outcome.sequences, outcome.trees, outcome.verdicts, strict=True):
            if (text := self._texts.get(sequence.key)) is not None:
                text.calibration.observe(tree if tree is text.drafted else None, verdict)

    def close(self, key: str) -> None:
        text = self._texts.pop(key, None)
        if text is not None:
            self.corpora.add(text.salt, text.output)

    def _draft(self, sequence: DraftSequence) -> TokenTree:
        text = self._texts.get(sequence.key)
        if text is None:
            cursor = PredictionCursor(sequence.prediction, sequence.prompt_length)
            text = self._texts[sequence.key] = _Text(sequence.prompt_length, sequence.salt, cursor)
        text.catch_up(sequence.tokens, self.corpora.halves(sequence.salt) if sequence.reads_others else ())
        trust = text.calibration.factor
        predicted = self._predicted(*text.cursor.follow(sequence.tokens), sequence, trust)
        found = (self._expand(match, sequence, trust) for match in text.matches(self._config.min_match))
        best = max(chain([predicted], found), key=lambda draft: sum(draft.survival[1:]), default=sequence.builder())
        text.drafted = best.build()
        return text.drafted

    def _predicted(self, place: int, matched: int, sequence: DraftSequence, trust: float) -> TreeBuilder:
        """Draft what the prediction continues with."""
        config, builder, price = self._config, sequence.builder(), sequence.price or self.needs.price
        most = min(config.num_draft_tokens, sequence.nodes - 1, sequence.depth, int(config.length_factor * matched))
        for node, token in enumerate(sequence.prediction[place : place + most]):
            chance = min(1.0, trust * _trust_in(matched + node))
            if not price.worth(builder.survival, builder.survival[node] * chance):
                break
            builder.add(node, token, survival=chance)
        return builder

    def _expand(self, match: Match, sequence: DraftSequence, trust: float) -> TreeBuilder:
        """Draft the likeliest continuations of one match; the sum of survivals is the expected accepted length."""
        config, builder, price = self._config, sequence.builder(), sequence.price or self.needs.price
        automaton = match.automaton
        most = min(config.num_draft_tokens, sequence.nodes - 1, max(1, int(config.length_factor * match.length)))
        # −survival, order, parent, token, state, match length, chance given the parent
        heap: list[tuple[float, int, int, int, int, int, float]] = []

        def offer(node: int, state: int, length: int) -> None:
            if len(builder.paths[node]) >= sequence.depth:
                return
            found = _continuations(automaton, state, length, config.topk)
            for token, share, following, longer in found:
                chance = min(1.0, trust * share)
                survival = builder.survival[node] * chance
                if price.worth(builder.survival, survival):
                    order = len(heap) + len(builder)
                    heapq.heappush(heap, (-survival, order, node, token, following, longer, chance))

        offer(0, match.state, match.length)
        while heap and len(builder) <= most:
            _, _, parent, token, state, length, chance = heapq.heappop(heap)
            node = builder.add(parent, token, survival=chance)
            offer(node, state, length)
        return builder


def _trust_in(length: int) -> float:
    """How much a match of this length is worth: longer ones are more reliable."""
    return length / (length + 1)


def _continuations(
    automaton: SuffixAutomaton, state: int, length: int, width: int
) -> list[tuple[int, float, int, int]]:
    """The likeliest tokens after a match: (token, estimated acceptance, next state, next match length).

    A match at the end of the text has no continuation; its longest shorter suffix is used then, so a draft can repeat
    a loop.  The estimate is the token's share of all continuations, times m / (m + 1) for a match of m tokens, since
    longer matches are more reliable.
    """
    while state > ROOT and not automaton.following[state]:
        state = automaton.link[state]
        length = automaton.length[state]
    if state <= ROOT:
        return []
    options = [(automaton.count[to], token, to) for token, to in automaton.following[state].items()]
    total = sum(count for count, _, _ in options)
    best = heapq.nsmallest(width, options, key=lambda item: (-item[0], item[1]))
    trust = _trust_in(length)
    return [(token, trust * count / total, to, length + 1) for count, token, to in best if token != SEPARATOR and count]
