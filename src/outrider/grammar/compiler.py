"""Compiles grammars for one tokenizer, within bounds of time and memory, and keeps those of late."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cached_property, partial
from typing import Any, Final, Protocol, TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

from outrider.errors import ConfigError, one_line
from outrider.grammar.spec import Grammar, Kind, is_gbnf

_MOST_KEPT: Final = 64
"""Compiled grammars that are kept."""
_MOST_MEGABYTES: Final = 512.0
"""Memory for them, by the two measures that follow: no grammar tells its size."""
_MEGABYTES_A_SECOND: Final = 300.0
"""Most that a second of compiling leaves in memory; the length says less: a divisor of four digits takes 5 MB."""
_MEGABYTES_AN_ANSWER: Final = 0.02
"""Most that the lexer grows with one answer, for a vocabulary of 150,000 tokens."""
_MOST_ANSWERS: Final = 5_000
"""Answers from one compiled grammar before new requests get another: its lexer has then grown by up to 100 MB."""
_SLOW: Final = 0.05
"""Seconds of compiling that an engine does not spend again: all its requests would wait."""
_LIMITS: Final = LLParserLimits(initial_lexer_fuel=300_000, max_lexer_states=50_000, verbose_errors=False)
"""About a second and 100 MB at most for compiling, and some 20 ms for a step."""
_STACK: Final = 256 << 20
"""Bytes of address space for the stack of a thread that compiles; 8 MB overflow at some 700 references in a row."""
_STARTING: Final = threading.Lock()
_ASCII: Final = "d"
"""Classes of regular expressions that hold only ASCII: a model that may write any digit of Unicode does."""
_Result = TypeVar("_Result")
_COMPACT: Final[Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Encoder(Protocol):
    """The part of a ``tokenizers.Tokenizer`` that makes ids of text."""

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        """An object with ``ids``."""
        ...


class Vocabulary(Protocol):
    """The part of a tokenizer that grammars need."""

    @property
    def backend(self) -> Encoder:
        """Splits forced text into the tokens that the model was trained on."""
        ...

    @property
    def vocab_size(self) -> int:
        """Highest id plus one."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that are no text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of a token inside a text."""
        ...


class CompiledGrammar:
    """A grammar compiled for one tokenizer; any number of requests may use it, from any thread.

    Args:
        spec: the grammar.
        owner: the compiler that made it.
        build: makes a matcher at the beginning of the output, which shares nothing with others; and says how many
            seconds it took.
    """

    def __init__(self, spec: Grammar, owner: GrammarCompiler, build: Callable[[], tuple[LLMatcher, float]]) -> None:
        self.spec, self.owner, self._build = spec, owner, build
        self._first, self._seconds = build()
        self.answers, self.broken = 0, False
        """How often requests have asked what may follow; and whether a matcher that shares the lexer has met a limit,
        as the others then may at any time."""

    @property
    def worn(self) -> bool:
        """Whether new requests should compile it again: its lexer has grown, or has met its limit."""
        return self.broken or self.answers >= _MOST_ANSWERS

    @property
    def megabytes(self) -> float:
        """Memory that it takes at most, about."""
        return self._seconds * _MEGABYTES_A_SECOND + self.answers * _MEGABYTES_AN_ANSWER

    @property
    def slow(self) -> bool:
        """Whether it takes so long to build that an engine should not."""
        return self._seconds > _SLOW

    def matcher(self) -> LLMatcher:
        """A matcher at the beginning of the output; it takes microseconds and shares the lexer with others."""
        return self._first.deep_copy()

    def rebuilt(self) -> LLMatcher:
        """A matcher at the beginning of the output that shares nothing with others; it takes as long as the first."""
        return self._build()[0]

    def __repr__(self) -> str:
        """The grammar."""
        return f"Compiled{self.spec!r}"


