"""What a user may ask of the tokens of one request, and the bounds of each field."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outrider.errors import ConfigError

if TYPE_CHECKING:
    import torch

LogitsProcessor = Callable[[Sequence[int], "torch.Tensor"], "torch.Tensor"]
"""A pure function of (token ids so far, float32 logits [vocabulary]) that returns new logits; called for every row
a token may be taken from, with the history of that row's own path."""


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen and where they end.

    The order is: allowed tokens, bad words, logit bias and minimum length, custom processors, penalties; then
    temperature, min_p, top_k, top_p.  Temperature 0 takes the best token, the lowest id among equals.
    """

    temperature: float = 0.0
    """Divides the logits; 0 is greedy."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most probable tokens whose mass reaches this; 1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less probable than this share of the most probable one; 0 drops none."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output (Keskar et al. 2019); 1 is off."""
    presence_penalty: float = 0.0
    """Taken off the logit of every token the output holds already."""
    frequency_penalty: float = 0.0
    """Taken off the logit of a token once per time the output holds it."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token id sequences that may not be completed."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these token ids may be chosen; None allows all."""
    min_tokens: int = 0
    """End-of-sequence and stops are impossible before this many output tokens."""
    max_tokens: int | None = 256
    """Most output tokens; None goes on to the end of the context."""
    stop: tuple[str, ...] = ()
    """Strings that end the output when completed; they are not part of the text."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the output, beside the model's own end-of-sequence ids."""
    ignore_eos: bool = False
    """Go on past the model's end-of-sequence ids."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    seed: int | None = None
    """64-bit seed of the request; None draws one, which the completion reports."""
    logprobs: int | None = None
    """Report this many most probable tokens beside each chosen one, from the unprocessed logits; None reports none."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens; the first has none."""
    n: int = 1
    """How many completions of the prompt."""
    processors: tuple[LogitsProcessor, ...] = ()
    """Pure functions (history, logits) → logits, run on every row that may emit a token."""
    speculate: bool = True
    """False makes this request decode plainly, whatever the engine's drafter."""

    def __post_init__(self) -> None:
        """Refuse every value out of range, naming the field."""
        for name in ("stop", "stop_token_ids", "bad_words", "processors"):
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name)))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", _as_tuple("allowed_token_ids", self.allowed_token_ids))
        for name, low, high in _BOUNDS:
            _check_number(name, getattr(self, name), low, high)
        _check_contents(self)

    @property
    def greedy(self) -> bool:
        """Whether the best token is taken with no dice."""
        return self.temperature == 0.0


_INFINITY = math.inf
_COLDEST = 1e-6
"""Logits over less than this may leave float32."""
_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 100.0),
    ("top_k", 0, _INFINITY),
    ("top_p", 1e-9, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 1e-3, 1e3),
    ("presence_penalty", -100.0, 100.0),
    ("frequency_penalty", -100.0, 100.0),
    ("min_tokens", 0, _INFINITY),
    ("max_tokens", 0, _INFINITY),
    ("seed", -(2**63), 2**64 - 1),
    ("logprobs", 0, 1024),
    ("prompt_logprobs", 0, 1024),
    ("n", 1, 4096),
)
_OPTIONAL = frozenset({"max_tokens", "seed", "logprobs", "prompt_logprobs"})
_WHOLE = frozenset({"top_k", "min_tokens", "max_tokens", "seed", "logprobs", "prompt_logprobs", "n"})


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return (value,)
    try:
        items = tuple(value)
    except TypeError:
        raise ConfigError(f"{name} must be a sequence, not {value!r}") from None
    if name != "bad_words":
        return items
    if not all(isinstance(item, Iterable) for item in items):
        raise ConfigError(f"bad_words must hold sequences of token ids, not {items!r}")
    return tuple(tuple(item) for item in items)


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    if value is None and name in _OPTIONAL:
        return
    wanted = int if name in _WHOLE else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted):
        kind = "a whole number" if name in _WHOLE else "a number"
        raise ConfigError(f"{name} must be {kind}, not {value!r}")
    if not low <= value <= high:  # also refuses NaN
        upper = "" if high == _INFINITY else f" and at most {high:g}"
        raise ConfigError(f"{name} must be at least {low:g}{upper}, not {value!r}")


def _check_contents(params: SamplingParams) -> None:
    if 0.0 < params.temperature < _COLDEST:
        raise ConfigError(
            f"temperature must be 0, which is greedy, or at least {_COLDEST:g}, not {params.temperature!r}"
        )
    biases = params.logit_bias
    if not isinstance(biases, Mapping) or not all(isinstance(bias, (int, float)) for bias in biases.values()):
        raise ConfigError(f"logit_bias must map token ids to numbers, not be {biases!r}")
    if not all(callable(processor) for processor in params.processors):
        raise ConfigError("processors must hold functions of (history, logits)")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise ConfigError(f"min_tokens ({params.min_tokens}) must not exceed max_tokens ({params.max_tokens})")
    if any(not isinstance(text, str) or not text for text in params.stop):
        raise ConfigError("stop must hold non-empty strings")
    if any(not word for word in params.bad_words):
        raise ConfigError("bad_words must hold non-empty token id sequences")
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise ConfigError("allowed_token_ids must name at least one token id, or be None")
    ids = [
        *params.logit_bias,
        *params.stop_token_ids,
        *(params.allowed_token_ids or ()),
        *(token for word in params.bad_words for token in word),
    ]
    if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in ids):
        raise ConfigError("logit_bias, stop_token_ids, allowed_token_ids and bad_words take token ids ≥ 0")
    if any(not math.isfinite(bias) and bias != -_INFINITY for bias in biases.values()):
        raise ConfigError("logit_bias must hold finite numbers or minus infinity")


def check_token_ids(params: SamplingParams, vocabulary: int) -> None:
    """Refuse parameters that name a token id the model does not have.

    Raises:
        ConfigError: naming the field, the id and the vocabulary size.
    """
    named: tuple[tuple[str, Sequence[int]], ...] = (
        ("logit_bias", tuple(params.logit_bias)),
        ("stop_token_ids", params.stop_token_ids),
        ("allowed_token_ids", params.allowed_token_ids or ()),
        ("bad_words", tuple(token for word in params.bad_words for token in word)),
    )
    for name, ids in named:
        for token in ids:
            if token >= vocabulary:
                raise ConfigError(f"{name} names token id {token}, but the model has {vocabulary} tokens")
