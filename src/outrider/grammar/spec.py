"""What an output must look like, as users say it: a JSON schema, a regular expression, a grammar, or some texts."""

from __future__ import annotations

import enum
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from outrider.errors import ConfigError, counted

MOST_CHARACTERS: Final = 1 << 18
"""Most characters of a grammar; compiling takes about a second for the largest."""
_MOST_STATES: Final = 10_000
"""Most states that divisibility may take: a lexer of ``multipleOf: n`` has about n, in time and memory."""
_MOST_KEYS: Final = 4_000
"""Most keys of JSON schemas: the time grows with the square of an object's properties."""
_MOST_PATTERNS: Final = 100
"""Most ``patternProperties``: each is compared with every other."""
_MOST_EMBEDDED: Final = 1_000
"""Most JSON schemas inside rules: each mistake in one takes a walk through the whole text to tell."""
_MOST_GBNF_WORK: Final = 30_000_000
"""Most rules of a GBNF grammar times its characters: converting it walks through all rules up to once for each."""
_MOST_GBNF_COMMENTS: Final = 10_000
"""Most lines with comments in a GBNF grammar: converting it copies all comments before with each."""
_EMBEDDED: Final = re.compile(r"%json\s*")
_LARK: Final = re.compile(r"^[^\S\n]*(?:%llguidance\b|start\s*:)", re.MULTILINE)
"""A line that only Lark has, and never GBNF; the time to find it grows with the text and no faster."""


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
        if self.kind is Kind.LARK:
            _check_rules(self.source)
        _check_schemas(_schemas(self))

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


def is_gbnf(rules: str) -> bool:
    """Whether rules are GBNF and no Lark."""
    return _LARK.search(rules) is None


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


def _schemas(grammar: Grammar) -> Iterator[Any]:
    """The JSON schemas in a grammar, as far as they are JSON; the compiler refuses others."""
    if grammar.kind is Kind.JSON_SCHEMA:
        yield json.loads(grammar.source)
    elif grammar.kind is Kind.LARK:
        for found in _EMBEDDED.finditer(grammar.source):
            with suppress(ValueError, RecursionError):
                yield json.JSONDecoder().raw_decode(grammar.source, found.end())[0]


def _check_rules(rules: str) -> None:
    """Refuse rules that Python would read for long, while other threads wait."""
    if rules.count("%json") > _MOST_EMBEDDED:
        raise ConfigError(f"the grammar has more than {_MOST_EMBEDDED} %json; make it smaller")
    if not is_gbnf(rules):
        return
    if (count := rules.count("::=")) * len(rules) > _MOST_GBNF_WORK:
        raise ConfigError(
            f"the GBNF grammar has {counted(count, 'rule')} in {counted(len(rules), 'character')}, too many of both; "
            "make it smaller, or write it as Lark"
        )
    if sum("#" in line for line in rules.splitlines()) > _MOST_GBNF_COMMENTS:
        raise ConfigError(f"the GBNF grammar has more than {_MOST_GBNF_COMMENTS} comments; leave some out")


def _check_schemas(schemas: Iterable[Any]) -> None:
    """Refuse what would take long to compile, and no limit of the compiler bounds."""
    objects = [value for schema in schemas for value in _objects(schema)]
    if sum(map(len, objects)) > _MOST_KEYS:
        raise ConfigError(f"the JSON schema has more than {_MOST_KEYS} keys; make it smaller")
    patterns = (value.get("patternProperties") for value in objects)
    if sum(len(found) for found in patterns if isinstance(found, dict)) > _MOST_PATTERNS:
        raise ConfigError(f"the JSON schema has more than {_MOST_PATTERNS} patternProperties; make it smaller")
    total, common = 0, 1
    for value in objects:
        states = _states(value.get("multipleOf"))
        total, common = total + states, math.lcm(common, states)
        if max(total, common) > _MOST_STATES:
            raise ConfigError(
                f"multipleOf {value['multipleOf']} makes the grammar too large: together they may need at most "
                f"{_MOST_STATES} states; leave it out, and check the number afterwards"
            )


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value."""
    pending = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            yield value
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def _states(divisor: Any) -> int:
    """About how many states a lexer needs for a divisor; powers of ten are free."""
    if isinstance(divisor, bool) or not isinstance(divisor, (int, float)):
        return 1
    number = Decimal(repr(divisor))
    if not number.is_finite():  # Python reads them as JSON; the compiler refuses them
        return 1
    return max(1, int("".join(map(str, number.normalize().as_tuple().digits))))