class GrammarCompiler:
    """Compiles grammars for one tokenizer.  Any thread may call it; it takes milliseconds, at worst about a second.

    Args:
        vocabulary: the tokenizer.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._kept: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()
        self._reading = threading.Lock()

    def prepare(self) -> None:
        """Read the vocabulary now, which takes up to a second in which no other thread runs, instead of later."""
        _ = self._tokenizer

    @cached_property
    def size(self) -> int:
        """Ids that grammars know; larger ones are never allowed."""
        return self._vocabulary.vocab_size

    def compile(self, grammar: Grammar | CompiledGrammar) -> CompiledGrammar:
        """Compile a grammar, or take it from the cache.

        Args:
            grammar: one that another tokenizer's compiler made is compiled again.

        Raises:
            ConfigError: it has a mistake, matches nothing, or is too complex; the message says where.
        """
        if isinstance(grammar, CompiledGrammar):
            if grammar.owner is self:
                return grammar
            grammar = grammar.spec
        if not isinstance(grammar, Grammar):
            raise ConfigError(f"grammar must be a Grammar, such as Grammar.regex(…), not {type(grammar).__name__}")
        with self._lock:
            found = self._kept.get(grammar)
            if found is not None and not found.worn:
                self._keep(found)
                return found
        made = self._made(grammar)
        with self._lock:
            self._keep(made)
        return made

    def _keep(self, made: CompiledGrammar) -> None:
        """Keep it, and of the others those that were wanted last, as many as there is room for, but no worn ones."""
        self._kept[made.spec] = made
        self._kept.move_to_end(made.spec)
        left, room = _MOST_KEPT, _MOST_MEGABYTES
        for grammar, kept in reversed([*self._kept.items()]):
            if kept.worn or left == 0 or kept.megabytes > room:
                del self._kept[grammar]
            else:
                left, room = left - 1, room - kept.megabytes

    def _made(self, grammar: Grammar) -> CompiledGrammar:
        try:
            rules = _rules(grammar)
            make = partial(LLMatcher, self._tokenizer, rules, log_level=0, limits=_LIMITS)
            made = CompiledGrammar(grammar, self, partial(_with_a_deep_stack, partial(_timed, make)))
            probe = made.matcher()
            allowed = probe.compute_bitmask()  # also warms the lexer up for the first row
            problem = probe.get_error()
            barren = not problem and not probe.is_accepting() and not any(allowed)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the library is no Exception
            raise ConfigError(f"the grammar cannot be compiled: {one_line(error)}") from error
        if problem:
            raise ConfigError(f"the grammar cannot be compiled: {told(problem)}")
        if barren:
            raise ConfigError("the grammar matches no text; check its rules")
        return made

    @property
    def _tokenizer(self) -> LLTokenizer:
        with self._reading:  # one thread reads, and those that come meanwhile wait
            return self._read_tokenizer

    @cached_property
    def _read_tokenizer(self) -> LLTokenizer:
        pieces: Any = _Pieces(self._vocabulary)
        return LLTokenizer(pieces)


class _Pieces:
    """A vocabulary as llguidance reads it, with one more id that ends the output.

    The model's own end tokens are left to the sampler, which knows which of them end a request.
    """

    is_tokenizer_wrapper: Final = True
    bos_token_id: Final = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        size = vocabulary.vocab_size
        self.tokens = [*map(vocabulary.token_bytes, range(size)), b"<end>"]
        self.special_token_ids = [*sorted(vocabulary.special_ids), size]
        self.eos_token_id = size
        self._encode = vocabulary.backend.encode

    def __call__(self, text: str | bytes) -> Sequence[int]:
        plain = text.decode(errors="replace") if isinstance(text, bytes) else text
        ids: list[int] = self._encode(plain, add_special_tokens=False).ids
        return ids


def _timed(work: Callable[[], _Result]) -> tuple[_Result, float]:
    """Do something, and say how many seconds this thread worked on it; the machine's other work does not count."""
    begun = time.thread_time()
    return work(), time.thread_time() - begun


def _with_a_deep_stack(work: Callable[[], _Result]) -> _Result:
    """Do something in a thread whose stack is large enough for schemas that nest by references; and wait for it."""
    done: Future[_Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            done.set_exception(error)

    with _STARTING:
        before = threading.stack_size(_STACK)
        try:
            threading.Thread(target=run, name="outrider-grammar", daemon=True).start()
        finally:
            threading.stack_size(before)
    return done.result()


def told(problem: str) -> str:
    """A message of llguidance on one line."""
    return " ".join(problem.replace("<non-verbose/>", "").split())[:300]


def compiled(grammar: Grammar | CompiledGrammar) -> CompiledGrammar:
    """The compiled form of a request's grammar.

    Raises:
        ConfigError: it is not compiled; an engine does not, because this may take long.
    """
    if not isinstance(grammar, CompiledGrammar):
        raise ConfigError("the grammar was not compiled for this model; pass it to LLM.compile_grammar first")
    return grammar


def _rules(grammar: Grammar) -> str:
    return _READERS[grammar.kind](grammar)


def _read_schema(grammar: Grammar) -> str:
    rules: str = LLMatcher.grammar_from_json_schema(
        grammar.source, overrides=None if grammar.any_whitespace else _COMPACT
    )
    return rules


def _read_regex(grammar: Grammar) -> str:
    rules: str = LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(grammar.source, _ASCII)}/")
    return rules


def _read_lark(grammar: Grammar) -> str:
    source = gbnf_to_lark(grammar.source) if is_gbnf(grammar.source) else grammar.source
    rules: str = LLMatcher.grammar_from_lark(source)
    return rules


_READERS: Final[dict[Kind, Callable[[Grammar], str]]] = {
    Kind.JSON_SCHEMA: _read_schema,
    Kind.REGEX: _read_regex,
    Kind.LARK: _read_lark,
}
