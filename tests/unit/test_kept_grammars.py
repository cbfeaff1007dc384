"""Compiled grammars that requests share: how long they are kept, and what becomes of one that meets a limit."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
from byte_text import SIZE, byte_tokenizer
from llguidance import LLParserLimits, LLTokenizer

from outrider import Grammar
from outrider.errors import RequestError
from outrider.grammar import CompiledGrammar, GrammarCompiler, GrammarState, compiler

HEAVY = Grammar.lark("start: " + " | ".join(f'"x{n}"' for n in range(9000)))


def allowed(at: GrammarState) -> set[int]:
    banned = at.allowed(()).banned
    assert banned is not None
    return set((~banned).nonzero().flatten().tolist())


def test_a_matcher_that_meets_a_limit_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matchers share a lexer: when one request fills it, the others go on with one of their own."""
    monkeypatch.setattr(compiler, "_LIMITS", LLParserLimits(max_lexer_states=120, verbose_errors=False))
    tokenizer, dice = byte_tokenizer(), random.Random(0)
    grammars = GrammarCompiler(tokenizer)
    made = grammars.compile(Grammar.regex("(a|b)*a(a|b){8}c"))
    outputs: list[list[int]] = [[5, 5], [5, 5]]
    greedy, modest = (GrammarState(made, output, 2, SIZE, ()) for output in outputs)
    letters = tokenizer.encode("ab")
    before = allowed(modest)
    with pytest.raises(RequestError, match="too complex"):
        for _ in range(3000):
            outputs[0].append(dice.choice(letters))
            greedy.allowed(())
    assert allowed(modest) == before
    outputs[1].append(letters[0])
    assert set(letters) <= allowed(modest)
    assert made.worn
    assert not grammars.compile(Grammar.regex("(a|b)*a(a|b){8}c")).worn


@pytest.mark.parametrize("raised", [RuntimeError("can't start new thread"), MemoryError(), BaseException("panic")])
@pytest.mark.parametrize("failing", [["matcher"], ["matcher", "rebuilt"]])
def test_a_matcher_that_cannot_be_made_ends_no_round(
    monkeypatch: pytest.MonkeyPatch, failing: list[str], raised: BaseException
) -> None:
    """Another way is tried, and when there is none left it is the request's error."""

    def broken(self: CompiledGrammar) -> Any:
        raise raised

    made = GrammarCompiler(byte_tokenizer()).compile(Grammar.choice(["ha"]))
    expected = allowed(GrammarState(made, [], 0, SIZE, ()))
    for name in failing:
        monkeypatch.setattr(CompiledGrammar, name, broken)
    at = GrammarState(made, [], 0, SIZE, ())
    if "rebuilt" in failing:
        with pytest.raises(RequestError, match="too complex"):
            at.allowed(())
    else:
        assert allowed(at) == expected


@pytest.mark.parametrize("slow", [False, True])
def test_an_engine_builds_again_only_what_is_quick(monkeypatch: pytest.MonkeyPatch, slow: bool) -> None:
    monkeypatch.setattr(compiler, "_SLOW", -1.0 if slow else 60.0)
    built, rebuilt = list[CompiledGrammar](), CompiledGrammar.rebuilt
    monkeypatch.setattr(CompiledGrammar, "rebuilt", lambda self: (built.append(self), rebuilt(self))[1])
    made = GrammarCompiler(byte_tokenizer()).compile(Grammar.regex("[ab]{9}"))
    monkeypatch.setattr(CompiledGrammar, "matcher", lambda self: Failing())
    at = GrammarState(made, [], 0, SIZE, ())
    if slow:
        with pytest.raises(RequestError, match="too complex to continue here, so simplify it: states"):
            at.allowed(())
        assert not built
    else:
        assert allowed(at) == set(byte_tokenizer().encode("ab"))
        assert built == [made]


class Failing:
    """A matcher that meets a limit with the first question."""

    def try_consume_tokens(self, tokens: list[int]) -> int:
        return len(tokens)

    def compute_bitmask(self) -> bytes:
        return bytes(SIZE)

    def is_accepting(self) -> bool:
        return False

    def is_error(self) -> bool:
        return True

    def get_error(self) -> str:
        return "states"


def test_what_grows_with_use_is_kept_as_long_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_MEGABYTES_A_SECOND", 0.0)
    monkeypatch.setattr(compiler, "_MEGABYTES_AN_ANSWER", 1.0)
    monkeypatch.setattr(compiler, "_MOST_MEGABYTES", 100.0)
    monkeypatch.setattr(compiler, "_MOST_ANSWERS", 90)
    grammars = GrammarCompiler(byte_tokenizer())

    def used(text: str, answers: int) -> CompiledGrammar:
        made = grammars.compile(Grammar.choice([text]))
        for _ in range(answers):
            GrammarState(made, [], 0, SIZE, ()).allowed(())
        return made

    first, second, third = (used(text, answers) for text, answers in (("a", 60), ("b", 50), ("c", 30)))
    assert used("b", 0) is second
    assert used("c", 0) is third
    assert used("a", 0) is not first  # 60 more than 30 + 50 are too many
    assert used("c", 65) is third
    assert third.worn
    used("d", 0)
    assert third.spec not in grammars._kept
    assert used("c", 0) is not third


def test_a_heavy_grammar_drives_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_MEGABYTES_A_SECOND", 0.0)
    monkeypatch.setattr(compiler, "_MOST_MEGABYTES", 50.0)
    grammars = GrammarCompiler(byte_tokenizer())
    light = [grammars.compile(Grammar.choice([text])) for text in "abc"]
    heavy = grammars.compile(HEAVY)
    assert grammars.compile(HEAVY) is heavy
    heavy.answers = 4_000
    assert not heavy.worn
    assert [grammars.compile(Grammar.choice([text])) for text in "abc"] == light
    assert grammars.compile(HEAVY) is not heavy


def test_what_takes_long_to_compile_counts_as_large() -> None:
    grammars = GrammarCompiler(byte_tokenizer())
    small, large = (grammars.compile(grammar) for grammar in (Grammar.choice(["a"]), HEAVY))
    assert large.megabytes > 10 * small.megabytes > 0.0


def test_a_compiled_grammar_is_kept_until_it_is_worn_or_others_come() -> None:
    grammars = GrammarCompiler(byte_tokenizer())
    first = grammars.compile(Grammar.choice(["ha"]))
    assert grammars.compile(Grammar.choice(["ha"])) is first
    assert grammars.compile(first) is first
    assert byte_tokenizer().grammars.compile(first) is not first
    for number in range(100):
        grammars.compile(Grammar.choice([str(number)]))
    assert len(grammars._kept) < 100
    assert grammars.compile(Grammar.choice(["ha"])) is not first


def test_threads_compile_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only one of them reads the vocabulary."""
    grammars, found, read = GrammarCompiler(byte_tokenizer()), list[set[int]](), list[Any]()

    def slowly(pieces: Any) -> LLTokenizer:
        read.append(pieces)
        time.sleep(0.05)
        return LLTokenizer(pieces)

    monkeypatch.setattr(compiler, "LLTokenizer", slowly)

    def work(number: int) -> None:
        for turn in range(20):
            grammar = Grammar.choice([chr(97 + (number + turn) % 5) + "!"])
            at = GrammarState(grammars.compile(grammar), [], 0, SIZE, ())
            found.append(allowed(at) ^ set(byte_tokenizer().encode(chr(97 + (number + turn) % 5))))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [set()] * 120
    assert len(read) == 1
