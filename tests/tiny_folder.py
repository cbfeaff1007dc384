"""A tiny model as users have theirs: a folder with weights, a byte-level tokenizer and a chat template."""

from __future__ import annotations

import json
from pathlib import Path

from tiny import tiny_module
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaForCausalLM

END = "<|end|>"
SPECIAL = (END, "<|user|>", "<|assistant|>", "<|system|>")
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
SMALLEST = 256 + len(SPECIAL)


def make_folder(
    path: Path, seed: int = 0, vocabulary: int = 320, *, template: str | None = TEMPLATE, spoil: str | None = None
) -> Path:
    """Write a random two-layer Llama with its tokenizer into a folder.

    Args:
        path: the folder, made where it is missing.
        seed: of the weights.
        vocabulary: tokens: every byte, then merged pairs of letters, then the special ones.
        template: chat template; None leaves it out.
        spoil: name of a parameter of which one number becomes NaN.
    """
    assert vocabulary >= SMALLEST
    path.mkdir(parents=True, exist_ok=True)
    module = _fresh(seed, vocabulary)
    module.generation_config = GenerationConfig(eos_token_id=vocabulary - len(SPECIAL))
    if spoil is not None:
        module.get_parameter(spoil).data.view(-1)[0] = float("nan")
    module.save_pretrained(path)
    make_tokenizer(vocabulary).save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "clean_up_tokenization_spaces": False}
    if template is not None:
        settings["chat_template"] = template
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def make_tokenizer(vocabulary: int) -> Tokenizer:
    """Byte-level BPE whose merges join pairs of letters; the special tokens come last."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = "etaoinshrdlucmfwypvbgk"
    pairs = [(a, b) for a in letters for b in letters][: vocabulary - SMALLEST]
    entries = [*alphabet, *(a + b for a, b in pairs)]
    model = models.BPE(vocab={token: index for index, token in enumerate(entries)}, merges=pairs)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    assert tokenizer.get_vocab_size() == vocabulary
    return tokenizer


def _fresh(seed: int, vocabulary: int) -> LlamaForCausalLM:
    """A copy that may be changed: the tiny module itself is shared by all tests."""
    shared = tiny_module(seed, vocabulary)
    module = LlamaForCausalLM(shared.config)
    module.load_state_dict(shared.state_dict())
    return module
