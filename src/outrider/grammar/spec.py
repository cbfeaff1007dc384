"""What an output must look like, as users say it: a JSON schema, a regular expression, a grammar, or some texts."""

from __future__ import annotations

import enum
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from outrider.errors import ConfigError, counted

MOST_CHARACTERS: Final = 1 << 18
"""Most characters of a grammar; compiling takes about a second for the largest."""
_MOST_STATES: Final = 10_000
"""Most states that divisibility may take: a lexer of ``multipleOf: n`` has about n, in time and memory."""
_MULTIPLE: Final = re.compile(r'"multipleOf"\s*:\s*([-+0-9.eE]+)')
_ESCAPED: Final = re.compile(r"\\u00([2-7][0-9a-fA-F])")


class Kind(enum.Enum):
    """In which language a grammar is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True)
class Grammar:
    """What an output must look like; make one with :meth:`json_schema`, :meth:`regex`, :meth:`lark` or another.

    The prompt is not part of it: the grammar begins with the first token of the output.

    Raises:
        ConfigError: the text is too long, or is not written as it should be.
    """

    kind: Kind
    """The language of ``source``."""
    source: str
    """The schema, the expression or the rules."""
    any_whitespace: bool = True
    """For JSON: whether whitespace is free between its parts."""

    def __post_init__(self) -> None:
        """Check the size, and what would take too long to compile."""
        if len(self.source) > MOST_CHARACTERS:
            raise ConfigError(
                f"the grammar has {len(self.source)} characters; {MOST_CHARACTERS} are the most, so make it smaller"
            )
        if any("\ud800" <= letter <= "\udfff" for letter in self.source):
            raise ConfigError("the grammar holds half a surrogate pair, which is no character; remove it")
        if self.kind is not Kind.REGEX:
            _check_multiples(self.source)

    @classmethod
    def json_object(cls) -> Grammar:
        """Allow any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str, *, any_whitespace: bool = True) -> Grammar:
        """Allow JSON that a schema accepts.

        Args:
            schema: the JSON schema, or its text.
            any_whitespace: allow any whitespace between the parts; False writes one blank after ``:`` and ``,`` and no
                other, so that the grammar forces more tokens, which are then drafted for free.

        Raises:
            ConfigError: it is no JSON, or too large.
        """
        return cls(Kind.JSON_SCHEMA, _schema_text(schema), any_whitespace)

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Allow texts that a regular expression matches wholly.

        Args:
            pattern: in the syntax of Rust's ``regex``, but digits are those of ASCII.
        """
        return cls(Kind.REGEX, _text(pattern, "a regular expression"))

    @classmethod
    def lark(cls, rules: str) -> Grammar:
        """Allow texts of a context-free grammar, in the Lark dialect of ``llguidance`` or as GBNF (``root ::= …``)."""
        return cls(Kind.LARK, _text(rules, "a grammar"))

    @classmethod
    def choice(cls, texts: Iterable[str]) -> Grammar:
        """Allow exactly these texts.

        Raises:
            ConfigError: there is none, or one is no text.
        """
        options = [texts] if isinstance(texts, str) else list(texts)
        if not options or not all(isinstance(option, str) for option in options):
            raise ConfigError("a choice takes one text or more")
        return cls.regex("|".join("".join(map(_literal, option)) for option in options))

    def __repr__(self) -> str:
        """The language and the beginning of the text."""
        shown = self.source if len(self.source) <= 60 else f"{self.source[:57]}..."
        return f"Grammar.{self.kind.value}({shown!r})"


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{what} must be a text, not {type(value).__name__}")
    return value


def _literal(letter: str) -> str:
    """A letter as an expression that matches only it."""
    return letter if letter.isalnum() or not letter.isascii() else f"\\x{ord(letter):02x}"


def _schema_text(schema: Any) -> str:
    """The schema as JSON text; properties keep their order, which is the order in the output."""
    if isinstance(schema, str) and len(schema) > MOST_CHARACTERS:
        raise ConfigError(f"the JSON schema has {counted(len(schema), 'character')}; {MOST_CHARACTERS} are the most")
    try:
        read = json.loads(schema) if isinstance(schema, str) else schema
        written = json.dumps(read, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise ConfigError("the JSON schema is nested too deeply; make it flatter") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the JSON schema is no JSON: {error}") from None
    if not isinstance(read, (Mapping, bool)):
        raise ConfigError(f"a JSON schema is an object, not {type(read).__name__}")
    return written


def _check_multiples(text: str) -> None:
    """Refuse ``multipleOf`` of large numbers, whose cost no limit of the compiler bounds."""
    plain = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
    total, common = 0, 1
    for found in _MULTIPLE.finditer(plain):
        try:
            digits = Decimal(found[1]).normalize().as_tuple().digits
        except InvalidOperation:
            continue  # the compiler says what is wrong with it
        states = int("".join(map(str, digits)))  # powers of ten are free
        total, common = total + states, math.lcm(common, max(1, states))
        if max(total, common) > _MOST_STATES:
            raise ConfigError(
                f"multipleOf {found[1]} makes the grammar too large: together they may need at most {_MOST_STATES} "
                "states; leave it out, and check the number afterwards"
            )
