"""A byte-level tokenizer small enough for tiny models: one token per byte, a few words, two end tokens."""

from __future__ import annotations

from functools import lru_cache

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from outrider.models.files.tokenizer import Tokenizer


@lru_cache
def byte_tokenizer(padding: int = 0, name: str = "bytes") -> Tokenizer:
    """256 bytes, four words, ``<end>`` and ``<stop>``, then ``padding`` unused special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(alphabet)}
    merges = [("h", "a"), ("Ġ", "ha"), ("i", "s"), ("h", "e"), ("t", "he")]
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>", "<stop>", *(f"<unused{i}>" for i in range(padding))])
    ends = [backend.token_to_id("<end>"), backend.token_to_id("<stop>")]
    return Tokenizer(backend, name=name, eos_ids=ends)


SIZE = byte_tokenizer().vocab_size
