"""Logits to distribution to token: one function for every row, and noise that is computed, never streamed."""

from outrider.sampling.params import LogitsProcessor, SamplingParams
from outrider.sampling.sampler import RequestSampler

__all__ = ["LogitsProcessor", "RequestSampler", "SamplingParams"]
