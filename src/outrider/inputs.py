"""Reads what users pass as prompts and parameters: what is clear is taken, the rest refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import fields, replace
from difflib import get_close_matches
from inspect import signature
from operator import index
from typing import Any, Final

from outrider.errors import ConfigError, RequestError, counted
from outrider.models.backends import LoadOptions
from outrider.sampling.params import SamplingParams
from outrider.values import listed, plain

Prompt = str | Sequence[int] | Mapping[str, Any]
"""A text, token ids, or a dict of either; arrays and tensors of ids are read too."""
Params = SamplingParams | Mapping[str, Any]
ReadPrompt = str | list[int]

_IDS: Final = ("prompt_token_ids", "input_ids")
_BESIDE: Final = ("attention_mask", "token_type_ids", "prompt")
"""What may stand beside token ids in a dict: which of them count, and what needs no answer."""
SAME: Final = {
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "num_return_sequences": "n",
    "repeat_penalty": "repetition_penalty",
    "stop_strings": "stop",
    "bad_words_ids": "bad_words",
}
"""What others call a sampling parameter, where they mean the same by it."""
OTHERWISE: Final = {
    "do_sample": "temperature 0 is greedy, and above 0 samples",
    "eos_token_id": "stop_token_ids ends the output at more tokens than the model's own",
    "logits_processor": "processors takes functions of (history, logits)",
    "logits_processors": "processors takes functions of (history, logits)",
    "num_beams": "outputs are sampled, n of them, and there is no beam search",
    "stream": "stream() and chat(…, stream=True) answer piece by piece",
    "top_logprobs": "logprobs takes the number of them",
    "use_tqdm": "progress=True shows a progress bar",
}
"""What others take and is said otherwise here."""
_ROWS: Final = 'cache={"rows": …} bounds the tokens whose keys and values are kept'
_ONE_DEVICE: Final = "a model runs on one device, which device names"
_QUANTIZED: Final = 'quantization="w8" or "w4" quantises on the native backend'
_OWN: Final = "it comes from the model's own files"
LOADED_OTHERWISE: Final = {
    "assistant_model": "draft_model names a smaller model that drafts",
    "attn_implementation": "attention is the backend's own, so leave it out",
    "block_size": 'write cache={"page_size": …}',
    "chat_format": _OWN,
    "device_map": _ONE_DEVICE,
    "enable_prefix_caching": 'write cache={"prefix_cache": True} or False',
    "enforce_eager": "nothing is compiled, so leave it out",
    "gpu_memory_utilization": _ROWS,
    "kv_cache_memory_bytes": _ROWS,
    "load_in_4bit": _QUANTIZED,
    "load_in_8bit": _QUANTIZED,
    "max_model_len": "write context_length",
    "max_num_batched_tokens": 'write scheduler={"max_rows": …}',
    "max_num_seqs": 'write scheduler={"max_running": …}',
    "max_seq_len": "write context_length",
    "model_path": "the model is the first argument",
    "n_batch": 'write scheduler={"prefill_chunk": …}',
    "n_ctx": "write context_length",
    "n_gpu_layers": 'device="cuda" puts the whole model on a GPU, and device="cpu" none of it',
    "num_speculative_tokens": 'write speculation={"method": …, "num_speculative_tokens": …}',
    "pipeline_parallel_size": _ONE_DEVICE,
    "prompt_lookup_num_tokens": 'write speculation={"method": "ngram", "num_draft_tokens": …}',
    "quantization_config": _QUANTIZED,
    "speculative_config": "speculation takes such a dict",
    "speculative_model": "draft_model names a smaller model that drafts",
    "tensor_parallel_size": _ONE_DEVICE,
    "tokenizer": _OWN,
    "torch_dtype": "write dtype",
    "trust_remote_code": "code that comes with a model is never run, so leave it out",
}
"""What others take when they load a model, and what is written here."""


def read_prompts(given: Any) -> list[ReadPrompt]:
    """One prompt or several, each as text or token ids.

    Args:
        given: a text, ids, a dict with ``prompt``, ``prompt_token_ids`` or ``input_ids``, an array of one or two
            dimensions, or anything that can be gone through and holds such.

    Raises:
        RequestError: it is something else, naming the place.
    """
    if isinstance(given, str):
        return [given]
    if isinstance(given, Mapping):
        return _from_mapping(given)
    items = _items(given, "the prompt")
    if items and isinstance(items[0], (int, float)):
        return [read_prompt(items)]
    return [read_prompt(item, f"prompts[{place}]") for place, item in enumerate(items)]


def read_prompt(given: Any, name: str = "the prompt") -> ReadPrompt:
    """One prompt, as text or token ids.

    Args:
        given: see :func:`read_prompts`.
        name: for messages.

    Raises:
        RequestError: it is something else, or several.
    """
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping):
        found = _from_mapping(given, name)
        if len(found) != 1:
            raise RequestError(f"{name} holds {counted(len(found), 'prompt')}; give each on its own")
        return found[0]
    items = _items(given, name)
    if items and all(isinstance(item, (str, Mapping, list, tuple)) for item in items):
        raise RequestError(
            f"{name} must be one text or its token ids, not a list of prompts; stream() takes one prompt, and "
            "generate() a list of them"
        )
    return [_token_id(item, name) for item in items]


def read_params(given: Any, options: Mapping[str, Any], count: int) -> list[SamplingParams]:
    """The sampling parameters of each prompt.

    Args:
        given: one for all prompts, as parameters or a dict, or one for each; None is greedy.
        options: single parameters by name, which go before the others.
        count: how many prompts there are.

    Raises:
        ConfigError: it is something else, or a value is out of range.
        RequestError: there are more or fewer than prompts.
    """
    if "sampling_params" in options:
        if given is not None:
            raise ConfigError("sampling_params is given twice; give it once")
        options = dict(options)
        given = options.pop("sampling_params")
    if given is None or isinstance(given, (SamplingParams, Mapping)):
        return [_one(given, options)] * count
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise ConfigError(
            f"sampling parameters must be SamplingParams, a dict, or one of these a prompt, not {given!r}"
        )
    each = [_one(item, options) for item in given]
    if len(each) != count:
        raise RequestError(
            f"params holds {len(each)} for {counted(count, 'prompt')}; give one for all prompts, or one for each"
        )
    return each


def _one(given: Any, options: Mapping[str, Any]) -> SamplingParams:
    told = {} if given is None else given
    params = SamplingParams(**_named(told)) if isinstance(told, Mapping) else told
    if not isinstance(params, SamplingParams):
        raise ConfigError(f"sampling parameters must be SamplingParams or a dict, not {given!r}")
    return replace(params, **_named(options)) if options else params


def _named(given: Mapping[Any, Any]) -> dict[str, Any]:
    """The same by the names of our own fields."""
    known = [item.name for item in fields(SamplingParams)]
    named: dict[str, Any] = {}
    for name, value in given.items():
        field = SAME.get(name, name)
        if field in named:
            raise ConfigError(f"{field} is given twice, once as {name}; give it once")
        if field not in known:
            raise ConfigError(_unknown(name, known, "sampling parameter", OTHERWISE))
        named[field] = value
    return named


def refuse_unknown(
    unknown: Iterable[str], door: Callable[..., Any], otherwise: Mapping[str, str] = LOADED_OTHERWISE
) -> None:
    """Refuse arguments that are not among a function's own.

    Args:
        unknown: their names.
        door: the function; its arguments' names are what may have been meant.
        otherwise: what to write instead, by name.

    Raises:
        ConfigError: there is one, naming what to write instead.
    """
    known = [item.name for item in signature(door).parameters.values() if item.kind is item.KEYWORD_ONLY]
    sampling = {item.name for item in fields(SamplingParams)} | SAME.keys() | OTHERWISE.keys()
    beside = dict.fromkeys(sampling, "it goes to generate(), chat() or stream()")
    for name in unknown:
        raise ConfigError(_unknown(name, known, "argument", {**beside, **otherwise}))


def _unknown(name: Any, known: Sequence[str], kind: str, otherwise: Mapping[str, str]) -> str:
    if name in otherwise:
        return f"there is no {kind} {name!r}: {otherwise[name]}"
    near = get_close_matches(str(name), known, 1)
    return f"there is no {kind} {name!r}; " + (f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}")


def _from_mapping(given: Mapping[Any, Any], name: str = "the prompt") -> list[ReadPrompt]:
    present = {key: value for key, value in given.items() if value is not None}
    source = next((key for key in (*_IDS, "prompt") if key in present), None)
    if source is None:
        hint = "; conversations go to chat()" if {"role", "content", "messages"} & present.keys() else ""
        raise RequestError(f"{name} is a dict without prompt, prompt_token_ids or input_ids{hint}")
    unread = [key for key in present if key not in (source, *_BESIDE)]
    if unread:
        raise RequestError(f"{name} has {unread[0]!r}, which this model does not read; leave it out")
    found = read_prompts(present[source])
    mask = present.get("attention_mask")
    return found if mask is None else _masked(found, read_prompts(mask), name)


def _masked(prompts: Sequence[ReadPrompt], masks: Sequence[ReadPrompt], name: str) -> list[ReadPrompt]:
    """Token ids without the padding that a mask marks."""
    if [len(ids) for ids in prompts] != [len(mask) for mask in masks]:
        raise RequestError(f"{name} has an attention_mask of another shape than its token ids")
    return [[i for i, kept in zip(ids, mask, strict=True) if kept] for ids, mask in zip(prompts, masks, strict=True)]  # type: ignore[misc]


def _items(given: Any, name: str) -> list[Any]:
    if isinstance(given, (bytes, bytearray, memoryview)):
        raise RequestError(f"{name} must be text or token ids, not bytes; decode it first")
    if isinstance(given, Set):
        raise RequestError(f"{name} must be text or token ids in order, and a set has none; give a list")
    try:
        return listed(given)
    except TypeError:
        raise RequestError(f"{name} must be text or token ids, not {given!r}") from None


def _token_id(item: Any, name: str) -> int:
    try:
        if not isinstance(plain(item), bool):
            return index(item)
    except TypeError:
        pass
    raise RequestError(f"{name} holds {item!r}, which is no token id")


def read_load_options(context_length: Any, **names: Any) -> LoadOptions:
    """How models are run, where the user may pass torch's own names of precisions and devices.

    Args:
        context_length: a whole number, or None.
        names: the other fields; None leaves one at its default.

    Raises:
        ConfigError: the context length is something else.
    """
    longest = plain(context_length)
    if longest is not None and (isinstance(longest, bool) or not isinstance(longest, int)):
        raise ConfigError(f"context_length must be a whole number or None, not {context_length!r}")
    told = {name: str(value).removeprefix("torch.") for name, value in names.items() if value is not None}
    return LoadOptions(context_length=longest, **told)
