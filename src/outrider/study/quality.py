"""How good a drafter is as a language model: the perplexity of the target's own answers under it.

The drafter is asked as it is in decoding, one draft after each token of an answer, and its distribution at temperature
1 is read off before the answer goes on as the target wrote it.  So a head is judged by its first step from the target's
true hidden rows, and every network in the precision it drafts in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import torch

from outrider.bench.runner import Models, Sample
from outrider.drafters.base import Committed, DraftContext, Drafter, DrafterConfig, DraftSequence, Workbench
from outrider.engine.picker import DrawingPicker
from outrider.engine.stopping import Endings, Stopper
from outrider.kv.pool import KVPool
from outrider.models.base import TargetModel, TargetOutput
from outrider.options import Role, with_roles
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import RequestSampler
from outrider.tree import SequenceRows, TreeBatch
from outrider.verify.base import Draws, Verdict

_KEY: Final = "text"
_PAGE: Final = 16
_SPARE_ROWS: Final = 512
"""Cache rows past a text, for what is drafted behind it."""
_CHUNK: Final = 512


@dataclass(frozen=True)
class Quality:
    """What a drafter's distribution says of the target's answers."""

    loss: float = 0.0
    """Negative log-likelihood in nats, summed over the judged tokens."""
    judged: int = 0
    """Tokens to which the drafter gave a probability."""
    tokens: int = 0
    """Tokens asked for: all of the answers but the first of each, which is never drafted."""
    reason: str | None = None
    """Why there is no figure; None where there is one."""

    @property
    def perplexity(self) -> float | None:
        """``exp`` of the mean negative log-likelihood of the judged tokens; None where none was."""
        return math.exp(self.loss / self.judged) if self.judged else None

    def to_json(self) -> dict[str, Any]:
        """For the result file."""
        return {
            "perplexity": self.perplexity,
            "mean_nll": self.loss / self.judged if self.judged else None,
            "judged": self.judged,
            "tokens": self.tokens,
            "reason": self.reason,
        }


def no_quality(config: DrafterConfig) -> str | None:
    """Why a method has no distribution of its own to judge; None where it has."""
    if config.needs.deterministic:
        return "a lookup has no distribution"
    if config.needs.merged:
        return "it joins the drafts of several models"
    return None


def quality(
    models: Models, config: DrafterConfig, answers: Sequence[Sample], advance: Callable[[], None] = lambda: None
) -> Quality:
    """Judge a drafter by the target's answers.

    Args:
        models: what is in memory.
        config: the drafter.
        answers: completions of the target decoding plainly.
        advance: called after each answer.
    """
    if (reason := no_quality(config)) is not None:
        return Quality(reason=reason)
    # A drafter that weighs the cost of a row would be silent just where it is unsure.
    config = with_roles(config, {Role.ROW_COST: 0.0})
    texts = [(answer.prompt.token_ids, answer.token_ids) for answer in answers]
    reader = _Reader(models, config, max(len(prompt) + len(answer) for prompt, answer in texts) + _SPARE_ROWS)
    loss, judged, tokens = 0.0, 0, 0
    with _taking_turns(models.target):
        for prompt, answer in texts:
            # Nought where a reduced draft vocabulary lacks the token, or nothing was drafted.
            losses = [-math.log(p) for p in reader.probabilities(prompt, answer) if p > 0.0]
            loss, judged, tokens = loss + sum(losses), judged + len(losses), tokens + max(0, len(answer) - 1)
            advance()
    return Quality(loss, judged, tokens, None if judged else "it gave no token of the answers a probability")


@contextmanager
def _taking_turns(target: TargetModel) -> Iterator[None]:
    """One torch thread where the target has threads of its own, as in the engine: both kinds wait by spinning."""
    threads = torch.get_num_threads()
    if target.own_threads:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Reader:
    """Leads a drafter along texts that are known.

    Args:
        models: what is in memory.
        config: the drafter.
        rows: cache rows for each model.
    """

    def __init__(self, models: Models, config: DrafterConfig, rows: int) -> None:
        self._target, tokenizer = models.target, models.tokenizer
        self._vocabulary = min(self._target.vocabulary, tokenizer.vocab_size)
        pool = KVPool(rows, _PAGE, prefix_cache=False)
        self._cache = pool.cache("target", row_invariant=self._target.row_invariant)
        bench = Workbench(
            target=self._target,
            tokenizer=tokenizer,
            pool=pool,
            draws=Draws.INDEPENDENT,
            device=self._target.device,
            vocabulary=self._vocabulary,
            load=lambda path: (models.drafts[path], tokenizer),
            heads=models.heads,
        )
        self._drafter: Drafter = config.build(bench)

    def probabilities(self, prompt: Sequence[int], answer: Sequence[int]) -> Iterable[float]:
        """The drafter's probability of each token of an answer but the first; 0 where it drafted nothing."""
        hidden = self._hidden([*prompt, *answer[:-1]])
        text = [*prompt, *answer[:1]]
        sequence = DraftSequence(_KEY, text, len(prompt), nodes=2, depth=1)
        self._drafter.adopt(_KEY, text, 0)
        self._observe((), hidden, text, range(len(prompt)))
        for place, token in enumerate(answer[1:], 1):
            (tree,) = self._drafter.propose(DraftContext((sequence,), self._picker(sequence), causal=True))
            laws = [candidate.q for candidate in tree.candidates if candidate.q is not None]
            yield float(laws[0][token]) if laws else 0.0
            text.append(token)
            anchor = len(prompt) + place - 1
            self._observe((sequence,), hidden, text, range(anchor, anchor + 1), [tree], [Verdict.of(tree, (), token)])
        self._drafter.close(_KEY)

    def _picker(self, sequence: DraftSequence) -> DrawingPicker:
        sampler = RequestSampler(
            SamplingParams(temperature=1.0),
            seed=0,
            choice=0,
            vocabulary=self._vocabulary,
            committed=sequence.tokens,
            prompt_length=sequence.prompt_length,
            end_ids=(),
        )
        stopper = Stopper(SamplingParams(), frozenset(), 2, None)
        turn = SimpleNamespace(request=SimpleNamespace(sampler=sampler, round_number=0), endings=Endings(stopper))
        return DrawingPicker({_KEY: turn}, Draws.INDEPENDENT)  # type: ignore[dict-item]

    def _hidden(self, tokens: Sequence[int]) -> dict[int, torch.Tensor]:
        """The target's rows of a whole text, by the layers that the drafter reads."""
        layers = tuple(sorted(set(self._drafter.needs.hidden_layers)))
        if not layers:
            return {}
        self._cache.extend(_KEY, len(tokens))
        found = []
        for start in range(0, len(tokens), _CHUNK):
            rows = SequenceRows(_KEY, start, tuple(tokens[start : start + _CHUNK]), None)
            batch = TreeBatch.pack([rows], self._target.device)
            # A backend may write the next pass over the rows it has handed out.
            found.append({layer: rows.clone() for layer, rows in self._forward(batch, layers).items()})
        self._cache.release(_KEY)
        return {layer: torch.cat([part[layer] for part in found]) for layer in layers}

    def _forward(self, batch: TreeBatch, layers: tuple[int, ...]) -> dict[int, torch.Tensor]:
        return self._target.forward(batch, self._cache, layers).hidden

    def _observe(
        self,
        sequences: Sequence[DraftSequence],
        hidden: dict[int, torch.Tensor],
        text: Sequence[int],
        rows: range,
        trees: Sequence[Any] = (),
        verdicts: Sequence[Verdict] = (),
    ) -> None:
        """Tell the drafter that rows of the text are committed; its rows are numbered by their positions."""
        kept = Committed(_KEY, text, rows.start, rows)
        output = TargetOutput(torch.empty(0, self._vocabulary), hidden)
        self._drafter.observe(
            SimpleNamespace(sequences=sequences, trees=trees, verdicts=verdicts, output=output, committed=[kept])
        )
