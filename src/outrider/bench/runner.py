"""Paired and interleaved runs: each prompt runs under every method, in shuffled order, before the next prompt.

Models are loaded once.  Each run gets a new engine, so that runs share no cache and no corpus.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from outrider.bench.prompts import Encoded
from outrider.config import CacheConfig, Speculation
from outrider.drafters.base import DrafterConfig
from outrider.engine.driver import Driver
from outrider.errors import NumericsError
from outrider.heads.checkpoint import HeadCheckpoint
from outrider.llm import LLM
from outrider.metrics import PhaseSeconds, SpeculationStats
from outrider.models.base import TargetModel
from outrider.models.files.tokenizer import Tokenizer
from outrider.sampling.params import SamplingParams
from outrider.verify.base import Verifier

_WARM_UP_TOKENS: Final = 8
_SPARE_ROWS: Final = 1024
"""Cache rows for draft trees, in addition to prompt and output."""
_SEEDS_PER_PROMPT: Final = 1000


@dataclass(frozen=True)
class Setting:
    """One way to sample."""

    temperature: float
    top_p: float

    @property
    def label(self) -> str:
        """For tables."""
        if self.temperature == 0:
            return "greedy"
        return f"T={self.temperature:g}" + (f" p={self.top_p:g}" if self.top_p < 1 else "")


def grid(temperatures: Sequence[float], top_ps: Sequence[float]) -> list[Setting]:
    """Every temperature with every top_p; greedy decoding once, because top_p does not change it."""
    pairs = [Setting(t, 1.0 if t == 0 else p) for t in temperatures for p in top_ps]
    return list(dict.fromkeys(pairs))


@dataclass(frozen=True)
class Arm:
    """One method with its options."""

    name: str
    config: DrafterConfig
    verifier: Verifier
    plain: bool = False
    """Whether this is the baseline."""
    automatic: bool = False
    """Whether ``auto`` chooses this one."""


@dataclass(frozen=True)
class Models:
    """Loaded models."""

    target: TargetModel
    tokenizer: Tokenizer
    drafts: Mapping[str, TargetModel]
    heads: Mapping[str, HeadCheckpoint] = field(default_factory=dict)

    def load(self, path: str) -> tuple[TargetModel, Tokenizer]:
        """A draft model; it shares the target's tokenizer."""
        return self.drafts[path], self.tokenizer

    def engine(self, arm: Arm, rows: int = 0) -> LLM:
        """A new engine for one method; weights are not copied.

        Args:
            arm: the method.
            rows: cache rows; 0 for two whole contexts.
        """
        return LLM.from_model(
            self.target,
            self.tokenizer,
            speculation=Speculation(arm.config, arm.verifier.name),
            draft_models=self.drafts,
            heads=self.heads,
            # Every run computes its whole prompt, even if another method has completed it before.
            cache=CacheConfig(rows=rows, prefix_cache=False),
        )


@dataclass(frozen=True)
class Workload:
    """Prompts, settings and methods to run."""

    prompts: tuple[Encoded, ...]
    settings: tuple[Setting, ...]
    arms: tuple[Arm, ...]
    max_tokens: int
    repeats: int = 1
    seed: int = 0

    @property
    def runs(self) -> int:
        """The number of completions."""
        return len(self.prompts) * len(self.settings) * len(self.arms) * self.repeats

    @property
    def cache_rows(self) -> int:
        """Rows for any of these requests with its draft tree."""
        return max(len(prompt.token_ids) for prompt in self.prompts) + self.max_tokens + _SPARE_ROWS

    def params(self, prompt: Encoded, setting: Setting, repeat: int) -> SamplingParams:
        """The sampling parameters and seed of a run, the same for every method."""
        return SamplingParams(
            temperature=setting.temperature,
            top_p=setting.top_p,
            max_tokens=self.max_tokens,
            seed=self.seed + prompt.row.number * _SEEDS_PER_PROMPT + repeat,
        )


@dataclass(frozen=True)
class Sample:
    """One completion, measured."""

    prompt: Encoded
    setting: Setting
    arm: Arm
    repeat: int
    order: int
    """The place of this arm in the prompt's order, from 0."""
    token_ids: tuple[int, ...]
    finish_reason: str
    stats: SpeculationStats
    seconds: PhaseSeconds
    draft_prefill: float
    """The drafter's prefill: seconds of the first draft beyond the median of the later ones."""
    wall: float
    """Seconds from the request to its last token."""

    @property
    def decode(self) -> float:
        """Seconds of decoding rounds, without the drafter's prefill."""
        return self.seconds.decode - self.draft_prefill


def run(models: Models, workload: Workload, advance: Callable[[], None] = lambda: None) -> Iterator[Sample]:
    """Run a workload and yield a sample for each completion.

    Args:
        models: the models.
        workload: what to run.
        advance: called after each completion.
    """
    for arm in workload.arms:
        _warm_up(models, workload, arm)
    shuffled = random.Random(workload.seed)
    for prompt in workload.prompts:
        for setting in workload.settings:
            for repeat in range(workload.repeats):
                order = list(workload.arms)
                shuffled.shuffle(order)
                for place, arm in enumerate(order):
                    sample = measure(models.engine(arm, workload.cache_rows), workload, prompt, setting, arm, repeat)
                    yield replace(sample, order=place)
                    advance()


def _warm_up(models: Models, workload: Workload, arm: Arm) -> None:
    """Run a few tokens, because the first passes of a process allocate and tune."""
    params = SamplingParams(max_tokens=min(_WARM_UP_TOKENS, workload.max_tokens))
    engine = models.engine(arm, workload.cache_rows).engine
    Driver(engine, threaded=False).complete([(workload.prompts[0].token_ids, params)])


def measure(llm: LLM, workload: Workload, prompt: Encoded, setting: Setting, arm: Arm, repeat: int) -> Sample:
    """Complete one prompt and measure it.

    Raises:
        NumericsError: the target's logits contain NaN or infinity.
    """
    engine, drafts = llm.engine, [0.0]
    driver = Driver(engine, threaded=False)  # read the clock between rounds
    before = engine.seconds.copy()
    begun = time.perf_counter()
    call = driver.submit([(prompt.token_ids, workload.params(prompt, setting, repeat))])
    while driver.wait(call) is not None:
        drafts.append(engine.seconds.draft)
    wall = time.perf_counter() - begun
    whole = call.choice(call.requests[0])
    if whole.error is not None:
        raise NumericsError(f"{prompt.row.id}: {whole.error}")
    return Sample(
        prompt=prompt,
        setting=setting,
        arm=arm,
        repeat=repeat,
        order=0,
        token_ids=whole.token_ids,
        finish_reason=whole.finish_reason.value,
        stats=whole.speculation,
        seconds=engine.seconds.minus(before),
        draft_prefill=_first_excess([later - earlier for earlier, later in pairwise(drafts)]),
        wall=wall,
    )


def _first_excess(drafts: Sequence[float]) -> float:
    """Seconds of the first draft beyond the median of the later ones; rounds of the target's prefill take 0 seconds."""
    taken = [seconds for seconds in drafts if seconds > 0]
    return max(0.0, taken[0] - statistics.median(taken[1:])) if len(taken) > 1 else 0.0
