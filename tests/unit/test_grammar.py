"""Grammars: which tokens they allow, what they refuse, and that none takes long."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from typing import Any

import pytest
import tokenizers
from byte_text import SIZE, byte_tokenizer
from tokenizers import decoders, models

from outrider import Grammar
from outrider.errors import ConfigError, RequestError
from outrider.grammar import GrammarState
from outrider.models.files.tokenizer import Tokenizer

END = 7


def fallback_tokenizer() -> Tokenizer:
    """Pieces with ▁ for blanks, and a token for every byte, as sentencepiece has them."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"abcdeh▁1", "ha", "▁ha", "abc", "▁▁"]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[("h", "a"), ("▁", "ha"), ("▁", "▁")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    backend.add_special_tokens(["<end>"])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return Tokenizer(backend, name="pieces", eos_ids=[backend.token_to_id("<end>")])


TOKENIZERS = {"bytes": byte_tokenizer, "pieces": fallback_tokenizer}


def state(grammar: Grammar, tokenizer: Tokenizer, output: list[int] | None = None, ends: tuple[int, ...] = ()) -> Any:
    made = tokenizer.grammars.compile(grammar)
    return GrammarState(made, [5, 5, *(output or [])], 2, tokenizer.vocab_size, ends)


def allowed(at: Any, path: tuple[int, ...] = ()) -> set[int]:
    return set((~at.allowed(path).banned).nonzero().flatten().tolist())


