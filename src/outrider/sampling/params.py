"""Sampling parameters of a request, and the bounds of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from outrider.errors import ConfigError
from outrider.grammar import CompiledGrammar, Grammar
from outrider.values import is_token_id, listed, plain

if TYPE_CHECKING:
    import torch

LogitsProcessor = Callable[[Sequence[int], "torch.Tensor"], "torch.Tensor"]
"""A pure function of (token ids so far, float32 logits [vocabulary]) that returns new logits.  It is called for every
row that may emit a token, with that row's own history."""


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen, and where the output ends.

    They apply in this order: allowed tokens, bad words, logit bias, minimum length, custom processors, grammar,
    penalties, temperature, min_p, top_k, top_p.  Temperature 0 takes the best token; among equals, the lowest id.

    Numbers may be scalars of numpy or torch.  A field given as None has its default.

    Raises:
        ConfigError: a value is out of range or has the wrong type; message and ``param`` name the field.
    """

    temperature: float = 0.0
    """Randomness: 0 is greedy, 1 is the model's own distribution."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 or -1 is off."""
    top_p: float = 1.0
    """Nucleus sampling: keep the smallest set of tokens whose probabilities add up to this; 1 is off."""
    min_p: float = 0.0
    """Drop tokens less probable than this share of the most probable one; 0 is off."""
    repetition_penalty: float = 1.0
    """Divide positive and multiply negative logits of tokens in prompt or output (Keskar et al. 2019); 1 is off."""
    presence_penalty: float = 0.0
    """Subtract this from the logit of every token in the output; 0 is off."""
    frequency_penalty: float = 0.0
    """Subtract this from a token's logit for each of its occurrences in the output; 0 is off."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Add these values to the logits of these token ids; minus infinity bans a token. Ids may be text, as in JSON."""
    bad_words: tuple[tuple[int, ...] | str, ...] = ()
    """Never write these: texts, with or without a space before them, or sequences of token ids."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Allow only these token ids; None allows all."""
    min_tokens: int = 0
    """Do not end or stop before this many output tokens."""
    max_tokens: int | None = 256
    """Maximum number of output tokens; None fills the context."""
    stop: tuple[str, ...] = ()
    """One string or several that end the output; they are not part of the text."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the output, in addition to the model's end-of-sequence ids."""
    ignore_eos: bool = False
    """Continue past the model's end-of-sequence ids."""
    skip_special_tokens: bool = True
    """Remove special tokens from the text."""
    seed: int | None = None
    """64-bit seed; None draws one, which the completion reports."""
    logprobs: int | None = None
    """Report log-probabilities of the chosen token and of this many best ones, from raw logits; None is off."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens, except the first."""
    n: int = 1
    """Number of completions per prompt."""
    processors: tuple[LogitsProcessor, ...] = ()
    """One function or several, (history, logits) → logits, called for every row that may emit a token."""
    grammar: Grammar | CompiledGrammar | None = None
    """What the output must look like.  Where it is whole, the output ends: with an end token of the model, or, if none
    is allowed (``ignore_eos``), at once.  ``min_tokens`` does not prolong a whole output; ``stop`` may cut it short."""
    speculate: bool | None = None
    """True drafts, False decodes without drafts; None, or ``auto``, does what the engine does by default."""
    algorithm: str | None = None
    """The drafting method, one of those that the engine has loaded; None is the engine's own."""
    max_draft_tokens: int | None = None
    """Maximum draft tokens per round; 0 decodes without drafts, None leaves it to the method."""
    prediction: str | tuple[int, ...] | None = None
    """A text or token ids that the output probably resembles, such as the file to edit; it changes only the speed."""
    cache_salt: str | None = None
    """Only requests with the same salt reuse each other's cached rows; None is shared by all that name none."""
    priority: int = 0
    """Requests with a lower number are served first, and preempted last."""
    tenant: str | None = None
    """Whose request it is: with equal priority, the tenant with the fewest running requests comes next; None is the
    cache salt."""

    def __post_init__(self) -> None:
        """Convert the values and check their bounds."""
        for item in fields(self):
            given = plain(getattr(self, item.name))
            if given is None and item.name not in _OPTIONAL:
                given = _default(item)
            if given is not None and item.name in _READERS:
                given = _READERS[item.name](item.name, given)
            object.__setattr__(self, item.name, given)
        for name, low, high in _BOUNDS:
            _check_number(name, getattr(self, name), low, high)
        _check_contents(self)

    @property
    def greedy(self) -> bool:
        """Whether the best token is taken, without randomness."""
        return self.temperature == 0.0

    @property
    def prediction_ids(self) -> tuple[int, ...]:
        """The prediction as token ids.

        Raises:
            ConfigError: it is still text.
        """
        if isinstance(self.prediction, str):
            raise ConfigError(
                "prediction as text needs a tokenizer, which this model does not have; give token ids",
                param="prediction",
            )
        return self.prediction or ()

    @property
    def bad_word_ids(self) -> tuple[tuple[int, ...], ...]:
        """The bad words as token ids.

        Raises:
            ConfigError: a bad word is still text.
        """
        words = tuple(word for word in self.bad_words if not isinstance(word, str))
        if len(words) < len(self.bad_words):
            raise ConfigError(
                "bad_words as text need a tokenizer, which this model does not have; give token ids", param="bad_words"
            )
        return words

    def __repr__(self) -> str:
        """The values that differ from the defaults."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        shown = [f"{item.name}={given[item.name]!r}" for item in fields(self) if given[item.name] != _default(item)]
        return f"SamplingParams({', '.join(shown)})"


_INFINITY = math.inf
_COLDEST = 1e-6
"""A lower temperature may overflow float32."""
_MOST_DIGITS: Final = 18
"""Digits of a token id; Python reads no number of thousands."""
_STRONGEST: Final = 1e28
"""A larger bias may overflow float32 after penalties and temperature."""
_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 100.0),
    ("top_k", -1, _INFINITY),
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
    ("max_draft_tokens", 0, _INFINITY),
    ("priority", -(2**31), 2**31 - 1),
)
_OPTIONAL = frozenset(
    {
        *("allowed_token_ids", "max_tokens", "seed", "logprobs", "prompt_logprobs", "cache_salt"),
        *("grammar", "speculate", "algorithm", "max_draft_tokens", "prediction", "tenant"),
    }
)
_WHOLE = frozenset(
    {"top_k", "min_tokens", "max_tokens", "seed", "logprobs", "prompt_logprobs", "n", "max_draft_tokens", "priority"}
)


def _default(item: Any) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _read_items(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or callable(value):
        return (value,)
    try:
        return tuple(listed(value))
    except TypeError:
        raise ConfigError(f"{name} must be a sequence, not {value!r}", param=name) from None


def _read_words(name: str, value: Any) -> tuple[tuple[int, ...] | str, ...]:
    words = _read_items(name, value)
    try:
        return tuple(word if isinstance(word, str) else tuple(listed(word)) for word in words)
    except TypeError:
        raise ConfigError(f"{name} must hold texts or sequences of token ids, not {value!r}", param=name) from None


def _read_top_k(name: str, value: Any) -> Any:
    return 0 if isinstance(value, int) and value == -1 else value


def _read_switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, not {value!r}", param=name)
    return value


def _read_prediction(name: str, value: Any) -> str | tuple[Any, ...]:
    if isinstance(value, str):
        return value
    try:
        return tuple(listed(value))
    except TypeError:
        raise ConfigError(f"{name} must be a text or token ids, not {value!r}", param=name) from None


def _read_speculate(name: str, value: Any) -> bool | None:
    if isinstance(value, str) and value == "auto":
        return None
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True, False, or None for the engine's default, not {value!r}", param=name)
    return value


def _read_algorithm(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(
            f"{name} must be the name of a drafting method, or None for the engine's own, not {value!r}", param=name
        )
    return value.lower().replace("-", "_")


def _read_salt(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} must be a text that is not empty, or None, not {value!r}", param=name)
    return value


def _read_biases(name: str, value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a dict of token ids and numbers, not {value!r}", param=name)
    biases: dict[int, float] = {}
    for given, strength in value.items():
        key, bias = plain(given), plain(strength)
        token = int(key) if isinstance(key, str) and key.isdecimal() and len(key) <= _MOST_DIGITS else key
        if not is_token_id(token):
            raise ConfigError(f"{name} takes token ids ≥ 0, not {given!r}", param=name)
        if token in biases:
            raise ConfigError(f"{name} names token id {token} twice", param=name)
        if isinstance(bias, bool) or not isinstance(bias, (int, float)):
            raise ConfigError(
                f"{name} must map token ids to numbers, but token id {token} has {strength!r}", param=name
            )
        if not (bias == -_INFINITY or abs(bias) <= _STRONGEST):  # also refuses NaN
            raise ConfigError(
                f"{name} must be from {-_STRONGEST:g} to {_STRONGEST:g}, or minus infinity to ban a token, "
                f"but token id {token} has {bias!r}",
                param=name,
            )
        biases[token] = bias
    return biases


def _read_grammar(name: str, value: Any) -> Grammar | CompiledGrammar:
    if not isinstance(value, (Grammar, CompiledGrammar)):
        raise ConfigError(f"{name} must be a Grammar, such as Grammar.regex(…), not {type(value).__name__}", param=name)
    return value


_READERS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "top_k": _read_top_k,
    "logit_bias": _read_biases,
    "bad_words": _read_words,
    "allowed_token_ids": _read_items,
    "stop": _read_items,
    "stop_token_ids": _read_items,
    "processors": _read_items,
    "grammar": _read_grammar,
    "ignore_eos": _read_switch,
    "skip_special_tokens": _read_switch,
    "speculate": _read_speculate,
    "algorithm": _read_algorithm,
    "prediction": _read_prediction,
    "cache_salt": _read_salt,
    "tenant": _read_salt,
}
"""Conversions of fields that accept several types."""


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    if value is None and name in _OPTIONAL:
        return
    wanted = int if name in _WHOLE else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted):
        kind = "a whole number" if name in _WHOLE else "a number"
        raise ConfigError(f"{name} must be {kind}, not {value!r}", param=name)
    if not low <= value <= high:  # also refuses NaN
        upper = "" if high == _INFINITY else f" and at most {high:g}"
        raise ConfigError(f"{name} must be at least {low:g}{upper}, not {value!r}", param=name)


def _check_contents(params: SamplingParams) -> None:
    if 0.0 < params.temperature < _COLDEST:
        raise ConfigError(
            f"temperature must be 0, which is greedy, or at least {_COLDEST:g}, not {params.temperature!r}",
            param="temperature",
        )
    if not all(callable(processor) for processor in params.processors):
        raise ConfigError("processors must hold functions of (history, logits)", param="processors")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise ConfigError(
            f"min_tokens ({params.min_tokens}) must not exceed max_tokens ({params.max_tokens})", param="min_tokens"
        )
    if any(not isinstance(text, str) or not text for text in params.stop):
        raise ConfigError("stop must hold non-empty strings", param="stop")
    if any(not (word.strip() if isinstance(word, str) else word) for word in params.bad_words):
        raise ConfigError("bad_words must hold non-empty texts or token id sequences", param="bad_words")
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise ConfigError("allowed_token_ids must name at least one token id, or be None", param="allowed_token_ids")
    named: dict[str, Sequence[Any]] = {
        "stop_token_ids": params.stop_token_ids,
        "allowed_token_ids": params.allowed_token_ids or (),
        "prediction": () if isinstance(params.prediction, str) else params.prediction or (),
        "bad_words": [token for word in params.bad_words if not isinstance(word, str) for token in word],
    }
    for name, tokens in named.items():
        for token in tokens:
            if not is_token_id(token):
                raise ConfigError(f"{name} takes token ids ≥ 0, not {token!r}", param=name)


def check_token_ids(params: SamplingParams, vocabulary: int) -> None:
    """Refuse parameters with a token id that the model does not have; all texts must be token ids already.

    Raises:
        ConfigError: naming the field, the id and the vocabulary's size.
    """
    named: tuple[tuple[str, Sequence[int]], ...] = (
        ("logit_bias", tuple(params.logit_bias)),
        ("stop_token_ids", params.stop_token_ids),
        ("allowed_token_ids", params.allowed_token_ids or ()),
        ("bad_words", tuple(token for word in params.bad_word_ids for token in word)),
        ("prediction", params.prediction_ids),
    )
    for name, ids in named:
        for token in ids:
            if token >= vocabulary:
                raise ConfigError(f"{name} names token id {token}, but the model has {vocabulary} tokens", param=name)
