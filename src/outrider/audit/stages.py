"""What an audit does, one stage after the other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from outrider.audit.report import CheckResult, FaultResult, Remedy
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
"""Odds that chance alone makes a check of a lossless engine fail or a fault count as caught, all tests together."""
TEXT_LENGTH: Final = 3
"""Tokens whose joint frequencies are compared."""
WIDTH: Final = 6
"""Most probable tokens a recorded row keeps."""
FEWEST_TOKENS: Final = 8
FEW: Final = 12
"""Prompts for which faults are planted and decoys drafted, however many there are."""
LONGEST_PREFIX: Final = 64
TEMPERATURES: Final = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
EVEN: Final = 30.0
"""The temperature is raised until the texts are as hard to guess as this many equally likely ones."""
SHARE: Final = 10
"""A rule that throws no dice of its own is redrawn this many times less: every draw chooses among all tokens anew."""
MINIATURE_SHARE: Final = 20
"""So many times less is drawn from the miniature, whose laws are few and far apart where something is wrong."""
FEWEST_MINIATURES: Final = 800
"""But no less than this, which shows every planted fault."""
PREFIXES: Final = "greedy: prompts that begin alike, prefix cache"
MINIATURE: Final = "frequencies through the real sampler"
CROWDED: Final = "ends, bias, processor, n > 1, streams, few pages"
SEEDS_APART: Final = 2**24
DEEP: Final = 16
"""Drafts per round where a fault is planted: what is thrown past a round's end can be thrown again."""


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
    """Demand equal tokens where the backend itself does not promise them."""
    seed: int = 0
    workers: int = 0
    """Processes that redraw; 0 redraws in this one."""

    def __post_init__(self) -> None:
        """Refuse values out of bounds."""
        for name, low in (("tokens", FEWEST_TOKENS), ("draws", ABREAST), ("seed", 0), ("workers", 0)):
            if getattr(self, name) < low:
                raise ConfigError(f"{name} must be at least {low}, not {getattr(self, name)}")


@dataclass(frozen=True)
class Stage:
    """One check or one planted fault."""

    name: str
    run: Callable[[], CheckResult | FaultResult]


