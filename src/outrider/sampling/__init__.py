"""From logits to tokens: sampling parameters, distributions, and keyed noise."""

from outrider.sampling.params import LogitsProcessor, SamplingParams
from outrider.sampling.sampler import RequestSampler

__all__ = ["LogitsProcessor", "RequestSampler", "SamplingParams"]
