"""The stages of an audit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

import torch

from outrider.audit.equality import (
    GREEDY,
    PENALTIES,
    SAMPLED,
    PlainTexts,
    SamplingCase,
    check_texts,
    decode_plainly,
    related_texts,
    with_decoys,
)
from outrider.audit.faults import IN_FREQUENCIES, IN_LAWS, IN_PREFIXES, IN_SITUATIONS, IN_TEXTS, Fault
from outrider.audit.frequencies import (
    ABREAST,
    ITSELF,
    MOST_EACH,
    TARGET,
    Redraw,
    TaskPool,
    TextCounter,
    check_frequencies,
    flattened,
    seek,
)
from outrider.audit.miniature import Miniature
from outrider.audit.parts import Parts, rows_after
from outrider.audit.recorded import RecordedTexts, record
from outrider.audit.report import CheckResult, FaultResult, Remedy, Stage
from outrider.audit.situations import LONGER, Situations
from outrider.config import AuditScope, Speculation
from outrider.drafters.base import DrafterConfig
from outrider.drafters.draft_model import DraftModel
from outrider.errors import ConfigError
from outrider.models.base import TargetModel
from outrider.tree import SequenceRows, root_only
from outrider.verify import Verifier, check_exact, make_verifier, registered, repeats_plain_text
from outrider.verify.rejection import Rejection

FALSE_ALARM: Final = 1e-6
"""Probability over all tests that chance alone fails a check of a lossless engine, or counts a fault as caught."""
TEXT_LENGTH: Final = 3
"""Tokens whose joint frequencies are compared."""
WIDTH: Final = 6
"""Most probable tokens a recorded row keeps."""
FEWEST_TOKENS: Final = 8
FEW: Final = 12
"""Most prompts for planted faults and decoys."""
LONGEST_PREFIX: Final = 64
TEMPERATURES: Final = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
EVEN: Final = 30.0
"""The temperature is raised until the texts have the entropy of this many equally likely ones."""
SHARE: Final = 10
"""Rules without random numbers of their own get draws divided by this: each of their draws chooses among all tokens."""
MINIATURE_SHARE: Final = 20
"""The miniature gets draws divided by this, because its few texts show a fault sooner."""
FEWEST_MINIATURES: Final = 800
"""Draws from the miniature at least; they show every planted fault."""
PREFIXES: Final = "greedy: prompts that begin alike, prefix cache"
MINIATURE: Final = "frequencies through the real sampler"
CROWDED: Final = "ends, bias, processor, n > 1, streams, few pages"
SEEDS_APART: Final = 2**24
DEEP: Final = 16
"""Drafts per round with a planted fault: many, so that the next round can reuse random numbers."""


@dataclass(frozen=True)
class Effort:
    """How much an audit does."""

    scope: AuditScope = "all"
    """What is checked."""
    tokens: int = 32
    """Tokens per text."""
    draws: int = 100_000
    """Redrawn texts per chi-square test."""
    exact: bool = False
    """Require equal tokens even if the backend does not promise them."""
    seed: int = 0
    workers: int = 0
    """Processes that redraw; 0 uses this one."""

    def __post_init__(self) -> None:
        for name, low in (("tokens", FEWEST_TOKENS), ("draws", ABREAST), ("seed", 0), ("workers", 0)):
            if getattr(self, name) < low:
                raise ConfigError(f"{name} must be at least {low}, not {getattr(self, name)}")


FaultCheck = Callable[[str, Fault | None], CheckResult]
"""Runs a check under a name, with or without a planted fault."""


class TextStages:
    """Stages that compare greedy and seeded texts with plain decoding, and the faults they must catch.

    Args:
        parts: the user's engine.
        others: the same with other drafters, whose texts are compared too.
        prompts: token ids; decoys and faults use the first few.
        effort: how much to do.
    """

    def __init__(self, parts: Parts, others: Sequence[Parts], prompts: Sequence[Sequence[int]], effort: Effort) -> None:
        self._parts, self._effort = parts, effort
        self._engines = (parts, *others)
        self._prompts, self._few = prompts, prompts[:FEW]
        self._exact = effort.exact or parts.target.row_invariant
        self._plain: dict[tuple[str, int], PlainTexts] = {}
        # Seeded texts of other rules differ from plain decoding's, so the default rule replaces them.
        self._default = replace(parts, verifier=make_verifier(Speculation().verifier))
        half = effort.tokens // 2  # half of all faults are planted here
        self._situations = Situations(parts, self._few, tokens=half, seed=effort.seed, exact=self._exact)

    def stages(self) -> list[Stage]:
        """All stages, in order."""
        greedy_alone = self._effort.scope == "greedy"
        found: list[Stage] = []
        for setting in (GREEDY,) if greedy_alone else (GREEDY, PENALTIES, *SAMPLED):
            found += self._engine_stages(setting.name, partial(self._method, setting), greedy=setting.params.greedy)
            found.append(_stage(f"{setting.name}: decoy trees", partial(self._decoys, setting)))
        found += _plants(
            IN_TEXTS, {f"{each.name}: decoy trees": partial(self._decoys, each) for each in (GREEDY, PENALTIES)}
        )
        found += [_stage(PREFIXES, self._prefixes), *_plants(IN_PREFIXES, {PREFIXES: self._prefixes})]
        if greedy_alone:
            return found
        name = f"{CROWDED}: decoy trees"
        found += self._engine_stages(CROWDED, self._situations.check, greedy=False)
        return [*found, _stage(name, self._crowd), *_plants(IN_SITUATIONS, {name: self._crowd})]

    def _engine_stages(self, what: str, check: Callable[[str, Parts], CheckResult], *, greedy: bool) -> Iterator[Stage]:
        """A stage for each of the user's engines."""
        for given in self._engines:
            engine = self._repeating(given, greedy)
            name = f"{what}: {engine.config.method}, {engine.verifier.name}"
            yield Stage(name, partial(check, name, engine))

    def _repeating(self, engine: Parts, greedy: bool) -> Parts:
        """The engine under a rule whose texts equal plain decoding's."""
        repeats = greedy or repeats_plain_text(engine.verifier)
        return engine if repeats else replace(engine, verifier=self._default.verifier)

    def _crowd(self, name: str, fault: Fault | None) -> CheckResult:
        engine = _planted(fault, self._situations.with_decoys(self._default))
        return self._situations.check(name, engine, must_meet=fault is None)

    @cached_property
    def _related(self) -> PlainTexts:
        """Plain texts of prompts that begin alike, without sharing."""
        most = self._parts.target.context_length - self._effort.tokens
        texts = related_texts(self._few, most)
        return decode_plainly(self._parts, GREEDY, texts, tokens=self._effort.tokens, seed=self._effort.seed)

    def _prefixes(self, name: str, fault: Fault | None) -> CheckResult:
        engine = _planted(fault, replace(self._parts, prefix_cache=True))
        return check_texts(name, self._parts, engine, self._related, exact=self._exact)

    def _batch(self, setting: SamplingCase, prompts: Sequence[Sequence[int]]) -> PlainTexts:
        key = setting.name, len(prompts)
        if key not in self._plain:
            self._plain[key] = decode_plainly(
                self._parts, setting, prompts, tokens=self._effort.tokens, seed=self._effort.seed
            )
        return self._plain[key]

    def _method(self, setting: SamplingCase, name: str, engine: Parts) -> CheckResult:
        return check_texts(name, self._parts, engine, self._batch(setting, self._prompts), exact=self._exact)

    def _decoys(self, setting: SamplingCase, name: str, fault: Fault | None) -> CheckResult:
        batch = self._batch(setting, self._few)
        engine = _planted(fault, with_decoys(self._default, batch))
        return check_texts(name, self._parts, engine, batch, exact=self._exact)


