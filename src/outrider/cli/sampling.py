"""Sampling flags: every sampling parameter that a command line can express."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from outrider.cli.help import MORE_SAMPLING, SAMPLING
from outrider.cli.numbers import WHOLE, WHOLE_OR_NONE
from outrider.errors import ConfigError, cause
from outrider.grammar import Grammar
from outrider.sampling.params import SamplingParams

_IDS: Final = re.compile(r"\s*\d+\s*(,\s*\d+\s*)*,?\s*", re.ASCII)
_FRACTION: Final = Parameter(metavar="P")
_NUMBER: Final = Parameter(metavar="X")
_MORE: Final = Parameter(group=MORE_SAMPLING)
_MANY: Final = Parameter(group=MORE_SAMPLING, negative="")


@Parameter(name="*", group=SAMPLING)
@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """How tokens are chosen."""

    max_tokens: Annotated[int | None, WHOLE_OR_NONE] = None
    """Maximum tokens per answer; default: no limit."""
    temperature: Annotated[float, _NUMBER] = 0.0
    """Randomness: 0 is greedy, 1 the model's own."""
    top_p: Annotated[float, _FRACTION] = 1.0
    """Nucleus sampling: keep this much probability."""
    top_k: Annotated[int, WHOLE] = 0
    """Keep the K most probable tokens; 0 is off."""
    seed: Annotated[int | None, WHOLE_OR_NONE] = None
    """Same seed, same text; default: a random one."""
    stop: Annotated[list[str], Parameter(negative="", metavar="TEXT")] = field(default_factory=list)
    """Stop at this text; repeatable."""
    min_p: Annotated[float, _FRACTION, _MORE] = 0.0
    """Drop tokens below P × the best probability."""
    repetition_penalty: Annotated[float, _NUMBER, _MORE] = 1.0
    """Above 1 discourages repeated tokens."""
    presence_penalty: Annotated[float, _NUMBER, _MORE] = 0.0
    """Subtract X from tokens in the output."""
    frequency_penalty: Annotated[float, _NUMBER, _MORE] = 0.0
    """The same, once for each occurrence."""
    logit_bias: Annotated[list[str], _MANY, Parameter(metavar="ID=X")] = field(default_factory=list)
    """Add X to the logit of token ID; repeatable."""
    allowed_token_ids: Annotated[str | None, Parameter(metavar="IDS"), _MORE] = None
    """Allow only these token ids, such as 5,42."""
    bad_words: Annotated[list[str], _MANY, Parameter(metavar="WORD")] = field(default_factory=list)
    """Never write this text or ids 1,2; repeatable."""
    min_tokens: Annotated[int, WHOLE, _MORE] = 0
    """Do not stop before N tokens."""
    stop_token_ids: Annotated[str, Parameter(metavar="IDS"), _MORE] = ""
    """Stop at these token ids, such as 5,42."""
    ignore_eos: Annotated[bool, _MANY] = False
    """Continue past the model's end-of-text token."""
    show_special_tokens: Annotated[bool, _MANY] = False
    """Keep special tokens in the text."""
    json_schema: Annotated[str | None, _MORE, Parameter(metavar="FILE|JSON")] = None
    """Write JSON that this schema accepts."""
    regex: Annotated[str | None, _MORE, Parameter(metavar="PATTERN")] = None
    """Write a text that this expression matches."""
    grammar: Annotated[str | None, _MORE, Parameter(metavar="FILE|TEXT")] = None
    """Write a text of this Lark or GBNF grammar."""

    def params(self) -> SamplingParams:
        """These flags as the library's sampling parameters.

        Raises:
            ConfigError: a value is out of range or malformed.
        """
        known = {item.name for item in dataclasses.fields(SamplingParams)}
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self) if item.name in known}
        read = {name: read(values[name]) for name, read in _READERS.items()}
        read["grammar"] = self._grammar()
        return SamplingParams(**values | read, skip_special_tokens=not self.show_special_tokens)

    def _grammar(self) -> Grammar | None:
        made = {
            "--json-schema": None if self.json_schema is None else Grammar.json_schema(_content(self.json_schema)),
            "--regex": None if self.regex is None else Grammar.regex(self.regex),
            "--grammar": None if self.grammar is None else Grammar.lark(_content(self.grammar)),
        }
        given = {flag: grammar for flag, grammar in made.items() if grammar is not None}
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} say two things about one text; give one of them")
        return next(iter(given.values()), None)


@Parameter(name="*", group=SAMPLING)
@dataclass(frozen=True, kw_only=True)
class CompletionFlags(SamplingFlags):
    """How the tokens of one completion are chosen."""

    max_tokens: Annotated[int | None, WHOLE_OR_NONE] = 256
    """Maximum tokens; none fills the context."""
    n: Annotated[int, WHOLE] = 1
    """Number of completions."""
    logprobs: Annotated[int | None, WHOLE_OR_NONE, _MORE] = None
    """Print log-probabilities and the N best tokens."""
    prompt_logprobs: Annotated[int | None, WHOLE_OR_NONE, _MORE] = None
    """The same for the tokens of the prompt."""


def _ids(flag: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"{flag} takes token ids separated by commas, such as 5,42, not {text!r}") from None


def _content(given: str) -> str:
    """The text of a file, or the text that was given in its place."""
    if any(sign in given for sign in "{}:=\n"):
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {given}: {cause(error)}") from None


def _word(text: str) -> str | tuple[int, ...]:
    """Token ids separated by commas, or a text for the tokenizer."""
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
"""How flags whose type differs from the parameter's are read."""
