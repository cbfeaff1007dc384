"""Turns logits into distributions and tokens, for plain, draft and verify rows alike.

A row's distribution depends on its history: *committed tokens + drafts on the row's own path*.  Penalties, bad words,
minimum length and custom processors read this history, so a draft is judged exactly as in plain decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, overload

import torch

from outrider.errors import NumericsError, RequestError
from outrider.grammar import FREE, Allowed, GrammarEnded, GrammarState, compiled
from outrider.law import Laws
from outrider.sampling.best import ChoiceNoise, best_scores, check, survivors
from outrider.sampling.distribution import KEEP_ALL, Truncation, softmax, undefined
from outrider.sampling.params import LogitsProcessor, SamplingParams

_COMPARED: Final = 16
"""Number of perturbed scores in the softmax of a drafter's confidence."""
Best = tuple[list[int], list[float]]
"""Tokens, best first, with a confidence each."""
Path = Sequence[int]
"""Draft tokens after the last committed token up to a row, the row's own included; empty for the anchor."""


class History(Sequence[int]):
    """Token ids up to a row: a view of committed tokens and path."""

    def __init__(self, committed: Sequence[int], path: Path) -> None:
        self._committed, self._path = committed, path

    def __len__(self) -> int:
        return len(self._committed) + len(self._path)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        cut = len(self._committed)
        return self._committed[index] if index < cut else self._path[index - cut]