TEXTS = ["ha", "ha ha", "habc", "b", "é", " ha", "ha\n"]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_token_is_allowed_exactly_if_a_text_goes_on_with_it(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    end = min(tokenizer.eos_ids)
    language = {text.encode() for text in TEXTS}
    at = state(Grammar.choice(TEXTS), tokenizer, ends=(end,))
    paths: list[tuple[int, ...]] = [()]
    for path in paths:
        said = b"".join(map(tokenizer.token_bytes, path))
        wanted = {
            token
            for token in range(tokenizer.vocab_size)
            if token not in tokenizer.special_ids and (piece := tokenizer.token_bytes(token))
            if any(text.startswith(said + piece) for text in language)
        }
        ending = {end} if said in language else set[int]()
        forced = set(at.forced(path, 1))  # one way to go on with forced text is left, the tokenizer's
        assert allowed(at, path) == (forced or wanted | ending)
        assert forced <= wanted
        assert at.allowed(path).complete == (not wanted)
        assert all(at.allows(path, token) == (token in wanted | ending) for token in range(tokenizer.vocab_size))
        paths += [(*path, token) for token in sorted(wanted)]
    assert len(paths) > len(TEXTS)


def test_answers_depend_on_nothing_but_output_and_path() -> None:
    """Asked in any order, on any path, before and after commits, it says what a new one says."""
    tokenizer, dice = byte_tokenizer(), random.Random(0)
    grammar = Grammar.json_schema({"type": "array", "items": {"enum": ["ha", "is", "the ha", 12]}})
    committed = [5, 5]
    at = GrammarState(tokenizer.grammars.compile(grammar), committed, 2, SIZE, ())
    for _ in range(150):
        path: tuple[int, ...] = ()
        for _ in range(dice.randrange(5)):
            if not (choices := sorted(allowed(at, path))):
                break
            path = (*path, dice.choice(choices))
        other = state(grammar, tokenizer, committed[2:])
        assert allowed(at, path) == allowed(other, path)
        assert at.forced(path, 9) == other.forced(path, 9)
        with pytest.raises(RequestError, match="follow"):
            at.allowed((*path, *tokenizer.encode("~")))
        if dice.random() < 0.3 and len(path) > 1:
            committed += path[:-1]


def test_forced_tokens_are_the_tokenizers_own_split() -> None:
    tokenizer = byte_tokenizer()
    text = '{"the": "is ha <end>"}'
    at = state(Grammar.json_schema({"const": {"the": "is ha <end>"}}, any_whitespace=False), tokenizer)
    forced: list[int] = []
    while more := at.forced(tuple(forced), 5):
        assert len(more) <= 5
        forced += more
    spoken = tokenizer.decode(forced, skip_special_tokens=False)
    assert text.startswith(spoken)
    assert spoken.startswith(text[: text.index("<end>")])
    assert tokenizer.encode(spoken.partition("<")[0]) == forced[: len(tokenizer.encode(spoken.partition("<")[0]))]
    assert not set(forced) & tokenizer.special_ids


def test_a_grammar_that_is_free_forces_nothing() -> None:
    assert state(Grammar.regex("[a-z]{3}"), byte_tokenizer()).forced((), 9) == []


@pytest.mark.parametrize(
    ("grammar", "accepted", "refused"),
    [
        (Grammar.regex(r"\d+/x"), ["1/x", "007/x"], ["/x", "1", "1/y"]),
        (Grammar.regex("a\nb|(?i)c"), ["a\nb", "C"], ["a", "ab"]),
        (Grammar.choice(["(a|b)", 'q"\\', "x\ny"]), ["(a|b)", 'q"\\', "x\ny"], ["a", "(a|b"]),
        (Grammar.choice("yes"), ["yes"], ["y"]),
        (Grammar.json_object(), ["{}", '{"a": [1, null]}', '{ "a" : {} }'], ["[]", "1", "{"]),
        (Grammar.json_schema('{"type": "integer"}'), ["12"], ["1.5", '"1"']),
        (Grammar.json_schema({"const": {"a": [1]}}, any_whitespace=False), ['{"a": [1]}'], ['{"a":[1]}']),
        (Grammar.json_schema({"const": {"a": [1]}}), ['{"a":[1]}', '{ "a": [ 1 ] }'], ['{"a":[2]}']),
        (Grammar.lark('start: "a" b*\nb: /[0-9]/'), ["a", "a12"], ["1"]),
        (Grammar.lark('root ::= "a" b*\nb ::= [0-9]'), ["a", "a12"], ["1"]),
    ],
)
def test_each_language_means_what_it_says(grammar: Grammar, accepted: list[str], refused: list[str]) -> None:
    tokenizer = byte_tokenizer()
    for text, good in [*((text, True) for text in accepted), *((text, False) for text in refused)]:
        at = state(grammar, tokenizer, ends=(END,))
        try:
            ended = bool(END in allowed(at, tuple(tokenizer.encode(text))))
        except RequestError:
            ended = False
        assert ended == good, text


LETTERS = "".join(map(str, range(10)))
LINKED = {f"d{n}": {"properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}, "required": ["a"]} for n in range(750)}
DOUBLING = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(16)} | {"d16": {"type": "string"}}


def chain(rules: int, body: str = "") -> str:
    """GBNF whose rules each refer to the next, so that what the last one is reaches the first one last."""
    links = [f"r{n} ::= {body} r{n + 1}" for n in range(rules)]
    return "\n".join(["root ::= r0", *links, f'r{rules} ::= "a"'])


REFUSED: dict[str, Any] = {
    "no JSON": lambda: Grammar.json_schema("{nope"),
    "no number": lambda: Grammar.json_schema({"minimum": float("nan")}),
    "no schema": lambda: Grammar.json_schema("[1]"),
    "an unknown keyword": lambda: Grammar.json_schema({"type": "array", "uniqueItems": True}),
    "false": lambda: Grammar.json_schema(False),
    "nested": lambda: Grammar.json_schema('{"items":' * 300 + "{}" + "}" * 300),
    "nested past Python": lambda: Grammar.json_schema('{"items":' * 20_000 + "{}" + "}" * 20_000),
    "a circle": lambda: Grammar.json_schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
    "a file": lambda: Grammar.json_schema({"$ref": "file:///etc/passwd"}),
    "an address": lambda: Grammar.json_schema({"$ref": "http://127.0.0.1:9/schema.json"}),
    "too long": lambda: Grammar.json_schema({"enum": [LETTERS + str(n) for n in range(20_000)]}),
    "too many properties": lambda: Grammar.json_schema({"properties": {f"p{n}": {} for n in range(4001)}}),
    "a large divisor": lambda: Grammar.json_schema({"type": "integer", "multipleOf": 10_000_019}),
    "a hidden divisor": lambda: Grammar.lark('start: %json {"type": "integer", "multiple\\u004ff": 10000019}'),
    "divisors": lambda: Grammar.json_schema({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}),
    "patterns at once": lambda: Grammar.json_schema(
        {"type": "string", "allOf": [{"pattern": f"^(a|b)*a(a|b){{{n}}}$"} for n in (30, 31, 33)]}
    ),
    "a broken expression": lambda: Grammar.regex("(("),
    "looking ahead": lambda: Grammar.regex("(?=a)b"),
    "a deep expression": lambda: Grammar.regex("(" * 5000 + "a" + ")" * 5000),
    "broken rules": lambda: Grammar.lark("start: (("),
    "deep rules": lambda: Grammar.lark("root ::= " + "(" * 3000 + '"a"' + ")" * 3000),
    "an unknown rule": lambda: Grammar.lark("root ::= b"),
    "nothing": lambda: Grammar.lark("start: a\na: a"),
    "a chain in GBNF": lambda: Grammar.lark(chain(14_000)),
    "long rules in GBNF": lambda: Grammar.lark(chain(300, "." * 800)),
    "comments in GBNF": lambda: Grammar.lark('root ::= "a"\n' + "#\n" * 120_000 + "b ::= root"),
    "blank lines": lambda: Grammar.lark("\n" * 260_000),
    "many schemas in rules": lambda: Grammar.lark("%json\n" * 43_000),
    "a divisor that is no number": lambda: Grammar.lark('start: %json {"multipleOf": NaN}'),
    "an infinite divisor": lambda: Grammar.lark('start: %json {"multipleOf": -Infinity}'),
    "a divisor past all floats": lambda: Grammar.lark('start: %json {"multipleOf": 1e999}'),
    "a schema's divisor that is no number": lambda: Grammar.json_schema('{"multipleOf": NaN}'),
    "a schema's infinite divisor": lambda: Grammar.json_schema({"multipleOf": float("inf")}),
    "many patterns": lambda: Grammar.json_schema({"patternProperties": {f"^k{n}$": {} for n in range(101)}}),
    "hidden patterns": lambda: Grammar.lark(
        "start: %json " + json.dumps({"patternProperties": {f"^k{n}$": {} for n in range(1000)}})
    ),
    "half a character": lambda: Grammar.regex("\ud800"),
    "no choice": lambda: Grammar.choice([]),
    "no texts": lambda: Grammar.choice([1]),  # type: ignore[list-item]
    "no text": lambda: Grammar.regex(5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compiled_is_refused_in_one_sentence(name: str) -> None:
    begun = time.thread_time()
    with pytest.raises(ConfigError) as caught:
        byte_tokenizer().grammars.compile(REFUSED[name]())
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert time.thread_time() - begun < 5.0


HOSTILE = {
    "alternatives": Grammar.regex("(a|a)*b{1,10000}"),
    "counted": Grammar.regex("(((a?){1,1000}){1,1000}){1,1000}"),
    "states": Grammar.regex("(a|b)*a(a|b){200}"),
    "classes": Grammar.regex(r"(\w|\d|\s|.){1,5000}"),
    "ambiguous": Grammar.lark('start: s\ns: s s s | s s | "a" | "aa" |'),
    "complements": Grammar.lark("start: A\nA: /[ab]*a[ab]{30}/ & ~/[ab]*b[ab]{30}/"),
    "repeated": Grammar.lark('start: a{100000}\na: b{100000}\nb: "x"{100000}'),
    "a long list": Grammar.json_schema({"enum": [f"{n} {LETTERS}" for n in range(8000)]}),
    "a long string": Grammar.json_schema({"type": "string", "minLength": 1, "maxLength": 10_000_000}),
    "a long array": Grammar.json_schema({"type": "array", "items": {"items": {}}, "minItems": 1_000_000}),
    "recursion": Grammar.json_schema({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
    "references in a row": Grammar.json_schema({"$defs": LINKED | {"d750": True}, "$ref": "#/$defs/d0"}),
    "alternatives in rules": Grammar.lark("start: " + " | ".join(f'"x{n}"' for n in range(9000))),
    "doubling": Grammar.json_schema({"$defs": DOUBLING, "$ref": "#/$defs/d0"}),
    "many properties": Grammar.json_schema({"properties": {f"p{n}": {} for n in range(300)}}),
    "divisors": Grammar.json_schema({"type": "integer", "multipleOf": 9973}),
    "a chain in GBNF": Grammar.lark(chain(1000)),
    "long rules in GBNF": Grammar.lark(chain(150, "." * 80)),
    "comments in GBNF": Grammar.lark("#\n" * 9_000 + 'root ::= "a"'),
    "blank lines": Grammar.lark("\n" * 260_000 + 'start: "a"'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_ends_or_errs_in_bounded_time(name: str) -> None:
    """Forty steps: whatever fails is a RequestError, and nothing takes long."""
    tokenizer, dice, begun = byte_tokenizer(), random.Random(0), time.thread_time()
    at, path = state(HOSTILE[name], tokenizer, ends=(END,)), ()
    try:
        for _ in range(40):
            if not (choices := sorted(allowed(at, path) - {END})):
                break
            path = (*path, dice.choice(choices))
            at.forced(path, 32)
    except RequestError as error:
        assert re.search("too complex|items; max is", str(error))
    assert time.thread_time() - begun < 10.0


def test_grammars_are_values() -> None:
    schema = {"b": 1, "a": 2}
    assert Grammar.json_schema(schema) == Grammar.json_schema(json.dumps(schema))
    assert Grammar.json_schema(schema) != Grammar.json_schema(
        dict(reversed(schema.items()))
    )  # properties have an order
    assert len(repr(Grammar.regex("a" * 1000))) < 100
    assert re.match("Grammar.json_schema", repr(Grammar.json_object()))
    assert len({Grammar.regex(a) for a, _ in itertools.product("ab", "ab")}) == 2
