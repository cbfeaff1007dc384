"""End tokens that are known by name.

A file names one end of sequence; instruct models have others, for the end of a turn or of a tool call.  Folders may
list them in ``generation_config.json``; GGUF files cannot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class EndToken:
    """A token that ends a turn or a text in every vocabulary that has it."""

    text: str
    models: str
    """Models that use it."""
    unless: frozenset[str] = frozenset()
    """Other tokens of a vocabulary in which it separates parts of one turn instead."""


END_TOKENS: Final = (
    EndToken("<|endoftext|>", "GPT-2, Qwen, Phi"),
    EndToken("<|im_end|>", "ChatML: Qwen, SmolLM, Phi-4"),
    EndToken("<|end_of_text|>", "Llama 3, Granite"),
    EndToken("<|eot_id|>", "Llama 3"),
    EndToken("<|eom_id|>", "Llama 3.1"),
    EndToken("<|eot|>", "Llama 4"),
    EndToken("<|eom|>", "Llama 4"),
    EndToken("<|end|>", "Phi-3", unless=frozenset({"<|return|>", "<|flush|>"})),
    EndToken("<|return|>", "gpt-oss"),
    EndToken("<|call|>", "gpt-oss"),
    EndToken("<|flush|>", "Solar Open"),
    EndToken("<|calls|>", "Solar Open"),
    EndToken("<end_of_turn>", "Gemma 2 and 3"),
    EndToken("<turn|>", "Gemma 4"),
    EndToken("<end_of_utterance>", "SmolVLM"),
)
"""From llama.cpp (``special_eog_ids`` of ``llama-vocab.cpp``), which also goes by names, and from Llama 4's
``generation_config.json``.  Tokens that files name as their end of sequence are not listed."""


def named_ends(tokens: Iterable[str]) -> frozenset[str]:
    """Tokens of a vocabulary that end a text by their name."""
    there = set(tokens)
    return frozenset(end.text for end in END_TOKENS if end.text in there and not end.unless & there)
