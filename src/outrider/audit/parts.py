"""The parts of an engine, so that the audit can replace one of them and check the effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from outrider.config import SchedulerConfig
from outrider.drafters.base import DrafterConfig
from outrider.engine.build import build_engine
from outrider.engine.driver import Driver
from outrider.engine.engine import Engine
from outrider.engine.picker import DrawingPicker
from outrider.errors import NumericsError
from outrider.kv.pool import KVPool
from outrider.models.base import TargetModel
from outrider.models.files.tokenizer import Tokenizer
from outrider.requests.request import Request
from outrider.sampling.params import SamplingParams
from outrider.tree import SequenceRows, TreeBatch
from outrider.verify.base import Verifier

Load = Callable[[str], "tuple[TargetModel, Tokenizer | None]"]
"""Loads a draft model by the name the user gave it."""
PAGE = 16
ABREAST = 32
"""Most texts that are completed at a time; the others wait."""


@dataclass(frozen=True, eq=False)
class Parts:
    """Everything an engine is built from."""

    target: TargetModel
    tokenizer: Tokenizer | None
    load: Load
    config: DrafterConfig
    verifier: Verifier
    dtype: torch.dtype = torch.float32
    pool: type[KVPool] = KVPool
    engine: Callable[..., Engine] = Engine
    picker: type[DrawingPicker] = DrawingPicker
    prefix_cache: bool = False
    """Whether requests share prefixes; off except in the check of the prefix cache."""

    @property
    def vocabulary(self) -> int:
        """The number of token ids that can be chosen."""
        known = self.tokenizer.vocab_size if self.tokenizer else self.target.vocabulary
        return min(self.target.vocabulary, known)

    def build(self, sequences: int, tokens: int) -> Engine:
        """Build an engine for token ids alone, with pages for all requests; every text has its full length.

        Args:
            sequences: most concurrent requests.
            tokens: longest request, output included.
        """
        longest = -(-(tokens + 4 * self.config.most_nodes + PAGE) // PAGE) * PAGE
        return self.engine_on(sequences, self.pool(sequences * longest, PAGE, self.prefix_cache), None)

    def engine_on(self, sequences: int, pool: KVPool, tokenizer: Tokenizer | None) -> Engine:
        """Build an engine on given pages.

        Args:
            sequences: most concurrent requests.
            pool: the pages.
            tokenizer: makes text and knows the end tokens; None serves token ids alone.
        """
        engine = build_engine(
            self.target,
            self.tokenizer,
            self.config,
            self.verifier,
            pool,
            load=self.load,
            scheduler=SchedulerConfig(max_running=sequences),
            ids_alone=tokenizer is None,
            kind=self.engine,
        )
        engine.drafting.picker_type = self.picker
        return engine

    def complete(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[Request]:
        """Complete prompts concurrently.

        Raises:
            NumericsError: the target's logits contain NaN or infinity.
        """
        longest = max(len(prompt) + (wish.max_tokens or 0) for prompt, wish in zip(prompts, params, strict=True))
        with Driver(self.build(min(len(prompts), ABREAST), longest), threaded=False) as driver:
            call = driver.submit(zip(prompts, params, strict=True), ends_only=True)
            while driver.wait(call) is not None:
                pass
        for request in call.requests:
            if request.error is not None:
                raise NumericsError(request.error)
        return call.requests


def rows_after(target: TargetModel, rows: SequenceRows) -> torch.Tensor:
    """The target's logits after every node of one sequence's tree, computed on pages of its own.

    Returns:
        float [nodes, vocabulary].
    """
    cache = KVPool(-(-(rows.context + rows.rows) // PAGE) * PAGE, PAGE).cache("rows")
    cache.extend(rows.key, rows.context + rows.rows)
    batch = TreeBatch.pack([rows], target.device)
    return batch.tree_logits(target.forward(batch, cache).logits, 0).float()