class RequestSampler:
    """Turns logits rows of one request into tokens or probabilities.

    Args:
        params: the sampling parameters.
        seed: the request's 64-bit seed.
        choice: index among the ``n`` completions of the prompt.
        vocabulary: size of the vocabulary; larger ids are never chosen.
        committed: the request's token ids, prompt first; a live view that the scheduler extends.
        prompt_length: number of prompt tokens.
        end_ids: token ids that end the output; banned before ``min_tokens``.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        choice: int,
        vocabulary: int,
        committed: Sequence[int],
        prompt_length: int,
        end_ids: Iterable[int],
    ) -> None:
        self.params, self.seed, self.choice, self.vocabulary = params, seed, choice, vocabulary
        self._committed, self._prompt_length = committed, prompt_length
        self._end_ids = torch.tensor(sorted(end_ids), dtype=torch.int64)
        self.grammar = (
            None
            if params.grammar is None
            else GrammarState(compiled(params.grammar), committed, prompt_length, vocabulary, self._end_ids.tolist())
        )
        """Where the output stands in its grammar; None allows everything."""
        self._bias_ids = torch.tensor(sorted(params.logit_bias), dtype=torch.int64)
        self._bias = torch.tensor([params.logit_bias[int(i)] for i in self._bias_ids], dtype=torch.float32)
        self._bad_words = params.bad_word_ids
        self._counts = _TokenCounts(vocabulary) if _has_penalties(params) else None
        if self._counts is not None:
            self._counts.add_prompt(committed[:prompt_length])
        self.adjusts = bool(
            self._counts is not None
            or params.logit_bias
            or self._bad_words
            or params.allowed_token_ids is not None
            or params.processors
            or self.grammar is not None
            or (params.min_tokens > 0 and len(self._end_ids))
        )
        """Whether anything changes the logits before the temperature."""
        self._temperature = 1.0 if params.greedy else params.temperature
        self._truncation = KEEP_ALL if params.greedy else Truncation(params.top_k, params.top_p, params.min_p)
        self.choice_of = None if self.adjusts else (params.greedy, self._temperature, self._truncation, vocabulary)
        """Parameters by which rows can share a call; None if the logits need more processing."""
        self.is_argmax = params.greedy and not self.adjusts
        """Whether a row's token is the argmax of its raw logits."""
        plain = not (params.greedy or self.adjusts) and self._truncation.keeps_all
        self.temperature_alone = params.temperature if plain else None
        """The temperature, if nothing else changes the logits; otherwise None."""

    def commit(self, tokens: Sequence[int]) -> None:
        """Add emitted tokens to the penalty counts."""
        if self._counts is not None:
            self._counts.add_output(tokens)

    def position(self, path: Path) -> int:
        """Absolute position of the token that follows a path."""
        return len(self._committed) + len(path)

    def choose(self, logits: torch.Tensor, paths: Sequence[Path]) -> list[int]:
        """Choose the target's own token after each row, given its draft path.

        Returns:
            One token id per row: ``argmax(logit / T + Gumbel(seed, position))``, or the plain argmax at temperature 0.

        Raises:
            NumericsError: a row holds NaN or infinity.
            RequestError: every token is banned, or a processor failed.
        """
        ids, _ = self._best(self._adjusted(logits, paths), paths, 1)
        return [int(token) for token in ids[:, 0].tolist()]

    def perturbed_best(self, logits: torch.Tensor, paths: Sequence[Path], width: int) -> list[Best]:
        """Find the ``width`` best tokens of each row under the target's own noise, best first, with confidences.

        A drafter of the coupled rule proposes them; the first is its guess of the target's choice.  The confidence is
        the softmax over the best perturbed scores.
        """
        best = self._best(self._adjusted(logits, paths), paths, min(max(width, _COMPARED), self.vocabulary))
        return _with_confidence(*best, width)

    def probabilities(self, logits: torch.Tensor, paths: Sequence[Path]) -> Laws:
        """Compute each row's distribution after all processing; at temperature 0 it is one-hot."""
        adjusted = self._adjusted(logits, paths)
        scaled = adjusted / self._temperature
        if not self.params.greedy and self._truncation.keeps_all:
            laws = softmax(scaled)
            if any(map(undefined, laws)):
                check(scaled)
            return laws
        check(scaled)
        result = torch.zeros(len(paths), self.vocabulary, dtype=torch.float64)
        if self.params.greedy:
            return result.scatter_(1, adjusted.argmax(dim=1).cpu().unsqueeze(1), 1.0).numpy()
        for out, row, over in zip(result, adjusted, scaled, strict=True):
            ids = survivors(row, self._temperature, self._truncation)
            out[ids.cpu()] = torch.softmax(over[ids].double(), 0).cpu()
        return result.numpy()

    def _best(self, adjusted: torch.Tensor, paths: Sequence[Path], width: int) -> tuple[torch.Tensor, torch.Tensor]:
        positions = [self.position(path) for path in paths]
        noise = None if self.params.greedy else ChoiceNoise.of(self.seed, positions, self.choice)
        return best_scores(adjusted, self.vocabulary, self._temperature, noise, width, self._truncation)

    def _adjusted(self, logits: torch.Tensor, paths: Sequence[Path]) -> torch.Tensor:
        """Float32 logits [rows, vocabulary] after everything that precedes the temperature."""
        adjusted = logits[:, : self.vocabulary].float()
        if not self.adjusts:
            return adjusted
        if adjusted.data_ptr() == logits.data_ptr():
            adjusted = adjusted.clone()
        rows = torch.stack([self._adjust(row, path) for row, path in zip(adjusted, paths, strict=True)])
        if self.params.processors:
            _check_processed(logits[:, : self.vocabulary], rows)
        return rows

    def _adjust(self, row: torch.Tensor, path: Path) -> torch.Tensor:
        params, device = self.params, row.device
        grammar = FREE if self.grammar is None else self.grammar.allowed(path)
        if params.allowed_token_ids is not None:
            allowed = torch.tensor(params.allowed_token_ids, device=device)
            row = torch.full_like(row, -torch.inf).index_copy(0, allowed, row[allowed])
        history = History(self._committed, path)
        for word in self._bad_words:
            if len(history) >= len(word) - 1 and _ends_with(history, word[:-1]):
                row[word[-1]] = -torch.inf
        if len(self._bias_ids):
            row[self._bias_ids.to(device)] += self._bias.to(device)
        if len(history) - self._prompt_length < params.min_tokens and not grammar.complete:
            row[self._end_ids.to(device)] = -torch.inf
        for processor in params.processors:
            row = _processed(processor, history, row)
        row = _within(grammar, row)
        if self._counts is not None:
            row = self._counts.penalise(row, path, params)
        return row


class RowToRank(NamedTuple):
    """A row of logits, and the request that ranks its tokens."""

    sampler: RequestSampler
    row: int
    path: Path
    """Draft tokens after the last committed token, up to the row."""
    width: int
    """Number of tokens."""


def perturbed_best(logits: torch.Tensor, asked: Sequence[RowToRank]) -> list[Best | None]:
    """:meth:`RequestSampler.perturbed_best` for rows of many requests, with one call per set of equal parameters.

    Returns:
        One answer per asked row; None if the request needs a call of its own, because it adjusts its logits or another
        row of its group is unreadable.
    """
    answers: list[Best | None] = [None] * len(asked)
    for places, best, scores in _ranked(logits, asked, _COMPARED):
        for place, answer in zip(places, _with_confidence(best, scores, asked[places[0]].width), strict=True):
            answers[place] = answer
    return answers


def chosen(logits: torch.Tensor, asked: Sequence[RowToRank]) -> list[int | None]:
    """:meth:`RequestSampler.choose` for rows of many requests; arguments and result as for :func:`perturbed_best`."""
    answers: list[int | None] = [None] * len(asked)
    for places, best, _ in _ranked(logits, asked, 1):
        for place, token in zip(places, best[:, 0].tolist(), strict=True):
            answers[place] = token
    return answers


