"""One bench from request to result: load, run, compare, summarise."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.bench import machine
from outrider.bench.equality import Difference, compare, promises_plain_text
from outrider.bench.prompts import encode_prompts, file_name, form, selected_prompts
from outrider.bench.report import MEANINGS, SCHEMA_VERSION, arm_json, sample_json, summarise
from outrider.bench.runner import Arm, Models, Sample, Workload, grid, run
from outrider.config import Speculation
from outrider.drafters.none import NoDraft
from outrider.errors import ConfigError, RequestError
from outrider.heads.loading import kind_of, read_head
from outrider.models.backends import LoadOptions, load_model, resolve_dtype
from outrider.models.files.weight_files import weight_files
from outrider.models.loading import find
from outrider.options import drafters_named
from outrider.prompts import Prompt
from outrider.sampling.params import SamplingParams
from outrider.verify import make_verifier


@dataclass(frozen=True)
class BenchRequest:
    """What to measure."""

    model: str
    """The target's folder, hub id, file or name."""
    options: LoadOptions
    """How to load it and the draft models."""
    arms: tuple[Arm, ...]
    """The methods, plain decoding first."""
    prompts: Path | None
    """A file of prompts; None takes the built-in ones."""
    temperatures: tuple[float, ...]
    top_ps: tuple[float, ...]
    max_tokens: int
    select: str | None = None
    limit: int | None = None
    repeats: int = 1
    seed: int = 0
    chat: bool | None = None

    def __post_init__(self) -> None:
        for name, value in (("max_tokens", self.max_tokens), ("repeat", self.repeats), ("limit", self.limit)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        for temperature in self.temperatures:
            for top_p in self.top_ps:
                SamplingParams(temperature=temperature, top_p=top_p, seed=self.seed)


def plain_arm(verifier: str) -> Arm:
    """The baseline: plain decoding; under the default rule if ``verifier`` is lossy.

    Raises:
        ConfigError: there is no such rule.
    """
    rule = make_verifier(verifier)
    return Arm(NoDraft.method, NoDraft(), rule if rule.lossless else make_verifier(Speculation().verifier), plain=True)


@dataclass(frozen=True, eq=False)
class Measured:
    """A finished bench with its loaded models."""

    models: Models
    workload: Workload
    samples: tuple[Sample, ...]
    result: dict[str, Any]
    """Ready for JSON."""


def measure(request: BenchRequest, begin: Callable[[int], None], advance: Callable[[], None]) -> Measured:
    """Run a bench.

    Args:
        request: what to measure.
        begin: called once with the number of runs.
        advance: called after each run.
    """
    arms, settings = request.arms, grid(request.temperatures, request.top_ps)
    rows = selected_prompts(request.prompts, request.select, request.limit)
    models, dtype = _load(request, arms)
    chat = request.chat if request.chat is not None else bool(models.tokenizer.chat_template)
    workload = Workload(
        prompts=tuple(encode_prompts(models.tokenizer, rows, chat=chat)),
        settings=tuple(settings),
        arms=arms,
        max_tokens=request.max_tokens,
        repeats=request.repeats,
        seed=request.seed,
    )
    _check_lengths(workload, models.target.context_length)
    begin(workload.runs)
    before = machine.read_bandwidth(models.target.device)
    samples = list(run(models, workload, advance))
    bandwidth = max(before, machine.read_bandwidth(models.target.device))
    differences = _differences(models, workload, samples, dtype)
    entries = summarise(samples, arms, differences)
    result = {
        "schema_version": SCHEMA_VERSION,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "model": _model_facts(request, models),
        "machine": machine.facts(),
        "workload": _workload_facts(request, workload, rows, chat=chat),
        "algorithms": [arm_json(arm, _names(models)) for arm in arms],
        "ceiling": _ceiling(models.target.token_bytes, bandwidth, entries[0]["tokens_per_s"]),
        "results": entries,
        "meanings": MEANINGS,
        "samples": [sample_json(sample) for sample in samples],
    }
    return Measured(models, workload, tuple(samples), result)


def _load(request: BenchRequest, arms: Sequence[Arm]) -> tuple[Models, torch.dtype]:
    """Load the target, draft models and heads once each, in one precision on one device."""
    options = request.options
    target, tokenizer = load_model(request.model, options)
    dtype = resolve_dtype(options.dtype, target.device)
    drafts, heads = {}, {}
    for path in dict.fromkeys(path for arm in arms for path in drafters_named(arm.config)):
        if kind_of(path) is not None:
            heads[path] = read_head(path)
            continue
        drafts[path], draft_tokenizer = load_model(path, options.for_drafter)
        match = tokenizer.compare(draft_tokenizer)
        if match.kind == "different":
            raise ConfigError(f"{path} cannot draft for this target: {match.reason}")
    return Models(target, tokenizer, drafts, heads), dtype


def _names(models: Models) -> dict[str, str]:
    """The names of draft models and heads, by path."""
    return {path: find(path)[1] for path in models.drafts} | {path: head.name for path, head in models.heads.items()}


def _check_lengths(workload: Workload, context_length: int) -> None:
    """Refuse prompts that do not fit into the context."""
    for prompt in workload.prompts:
        if len(prompt.token_ids) >= context_length:
            raise RequestError(
                f"prompt {prompt.row.id} has {len(prompt.token_ids)} tokens, but the context has {context_length}; "
                "exclude it with --select"
            )


def _differences(
    models: Models, workload: Workload, samples: Sequence[Sample], dtype: torch.dtype
) -> dict[tuple[str, str], list[Difference]]:
    """Texts that differ from plain decoding's, by setting and method, for rules that promise equal texts."""
    plain = {_key(sample): sample for sample in samples if sample.arm.plain}
    judge = models.engine(workload.arms[0], workload.cache_rows)
    found: dict[tuple[str, str], list[Difference]] = {}
    for sample in samples:
        if sample.arm.plain or not promises_plain_text(sample.arm.verifier, sample.setting):
            continue
        params = workload.params(sample.prompt, sample.setting, sample.repeat)
        difference = compare(judge, plain[_key(sample)], sample, params, dtype, exact=models.target.row_invariant)
        if difference is not None:
            found.setdefault((sample.setting.label, sample.arm.name), []).append(difference)
    return found


def _key(sample: Sample) -> tuple[Any, ...]:
    return sample.prompt.row.number, sample.setting, sample.repeat


def _model_facts(request: BenchRequest, models: Models) -> dict[str, Any]:
    return _file_facts(request.model) | {
        "dtype": models.target.precision,
        "device": str(models.target.device),
        "context_length": models.target.context_length,
        "parameter_bytes": models.target.packed_bytes,
        "row_invariant": models.target.row_invariant,
        "draft_models": [
            _file_facts(path) | {"parameter_bytes": model.packed_bytes} for path, model in models.drafts.items()
        ],
    }


def _file_facts(model: str) -> dict[str, Any]:
    path, name = find(model)
    files = (path,) if path.is_file() else weight_files(path, name)
    return {"name": name, "file_bytes": sum(file.stat().st_size for file in files)}


def _workload_facts(request: BenchRequest, workload: Workload, rows: Sequence[Prompt], *, chat: bool) -> dict[str, Any]:
    return {
        "file": file_name(request.prompts),
        "select": request.select,
        "limit": request.limit,
        "prompts": len(rows),
        "prompt_tokens": sum(len(prompt.token_ids) for prompt in workload.prompts),
        "max_tokens": request.max_tokens,
        "repeats": request.repeats,
        "seed": request.seed,
        "batch": 1,
        "settings": [{"temperature": s.temperature, "top_p": s.top_p} for s in workload.settings],
        "form": form(rows, chat=chat),
    }


def _ceiling(read: int, bandwidth: float, tokens_per_s: float | None) -> dict[str, Any]:
    """The limit of plain decoding, which reads every parameter once per token."""
    most = bandwidth / read if read else None
    return {
        "read_bytes_per_s": bandwidth,
        "bytes_per_token": read,
        "tokens_per_s": most,
        "share_reached": tokens_per_s / most if most and tokens_per_s else None,
    }