def _planted(fault: Fault | None, engine: Parts) -> Parts:
    return fault.plant(engine) if fault else engine


def _stage(name: str, check: FaultCheck) -> Stage:
    """The stage of a check without a fault."""
    return Stage(name, partial(check, name, None))


def _plants(faults: Iterable[Fault], checks: Mapping[str, FaultCheck]) -> Iterator[Stage]:
    """A stage for each fault that one of some checks must catch."""
    return (Stage(fault.name, partial(_caught, fault, checks)) for fault in faults)


def _caught(fault: Fault, checks: Mapping[str, FaultCheck]) -> FaultResult:
    """Run checks with a fault until one fails."""
    for name, check in checks.items():
        result = check(name, fault)
        if not result.passed:
            return FaultResult(fault.name, True, name, result.detail)
    return FaultResult(fault.name, False, "", result.detail, LONGER)


@dataclass(frozen=True)
class _Drawing:
    """Texts to draw and count."""

    name: str
    source: Callable[[], TextCounter]
    draws: int
    by: str = ""
    """The check that catches a planted fault."""
    share: int = 1
    """The user's draws over these draws."""


class FrequencyStages:
    """Stages that test frequencies under the ratio rules, and the faults they must catch.

    Args:
        parts: the user's engine.
        prompts: token ids; the one with the least certain continuation is the prefix.
        effort: how much to do.
        models: draft models by name.
        workers: run the redraws.
    """

    def __init__(
        self,
        parts: Parts,
        prompts: Sequence[Sequence[int]],
        effort: Effort,
        models: Mapping[str, TargetModel],
        workers: TaskPool,
    ) -> None:
        self._parts, self._prompts, self._effort = parts, prompts, effort
        self._models, self._workers = models, workers

    def stages(self) -> list[Stage]:
        """All stages, in order."""
        numbers = itertools.count(1)
        tests = [*self._on_recording(numbers), *self._on_miniature(numbers)]
        plants = [*self._in_frequencies(numbers), *self._in_laws(numbers)]
        alarm = FALSE_ALARM / (len(tests) + len(plants))
        return [Stage(test.name, partial(self._check, test, alarm)) for test in tests] + [
            Stage(plant.name, partial(self._seek, plant, alarm)) for plant in plants
        ]

    def _on_recording(self, numbers: Iterator[int]) -> Iterator[_Drawing]:
        for config, rule in self._tests():
            source = partial(self._redraw, config, rule, next(numbers))
            share = SHARE if repeats_plain_text(rule) else 1
            yield _Drawing(f"frequencies: {self._label(config, rule)}", source, self._effort.draws // share)

    def _on_miniature(self, numbers: Iterator[int]) -> Iterator[_Drawing]:
        config, chosen = self._parts.config, self._parts.verifier
        tests = [] if config.needs.reads_hidden else [(config, chosen)]
        tests += [(_self_draft(2 if rule.trees else 1), rule) for rule in _ratio_rules()]
        for config, rule in tests:
            source = partial(Miniature, config, rule, self._seed(next(numbers)))
            yield _Drawing(f"{MINIATURE}: {self._label(config, rule)}", source, self._miniatures)

    def _in_frequencies(self, numbers: Iterator[int]) -> Iterator[_Drawing]:
        for fault in IN_FREQUENCIES:
            # The fault replaces the rule; this one is needed to build the drafter.
            source = partial(self._redraw, _self_draft(1, DEEP), Rejection(), next(numbers), fault.plant)
            yield _Drawing(fault.name, source, self._effort.draws, "frequencies, the target itself")

    def _in_laws(self, numbers: Iterator[int]) -> Iterator[_Drawing]:
        for fault in IN_LAWS:
            source = partial(Miniature, _self_draft(1, DEEP), Rejection(), self._seed(next(numbers)), fault.plant)
            yield _Drawing(fault.name, source, self._miniatures, MINIATURE, MINIATURE_SHARE)

    def _label(self, config: DrafterConfig, rule: Verifier) -> str:
        return f"{rule.name}, {config.method if config is self._parts.config else 'the target itself'}"

    @property
    def _miniatures(self) -> int:
        return max(FEWEST_MINIATURES, self._effort.draws // MINIATURE_SHARE)

    def _tests(self) -> list[tuple[DrafterConfig, Verifier]]:
        ratio = _ratio_rules()
        config, chosen = self._parts.config, self._parts.verifier
        tests: list[tuple[DrafterConfig, Verifier]] = []
        if not config.needs.reads_hidden:  # a recording has no hidden rows
            tests += [(config, chosen)] if repeats_plain_text(chosen) else []
            tests += [(config, rule) for rule in ratio if config.most_nodes > 1 and _is_exact(config, rule)]
        return tests + [(_self_draft(2 if rule.trees else 1), rule) for rule in ratio]

    @cached_property
    def _recording(self) -> RecordedTexts:
        prefix = _least_certain(self._parts, [prompt[-LONGEST_PREFIX:] for prompt in self._prompts])
        models = {TARGET: self._parts.target, **self._models}
        found = record(models, prefix, length=TEXT_LENGTH, width=WIDTH, vocabulary=self._parts.vocabulary)
        return found.with_model(ITSELF, flattened(found.rows[TARGET])).numbered()

    @cached_property
    def _temperature(self) -> float:
        for temperature in TEMPERATURES:
            law = self._recording.law(TARGET, temperature).values()
            if math.exp(-sum(p * math.log(p) for p in law if p > 0.0)) >= EVEN:
                return temperature
        return TEMPERATURES[-1]

    def _redraw(
        self, config: DrafterConfig, rule: Verifier, number: int, plant: Callable[[Parts], Parts] | None = None
    ) -> Redraw:
        each = min(MOST_EACH, max(1, self._effort.draws // ABREAST))
        return Redraw(self._recording, config, rule, self._temperature, self._seed(number), plant, each)

    def _seed(self, number: int) -> int:
        return self._effort.seed + number * SEEDS_APART

    def _check(self, test: _Drawing, alarm: float) -> CheckResult:
        return check_frequencies(test.name, test.source(), test.draws, alarm, self._workers)

    def _seek(self, plant: _Drawing, alarm: float) -> FaultResult:
        found = seek(plant.source(), plant.draws, alarm, self._workers, max(1, self._effort.workers))
        detail = f"p {found.fit.p_value:.1g} after {found.draws:,} draws"
        if found.caught:
            return FaultResult(plant.name, True, plant.by, detail)
        return FaultResult(plant.name, False, "", detail, Remedy(draws=found.needed * plant.share))


def _ratio_rules() -> list[Verifier]:
    rules = [rule() for rule in registered().values()]
    return [rule for rule in rules if rule.lossless and not repeats_plain_text(rule)]


def _is_exact(config: DrafterConfig, rule: Verifier) -> bool:
    try:
        check_exact(rule, config.method, config.needs)
    except ConfigError:
        return False
    return True


def _self_draft(topk: int, num_steps: int = 2) -> DraftModel:
    return DraftModel(model=ITSELF, num_steps=num_steps, topk=topk)


def _least_certain(parts: Parts, prompts: Sequence[Sequence[int]]) -> Sequence[int]:
    """The prompt whose next token has the highest entropy."""

    def entropy(prompt: Sequence[int]) -> float:
        row = rows_after(parts.target, SequenceRows("prompt", 0, tuple(prompt[:-1]), root_only(prompt[-1])))[0]
        p = torch.softmax(torch.topk(row[: parts.vocabulary], min(WIDTH, parts.vocabulary)).values.double(), 0)
        return float(-(p * torch.log(p)).sum())

    return max(prompts, key=entropy)
