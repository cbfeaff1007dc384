"""What the scripts send: prompts of a file, prompts of a given length, and prompts of a recorded trace."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from outrider.bench.prompts import encode_prompts, file_name, selected_prompts
from outrider.models.files.tokenizer import Tokenizer
from outrider.prompts import read

RECORDED_BLOCK: Final = 512
"""Tokens of a block in the trace."""
_STRIDE: Final = 7919
"""Tokens between the beginnings of two texts; a prime, so that all beginnings differ."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose prompts."""
    parser.add_argument("--prompts", type=Path, help="a prompt file; default: the built-in prompts")
    parser.add_argument("--select", help="expression in the row number i, such as i%%8==0")
    parser.add_argument("--limit", type=int, help="at most this many prompts")


def chat_prompts(wishes: argparse.Namespace, tokenizer: Tokenizer) -> list[list[int]]:
    """The chosen prompts with the chat template, as token ids: every server gets the same tokens."""
    chosen = selected_prompts(wishes.prompts, wishes.select, wishes.limit)
    return [list(one.token_ids) for one in encode_prompts(tokenizer, chosen, chat=True)]


def prompt_facts(wishes: argparse.Namespace, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The prompts, for results."""
    lengths = [len(prompt) for prompt in prompts]
    chosen = {"file": file_name(wishes.prompts), "select": wishes.select, "count": len(prompts)}
    return {**chosen, "tokens": {"least": min(lengths), "most": max(lengths)}}


class Texts:
    """Pieces of real text of any length, each with a beginning of its own.

    Args:
        tokenizer: of the model.
        file: a prompt file whose texts are used; None is the built-in prompts.
    """

    def __init__(self, tokenizer: Tokenizer, file: Path | None = None) -> None:
        whole = "\n\n".join(turn["content"] for prompt in read(file) for turn in prompt.turns)
        self._tokens = tokenizer.encode(whole, add_special_tokens=False)
        while math.gcd(_STRIDE, len(self._tokens)) > 1:
            self._tokens.pop()

    @property
    def distinct(self) -> int:
        """How many pieces have a beginning of their own."""
        return len(self._tokens)

    def piece(self, number: int, length: int) -> list[int]:
        """The tokens of a piece; the same number always gives the same ones."""
        begin, size = number * _STRIDE % len(self._tokens), len(self._tokens)
        return [self._tokens[(begin + place) % size] for place in range(length)]


@dataclass(frozen=True)
class Recorded:
    """A request of a recorded trace."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """Ids of the prompt's blocks; two requests share a prefix where their ids agree from the start."""


def read_trace(file: Path, count: int) -> list[Recorded]:
    """The first requests of a trace of JSON lines with the keys that are read here."""
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines()[:count])
    return [
        Recorded(row["t_s"], row["input_tokens"], row["output_tokens"], tuple(row["prefix_block_ids"])) for row in rows
    ]


def scaled_prompt(recorded: Recorded, texts: Texts, scale: int) -> list[int]:
    """The prompt of a recorded request, shortened, of real text: equal blocks have equal tokens.

    Args:
        recorded: the request.
        texts: where its text comes from.
        scale: how many recorded tokens become one.
    """
    block = RECORDED_BLOCK // scale
    length = max(1, recorded.prompt_tokens // scale)
    tokens = [token for number in recorded.blocks for token in texts.piece(number, block)]
    return tokens[:length]


def most_shared(prompts: Sequence[Sequence[int]]) -> int:
    """Prompt tokens that a cache without limits would hold already, one request after the other."""
    known: dict[int, Any] = {}  # a trie of tokens
    shared = 0
    for prompt in prompts:
        node, depth = known, 0
        for place, token in enumerate(prompt):
            if token in node:
                depth = place + 1
            node = node.setdefault(token, {})
        shared += depth
    return shared