class TextStages:
    """Greedy and seeded texts against plain decoding, and the faults that show there.

    Args:
        parts: the user's engine.
        others: the same with other drafters, whose texts are compared too.
        prompts: token ids; faults are planted, and decoys drafted, for the first few.
        effort: how much to do.
    """

    def __init__(self, parts: Parts, others: Sequence[Parts], prompts: Sequence[Sequence[int]], effort: Effort) -> None:
        self._parts, self._effort = parts, effort
        self._engines = (parts, *others)
        self._prompts, self._few = prompts, prompts[:FEW]
        self._exact = effort.exact or parts.target.row_invariant
        self._plain: dict[tuple[str, int], PlainTexts] = {}
        # Texts repeat under rules that add no dice; where the user's own does, the default rule is compared instead.
        self._default = replace(parts, verifier=make_verifier(Speculation().verifier))
        half = effort.tokens // 2  # there are as many faults to plant as in all other texts
        self._situations = Situations(parts, self._few, tokens=half, seed=effort.seed, exact=self._exact)

    def stages(self) -> list[Stage]:
        """Everything there is to do."""
        found = []
        settings = (GREEDY,) if self._effort.scope == "greedy" else (GREEDY, PENALTIES, *SAMPLED)
        for setting in settings:
            for given in self._engines:
                engine = self._repeating(given, setting.params.greedy)
                name = f"{setting.name}: {engine.config.method}, {engine.verifier.name}"
                found.append(Stage(name, partial(self._method, name, engine, setting)))
            name = f"{setting.name}: decoy trees"
            found.append(Stage(name, partial(self._decoys, name, setting, None)))
        found += [Stage(fault.name, partial(self._plant, fault)) for fault in IN_TEXTS]
        found.append(Stage(PREFIXES, partial(self._prefixes, None)))
        found += [Stage(fault.name, partial(self._plant_prefix, fault)) for fault in IN_PREFIXES]
        return found if self._effort.scope == "greedy" else found + self._crowded_stages()

    def _crowded_stages(self) -> list[Stage]:
        found = []
        for given in self._engines:
            engine = self._repeating(given, greedy=False)
            name = f"{CROWDED}: {engine.config.method}, {engine.verifier.name}"
            found.append(Stage(name, partial(self._situations.check, name, engine)))
        name = f"{CROWDED}: decoy trees"
        found.append(Stage(name, partial(self._crowd, name, None)))
        return found + [Stage(fault.name, partial(self._plant_crowded, name, fault)) for fault in IN_SITUATIONS]

    def _repeating(self, engine: Parts, greedy: bool) -> Parts:
        """The engine under a rule whose text is plain decoding's very text."""
        repeats = greedy or repeats_plain_text(engine.verifier)
        return engine if repeats else replace(engine, verifier=self._default.verifier)

    def _crowd(self, name: str, fault: Fault | None) -> CheckResult:
        engine = self._situations.with_decoys(self._default)
        return self._situations.check(name, fault.plant(engine) if fault else engine, must_meet=fault is None)

    def _plant_crowded(self, name: str, fault: Fault) -> FaultResult:
        return _found_in_texts(fault, name, self._crowd(name, fault))

    @cached_property
    def _related(self) -> PlainTexts:
        """What plain decoding makes of prompts that begin alike, each computed by itself."""
        most = self._parts.target.context_length - self._effort.tokens
        texts = related_texts(self._few, most)
        return decode_plainly(self._parts, GREEDY, texts, tokens=self._effort.tokens, seed=self._effort.seed)

    def _prefixes(self, fault: Fault | None) -> CheckResult:
        engine = replace(self._parts, prefix_cache=True)
        engine = fault.plant(engine) if fault else engine
        return check_texts(PREFIXES, self._parts, engine, self._related, exact=self._exact)

    def _plant_prefix(self, fault: Fault) -> FaultResult:
        return _found_in_texts(fault, PREFIXES, self._prefixes(fault))

    def _batch(self, setting: SamplingCase, prompts: Sequence[Sequence[int]]) -> PlainTexts:
        key = setting.name, len(prompts)
        if key not in self._plain:
            self._plain[key] = decode_plainly(
                self._parts, setting, prompts, tokens=self._effort.tokens, seed=self._effort.seed
            )
        return self._plain[key]

    def _method(self, name: str, engine: Parts, setting: SamplingCase) -> CheckResult:
        return check_texts(name, self._parts, engine, self._batch(setting, self._prompts), exact=self._exact)

    def _decoys(self, name: str, setting: SamplingCase, fault: Fault | None) -> CheckResult:
        batch = self._batch(setting, self._few)
        engine = with_decoys(self._default, batch)
        return check_texts(name, self._parts, fault.plant(engine) if fault else engine, batch, exact=self._exact)

    def _plant(self, fault: Fault) -> FaultResult:
        for setting in (GREEDY, PENALTIES):
            name = f"{setting.name}: decoy trees"
            result = self._decoys(name, setting, fault)
            if not result.passed:
                break
        return _found_in_texts(fault, name, result)


def _found_in_texts(fault: Fault, name: str, result: CheckResult) -> FaultResult:
    """What a check says of an engine with a fault in it."""
    if result.passed:
        return FaultResult(fault.name, False, "", result.detail, LONGER)
    return FaultResult(fault.name, True, name, result.detail)


@dataclass(frozen=True)
class _Drawing:
    """Texts to draw and count."""

    name: str
    source: Callable[[], TextCounter]
    draws: int
    by: str = ""
    """What catches a fault that was planted."""
    share: int = 1
    """So many times the draws are the user's."""


class FrequencyStages:
    """Frequencies under the ratio rules, and the faults that show there.

    Args:
        parts: the user's engine.
        prompts: token ids; the one with the least certain continuation is the prefix.
        effort: how much to do.
        models: draft models by name.
        workers: who redraws.
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
        """Everything there is to do."""
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
            # The fault brings its rule along; any that draws independently lets the drafter be built.
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
        if not config.needs.reads_hidden:  # a recording has rows of logits, none of hidden states
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
    """The prompt whose next token is hardest to guess."""

    def entropy(prompt: Sequence[int]) -> float:
        row = rows_after(parts.target, SequenceRows("prompt", 0, tuple(prompt[:-1]), root_only(prompt[-1])))[0]
        p = torch.softmax(torch.topk(row[: parts.vocabulary], min(WIDTH, parts.vocabulary)).values.double(), 0)
        return float(-(p * torch.log(p)).sum())

    return max(prompts, key=entropy)
