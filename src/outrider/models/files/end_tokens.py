"""End tokens that are known by name.

A file names one end of sequence; instruct models have others, for the end of a turn or of a call of a tool.  Folders
list them in ``generation_config.json`` where their makers thought of it, GGUF files cannot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class EndToken:
    """A token that ends a turn or a text wherever a vocabulary has it as a token of its own."""

    text: str
    models: str
    """Which end with it."""
    unless: frozenset[str] = frozenset()
    """Other tokens beside which it separates the parts of one turn instead."""


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
"""From llama.cpp (``special_eog_ids`` of ``llama-vocab.cpp``), which goes by names whatever type a file gives a token,
and from Llama 4's ``generation_config.json``.  Of llama.cpp's, those that files name as their end of sequence are left
out."""


def named_ends(tokens: Iterable[str]) -> frozenset[str]:
    """Those of a vocabulary's tokens that end a text by their name."""
    there = set(tokens)
    return frozenset(end.text for end in END_TOKENS if end.text in there and not end.unless & there)