def _ranked(
    logits: torch.Tensor, asked: Sequence[RowToRank], least: int
) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
    """Yield groups of rows with equal parameters, with their ``least`` or more best ids and scores."""
    alike: dict[Any, list[int]] = {}
    for place, one in enumerate(asked):
        if one.sampler.choice_of is not None:
            alike.setdefault((one.width, *one.sampler.choice_of), []).append(place)
    for (width, greedy, temperature, truncation, vocabulary), places in alike.items():
        group = [asked[place] for place in places]
        noise = None
        if not greedy:
            seeds, choices = [one.sampler.seed for one in group], [one.sampler.choice for one in group]
            noise = ChoiceNoise(seeds, [one.sampler.position(one.path) for one in group], choices)
        rows, most = [one.row for one in group], min(max(width, least), vocabulary)
        with suppress(NumericsError, RequestError):
            if logits.dtype is torch.float32:
                yield places, *best_scores(logits, vocabulary, temperature, noise, most, truncation, rows)
            else:
                yield places, *best_scores(logits[rows].float(), vocabulary, temperature, noise, most, truncation)


def _with_confidence(best: torch.Tensor, scores: torch.Tensor, width: int) -> list[Best]:
    """The first ``width`` tokens of each row, with the softmax of their scores over all found tokens."""
    shares = torch.softmax(scores, dim=1)[:, :width].tolist()
    found = []
    for tokens, share in zip(best[:, :width].tolist(), shares, strict=True):
        count = tokens.index(-1) if tokens[-1] < 0 else len(tokens)
        found.append((tokens[:count], share[:count]))
    return found


class _TokenCounts:
    """Counts of each token in prompt and output, updated with every commit."""

    def __init__(self, vocabulary: int) -> None:
        self._in_prompt = torch.zeros(vocabulary, dtype=torch.bool)
        self._in_output = torch.zeros(vocabulary, dtype=torch.float32)

    def add_prompt(self, tokens: Sequence[int]) -> None:
        self._in_prompt[torch.tensor(list(tokens), dtype=torch.int64)] = True

    def add_output(self, tokens: Sequence[int]) -> None:
        ids = torch.tensor(list(tokens), dtype=torch.int64)
        self._in_output.index_add_(0, ids, torch.ones(len(ids)))

    def penalise(self, row: torch.Tensor, path: Path, params: SamplingParams) -> torch.Tensor:
        counts = self._in_output
        if path:
            ids = torch.tensor(list(path), dtype=torch.int64)
            counts = counts.index_add(0, ids, torch.ones(len(ids)))
        counts = counts.to(row.device)
        seen = self._in_prompt.to(row.device) | (counts > 0)
        factor = params.repetition_penalty
        repeated = torch.where(row > 0, row / factor, row * factor)
        row = torch.where(seen, repeated, row)
        return row - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)


def _within(grammar: Allowed, row: torch.Tensor) -> torch.Tensor:
    """Ban what a grammar does not allow; GrammarEnded if the output is whole and nothing may end it."""
    if grammar.banned is None:
        return row
    row = row.masked_fill(grammar.banned.to(row.device), -torch.inf)
    if grammar.complete and bool((row == -torch.inf).all()):
        raise GrammarEnded("the grammar has ended")
    return row


def _processed(processor: LogitsProcessor, history: History, row: torch.Tensor) -> torch.Tensor:
    name = getattr(processor, "__name__", type(processor).__name__)
    try:
        processed = processor(history, row)
        if isinstance(processed, torch.Tensor) and processed.shape == row.shape:
            return processed.to(row)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # even SystemExit ends only its own request
        raise RequestError(f"the logits processor {name} failed with {type(error).__name__}: {error}") from error
    raise RequestError(f"the logits processor {name} must return logits of shape {tuple(row.shape)}")


def _check_processed(logits: torch.Tensor, processed: torch.Tensor) -> None:
    """Refuse NaN and infinity that came from the processors."""
    for before, after in zip(logits, processed, strict=True):
        best = after.max()  # NaN where one entry is
        if not torch.isfinite(best) and best != -torch.inf and torch.isfinite(before.max()):
            raise RequestError("a logits processor returned NaN or infinity; use minus infinity to ban a token")


def _has_penalties(params: SamplingParams) -> bool:
    return bool(params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty)


def _ends_with(history: History, tail: Sequence[int]) -> bool:
    offset = len(history) - len(tail)
    return all(history[offset + i] == token for i, token in enumerate(tail))
