"""The matrix: every request feature with every drafting method; a cell tells whether the answer is plain decoding's.

``test_matrix.py`` runs each cell as a test, and ``docs/generate_matrix.py`` writes what it finds as a page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from byte_text import byte_tokenizer
from tiny import tiny_model

from contract.cases import configs, heads_of
from outrider import LLM, Grammar, SamplingParams, Speculation
from outrider.completion import Completion
from outrider.config import SchedulerConfig
from outrider.drafters.base import DrafterConfig

SIZE: Final = byte_tokenizer().vocab_size
PROMPT: Final = "the sea, the sea, the open sea; the sea"
SCHEMA: Final = {
    "type": "object",
    "properties": {"sea": {"type": "boolean"}, "shore": {"enum": ["near", "far"]}},
    "required": ["sea", "shore"],
    "additionalProperties": False,
}
SEEDED: Final = {"temperature": 1.0, "seed": 11}
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "greedy": {},
    "temperature, seed": SEEDED,
    "top_k": {**SEEDED, "top_k": 9},
    "top_p": {**SEEDED, "top_p": 0.8},
    "min_p": {**SEEDED, "min_p": 0.05},
    "repetition_penalty": {**SEEDED, "repetition_penalty": 1.3},
    "presence_penalty": {**SEEDED, "presence_penalty": 0.7},
    "frequency_penalty": {**SEEDED, "frequency_penalty": 0.4},
    "logit_bias": {**SEEDED, "logit_bias": {101: 3.0, 32: -100.0}},
    "bad_words": {**SEEDED, "bad_words": ("e", "th")},
    "allowed_token_ids": {**SEEDED, "allowed_token_ids": tuple(range(97, 123))},
    "min_tokens": {"stop_token_ids": (101, 116), "min_tokens": 9},
    "stop (strings)": {**SEEDED, "stop": ("e", "sea", ", ")},
    "stop_token_ids": {**SEEDED, "stop_token_ids": (101,)},
    "ignore_eos": {"ignore_eos": True},
    "n": {**SEEDED, "n": 3},
    "logprobs": {**SEEDED, "logprobs": 3},
    "prompt_logprobs": {"prompt_logprobs": 2},
    "regular expression": {**SEEDED, "grammar": Grammar.regex("([a-e]+ ){2}[a-z]{1,4}")},
    "JSON schema": {**SEEDED, "grammar": Grammar.json_schema(SCHEMA, any_whitespace=False)},
    "prediction": {**SEEDED, "prediction": "the sea, the open sea, and the shore"},
    "logits processor": {**SEEDED, "processors": (lambda history, logits: logits.roll(history[-1] % 3),)},
}
"""Sampling features, as parameters; each is compared with plain decoding of the same parameters."""


def of_settings(name: str) -> Callable[[DrafterConfig], bool]:
    """A cell's check for a sampling feature."""

    def equal(config: DrafterConfig) -> bool:
        return _facts(_llm(config).generate(PROMPT, _params(name))[0]) == plain(name)

    return equal


def streamed(config: DrafterConfig) -> bool:
    """Whether a stream's chunks join to plain decoding's text."""
    with _llm(config).stream(PROMPT, _params("temperature, seed")) as chunks:
        text = "".join(chunk.text for chunk in chunks)
    return text == plain("temperature, seed")[0][0]


def cached(config: DrafterConfig) -> bool:
    """Whether an answer with a cached prompt is plain decoding's, and tokens were reused."""
    llm = _llm(config, prefix=True)
    llm.generate(PROMPT, _params("greedy"))
    again = llm.generate(PROMPT, _params("temperature, seed"))[0]
    return again.cached_tokens > 0 and _facts(again) == plain("temperature, seed")


def beside_others(config: DrafterConfig) -> bool:
    """Whether eight requests side by side each get what they get alone."""
    llm = _llm(config)
    names = list(SETTINGS)[:8]
    done = llm.generate([PROMPT] * len(names), [_params(name) for name in names])
    return [_facts(one) for one in done] == [plain(name) for name in names]


def in_small_pieces(config: DrafterConfig) -> bool:
    """Whether a prompt that is computed in pieces of seven tokens gives the same answer."""
    llm = _llm(config, scheduler=SchedulerConfig(prefill_chunk=7))
    return _facts(llm.generate(PROMPT, _params("temperature, seed"))[0]) == plain("temperature, seed")


def capped(config: DrafterConfig) -> bool:
    """Whether a cap on drafts, and none at all, change nothing."""
    llm, wish = _llm(config), _params("temperature, seed")
    found = [llm.generate(PROMPT, wish, max_draft_tokens=most)[0] for most in (0, 1, 3)]
    return all(_facts(one) == plain("temperature, seed") for one in found)


CHECKS: Final[Mapping[str, Callable[[DrafterConfig], bool]]] = {
    **{name: of_settings(name) for name in SETTINGS},
    "streaming": streamed,
    "prefix cache": cached,
    "continuous batching": beside_others,
    "chunked prefill": in_small_pieces,
    "max_draft_tokens": capped,
}
"""Every row of the matrix."""


def columns() -> dict[str, DrafterConfig]:
    """Every column: each method once, as a tree where it can branch."""
    found = dict(configs("good"))
    return {name: found.get(f"{name}-tree", config) for name, config in found.items() if "-" not in name}


@cache
def plain(name: str) -> tuple[Any, ...]:
    """What plain decoding gives, without any drafts."""
    return _facts(_plain_llm().generate(PROMPT, _params(name), speculate=False)[0])


@cache
def _plain_llm() -> LLM:
    return LLM.from_model(tiny_model(0, SIZE), byte_tokenizer(), speculation=None)


def _params(name: str) -> SamplingParams:
    return SamplingParams(max_tokens=40 if "grammar" in SETTINGS[name] else 20, **SETTINGS[name])


def _facts(done: Completion) -> tuple[Any, ...]:
    """All of an answer that must not depend on speculation."""
    choices = [
        (one.text, one.token_ids, one.finish_reason, one.stop_reason, _logprobs(one.logprobs)) for one in done.choices
    ]
    return (*choices, _logprobs(done.prompt_logprobs))


def _logprobs(found: Any) -> Any:
    """Log-probabilities to four digits: this backend's numbers depend on the other rows of a pass."""
    return found and [one and (one.token_id, round(one.logprob, 3)) for one in found]


def _llm(config: DrafterConfig, *, prefix: bool = False, scheduler: SchedulerConfig | None = None) -> LLM:
    target = tiny_model(0, SIZE)
    return LLM.from_model(
        target,
        byte_tokenizer(),
        speculation=Speculation(config),
        draft_models={"good": tiny_model(0, SIZE), "bad": tiny_model(1, SIZE)},
        heads=heads_of(config, target),
        cache={"prefix_cache": prefix, "page_size": 4},
        scheduler=scheduler,
    )
