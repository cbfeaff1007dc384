"""Checks a prompt and its parameters, and makes a request of them."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from outrider.errors import ConfigError, RequestError, counted
from outrider.requests.request import Request
from outrider.requests.stopping import Stopper
from outrider.sampling.params import SamplingParams, check_token_ids
from outrider.sampling.sampler import RequestSampler

if TYPE_CHECKING:
    from outrider.models.files.tokenizer import Tokenizer

TOO_LONG: Final = "context_length_exceeded"
"""The code of errors about a prompt that leaves no room in the context."""
_DRAWN_BITS: Final = 53
"""A drawn seed is reported, and JSON's readers keep no more bits of a number."""


def admit(
    key: str,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    choice: int,
    seed: int | None,
    tokenizer: Tokenizer | None,
    vocabulary: int,
    longest: int,
) -> Request:
    """Make a request, or say in one sentence why not.

    Args:
        key: names the request.
        prompt: token ids.
        params: what is asked of the output.
        choice: index among the ``n`` completions.
        seed: 64-bit seed; None takes the parameters' or draws one.
        tokenizer: makes text and names end-of-sequence ids.
        vocabulary: token ids at or past this do not exist.
        longest: most tokens prompt and output may have together.

    Raises:
        RequestError: the prompt is empty, names an unknown token, or leaves no room in the context.
        ConfigError: the parameters name a token the model does not have, or text where there is no tokenizer.
    """
    params = in_tokens(params, tokenizer)
    _check(prompt, params, tokenizer, vocabulary, longest)
    if seed is None:
        seed = secrets.randbits(_DRAWN_BITS) if params.seed is None else params.seed
    seed %= 2**64
    inputs, ends = list(prompt), frozenset(params.stop_token_ids)
    limit = longest if params.max_tokens is None else min(longest, len(inputs) + params.max_tokens)
    if tokenizer is not None and not params.ignore_eos:
        ends |= tokenizer.eos_ids
    sampler = RequestSampler(
        params if limit > len(inputs) else SamplingParams(),  # where no token is to come, nobody is asked about one
        seed=seed,
        choice=choice,
        vocabulary=vocabulary,
        committed=inputs,
        prompt_length=len(inputs),
        end_ids=(end for end in ends if end < vocabulary),
    )
    stream = tokenizer.stream(params.skip_special_tokens) if tokenizer else None
    return Request(
        id=key,
        inputs=inputs,
        prompt_length=len(inputs),
        params=params,
        seed=seed,
        choice=choice,
        limit=limit,
        sampler=sampler,
        stopper=Stopper(params, ends, limit - len(inputs), stream),
        most_nodes=_most_nodes(params),
        prediction=params.prediction_ids[:longest],  # no output is longer
        prompt_logprobs=[] if params.prompt_logprobs is None or choice else [None],
    )


def bad_word_ids(words: Sequence[Sequence[int] | str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Bad words as token ids; a text counts both at the beginning of a text and after a space.

    Args:
        words: texts or token ids.
        tokenizer: the model's own.

    Raises:
        ConfigError: a text holds no token.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip() if isinstance(word, str) else ""
        spelled = [word] if not isinstance(word, str) else [tokenizer.encode(s, False) for s in (bare, f" {bare}")]
        found |= {tuple(ids): None for ids in spelled if ids}
        if not any(spelled):
            raise ConfigError(f"bad_words names {word!r}, which is no token of this model", param="bad_words")
    return tuple(found)


def in_tokens(params: SamplingParams, tokenizer: Tokenizer | None) -> SamplingParams:
    """The same parameters with bad words and prediction as token ids; without a tokenizer nothing changes.

    Raises:
        ConfigError: a bad word holds no token.
    """
    if tokenizer is None:
        return params
    if isinstance(params.prediction, str):
        params = replace(params, prediction=tuple(tokenizer.encode(params.prediction, add_special_tokens=False)))
    if any(isinstance(word, str) for word in params.bad_words):
        params = replace(params, bad_words=bad_word_ids(params.bad_words, tokenizer))
    return params


def _most_nodes(params: SamplingParams) -> int:
    """Most nodes of a draft tree that the user allows, anchor included."""
    if params.speculate is False:
        return 1
    return sys.maxsize if params.max_draft_tokens is None else 1 + params.max_draft_tokens


def _check(
    prompt: Sequence[int], params: SamplingParams, tokenizer: Tokenizer | None, vocabulary: int, longest: int
) -> None:
    check_token_ids(params, vocabulary)
    if params.stop and tokenizer is None:
        raise ConfigError(
            "stop needs text, but this model was given without a tokenizer; use stop_token_ids", param="stop"
        )
    if not prompt:
        raise RequestError("the prompt is empty; give it at least one token", param="prompt")
    outputs = 1 if params.max_tokens is None else min(1, params.max_tokens)
    if len(prompt) + outputs > longest:
        told = f"the prompt has {counted(len(prompt), 'token')}"
        told += f", but the context holds {longest} and the output needs one; shorten it"
        raise RequestError(told, param="prompt", code=TOO_LONG)
    for token in prompt:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
            told = f"the prompt holds token id {token!r}, but the model has ids 0 to {vocabulary - 1}"
            raise RequestError(told, param="prompt")
