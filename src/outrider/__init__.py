"""Lossless speculative decoding: the same output, faster.

A cheap drafter proposes several tokens, the target verifies them in one pass, and an acceptance rule keeps those that
the target would have written itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.completion import Choice, Chunk, Completion
    from outrider.config import CacheConfig, SchedulerConfig, Speculation
    from outrider.engine.stream import AsyncStream, Stream
    from outrider.errors import ConfigError, ModelError, NumericsError, OutriderError, RequestError
    from outrider.grammar import Grammar
    from outrider.llm import LLM
    from outrider.requests.stopping import FinishReason
    from outrider.sampling.params import SamplingParams

_HOMES = {
    "LLM": "llm",
    "SamplingParams": "sampling.params",
    "Speculation": "config",
    "CacheConfig": "config",
    "SchedulerConfig": "config",
    "Completion": "completion",
    "Choice": "completion",
    "Chunk": "completion",
    "Stream": "engine.stream",
    "AsyncStream": "engine.stream",
    "FinishReason": "requests.stopping",
    "Grammar": "grammar",
    "OutriderError": "errors",
    "ConfigError": "errors",
    "ModelError": "errors",
    "NumericsError": "errors",
    "RequestError": "errors",
}

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncStream",
    "CacheConfig",
    "Choice",
    "Chunk",
    "Completion",
    "ConfigError",
    "FinishReason",
    "Grammar",
    "ModelError",
    "NumericsError",
    "OutriderError",
    "RequestError",
    "SamplingParams",
    "SchedulerConfig",
    "Speculation",
    "Stream",
]


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that ``outrider --help`` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}")
    return getattr(importlib.import_module(f"outrider.{_HOMES[name]}"), name)
