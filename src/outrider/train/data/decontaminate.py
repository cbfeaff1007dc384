"""Decontamination: recognises evaluation prompts by hashes, so that nothing is trained on them.

A text is lower-cased and split into words.  Of an evaluation prompt of ten words or more, some runs of ten words are
stored, chosen by winnowing (Schleimer, Wilkerson and Aiken 2003): of every seven neighbouring runs, the one with the
lowest hash.  So a text that repeats sixteen words of the prompt, or all of a shorter one, contains a stored run.  A
prompt of five to nine words is stored as one run.  A shorter one, which any text may contain by chance, must be the
whole text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from typing import Final

from outrider.prompts import built_in

RUN: Final = 10
"""Words of a run."""
WINDOW: Final = 7
"""Neighbouring runs of which one is stored."""
LEAST: Final = 5
"""Shortest prompt that is searched for inside texts, in words."""
_BYTES: Final = 6
_FILE: Final = "held_out.bin"
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True)
class EvaluationPrompts:
    """Evaluation prompts, as hashes."""

    hashes: frozenset[bytes]

    @classmethod
    def of(cls, prompts: Iterable[str]) -> EvaluationPrompts:
        """Hash prompts."""
        return cls(frozenset(kept for prompt in prompts for kept in _kept(words(prompt))))

    @classmethod
    def read(cls, packed: bytes) -> EvaluationPrompts:
        """Read the bytes of :meth:`packed`."""
        return cls(frozenset(packed[start : start + _BYTES] for start in range(0, len(packed), _BYTES)))

    def packed(self) -> bytes:
        """The hashes as bytes."""
        return b"".join(sorted(self.hashes))

    def found_in(self, text: str) -> str | None:
        """The words of an evaluation prompt in a text; None if there are none."""
        listed = words(text)
        if len(listed) < LEAST:
            return " ".join(listed) if listed and _whole(listed) in self.hashes else None
        for length in range(LEAST, RUN + 1):
            for run in _runs(listed, length):
                if _hash(run) in self.hashes:
                    return run
        return None


@lru_cache
def evaluation_prompts() -> EvaluationPrompts:
    """The prompts of Outrider's published figures, and the built-in prompts."""
    own = EvaluationPrompts.of(turn["content"] for prompt in built_in() for turn in prompt.turns)
    return EvaluationPrompts(
        own.hashes | EvaluationPrompts.read((files("outrider.train.data") / _FILE).read_bytes()).hashes
    )


def words(text: str) -> list[str]:
    """The words of a text, without punctuation and in lower case."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def _runs(listed: list[str], length: int) -> Iterator[str]:
    return (" ".join(listed[start : start + length]) for start in range(len(listed) - length + 1))


def _kept(listed: list[str]) -> set[bytes]:
    if len(listed) < LEAST:
        return {_whole(listed)} if listed else set()
    hashes = [_hash(run) for run in _runs(listed, min(RUN, len(listed)))]
    return {min(hashes[start : start + WINDOW]) for start in range(max(1, len(hashes) - WINDOW + 1))}


def _whole(listed: list[str]) -> bytes:
    return _hash("the whole text: " + " ".join(listed))


def _hash(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=_BYTES).digest()
