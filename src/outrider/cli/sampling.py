"""Flags of how tokens are chosen: every field of the sampling parameters that a command line can hold."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from cyclopts import Parameter

from outrider.cli.help import SAMPLING
from outrider.errors import ConfigError
from outrider.sampling.params import SamplingParams

_IDS: Final = re.compile(r"\s*\d+\s*(,\s*\d+\s*)*,?\s*", re.ASCII)
_N: Final = Parameter(metavar="N")
_FRACTION: Final = Parameter(metavar="P")
_NUMBER: Final = Parameter(metavar="X")


@Parameter(name="*", group=SAMPLING)
@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """How tokens are chosen."""

    temperature: Annotated[float, _NUMBER] = 0.0
    """Divides the logits; 0 is greedy."""
    top_p: Annotated[float, _FRACTION] = 1.0
    """Keep the likeliest tokens up to this mass."""
    top_k: Annotated[int, _N] = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    min_p: Annotated[float, _FRACTION] = 0.0
    """Drop what is below this share of the likeliest."""
    repetition_penalty: Annotated[float, _NUMBER] = 1.0
    """Weakens tokens of prompt and output."""
    presence_penalty: Annotated[float, _NUMBER] = 0.0
    """Weakens tokens the output holds."""
    frequency_penalty: Annotated[float, _NUMBER] = 0.0
    """The same, once for each time."""
    logit_bias: Annotated[list[str], Parameter(negative="", metavar="ID=X")] = field(default_factory=list)
    """Add X to a token's logit; repeatable."""
    allowed_token_ids: Annotated[str | None, Parameter(metavar="IDS")] = None
    """Only these tokens, separated by commas."""
    bad_words: Annotated[list[str], Parameter(negative="", metavar="WORD")] = field(default_factory=list)
    """Never this word, or token ids 1,2; repeatable."""
    seed: Annotated[int | None, _N] = None
    """Makes sampled text reproducible."""
    max_tokens: Annotated[int | None, _N] = None
    """Most tokens of an answer; else there is no limit."""
    min_tokens: Annotated[int, _N] = 0
    """No end before so many tokens."""
    stop: Annotated[list[str], Parameter(negative="", metavar="TEXT")] = field(default_factory=list)
    """Text that ends the output; repeatable."""
    stop_token_ids: Annotated[str, Parameter(metavar="IDS")] = ""
    """Tokens that end it, separated by commas."""
    ignore_eos: Annotated[bool, Parameter(negative="")] = False
    """Go on past the model's own end."""
    show_special_tokens: Annotated[bool, Parameter(negative="")] = False
    """Leave special tokens in the text."""

    def params(self) -> SamplingParams:
        """The same as sampling parameters.

        Raises:
            ConfigError: a value out of range, or one that cannot be read.
        """
        known = {item.name for item in dataclasses.fields(SamplingParams)}
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self) if item.name in known}
        read = {name: read(values[name]) for name, read in _READERS.items()}
        return SamplingParams(**values | read, skip_special_tokens=not self.show_special_tokens)


@Parameter(name="*", group=SAMPLING)
@dataclass(frozen=True, kw_only=True)
class CompletionFlags(SamplingFlags):
    """How tokens are chosen where one prompt is completed."""

    max_tokens: Annotated[int | None, _N] = 256
    """Most tokens; none goes on to the end."""
    n: Annotated[int, _N] = 1
    """How many completions."""
    logprobs: Annotated[int | None, _N] = None
    """Tell log-probabilities, beside the N best."""
    prompt_logprobs: Annotated[int | None, _N] = None
    """The same for the prompt's tokens."""


def _ids(flag: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"{flag} takes token ids separated by commas, not {text!r}") from None


def _word(text: str) -> str | tuple[int, ...]:
    """Token ids separated by commas, or a text, which the model's tokenizer reads."""
    return _ids("--bad-words", text) if _IDS.fullmatch(text) else text


def _biases(given: list[str]) -> dict[int, float]:
    biases = {}
    for text in given:
        token, _, bias = text.partition("=")
        try:
            biases[int(token)] = float(bias)
        except ValueError:
            raise ConfigError(f"--logit-bias takes a token id and a number, such as 42=-1.5, not {text!r}") from None
    return biases


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "logit_bias": _biases,
    "allowed_token_ids": lambda text: None if text is None else _ids("--allowed-token-ids", text),
    "bad_words": lambda given: tuple(_word(text) for text in given),
    "stop": tuple,
    "stop_token_ids": lambda text: _ids("--stop-token-ids", text),
}
"""How what a shell can hold becomes what the parameters hold."""
