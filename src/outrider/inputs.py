"""Reads prompts and parameters as users write them, and refuses unclear input in one sentence."""

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
"""A text, token ids, or a dict with one of them; arrays and tensors of ids work too."""
Params = SamplingParams | Mapping[str, Any]
ReadPrompt = str | list[int]

_IDS: Final = ("prompt_token_ids", "input_ids")
_BESIDE: Final = ("attention_mask", "token_type_ids", "prompt")
"""Keys that a dict may have beside the token ids."""
SAME: Final = {
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "num_return_sequences": "n",
    "repeat_penalty": "repetition_penalty",
    "stop_strings": "stop",
    "bad_words_ids": "bad_words",
}
"""Other projects' names of sampling parameters with the same meaning."""
OTHERWISE: Final = {
    "do_sample": "temperature=0 is greedy, and a higher temperature samples",
    "eos_token_id": "stop_token_ids adds token ids that end the output",
    "logits_processor": "pass functions of (history, logits) as processors",
    "logits_processors": "pass functions of (history, logits) as processors",
    "num_beams": "there is no beam search; n gives several samples",
    "stream": "use stream() or chat(…, stream=True)",
    "top_logprobs": "logprobs takes the number",
    "use_tqdm": "progress=True shows a progress bar",
}
"""Other projects' sampling parameters that are written differently here."""
_ROWS: Final = 'cache={"rows": …} limits the tokens in the KV cache'
_ONE_DEVICE: Final = "a model runs on one device; name it with device"
_QUANTIZED: Final = 'quantization="w8" or "w4" quantizes on the native backend'
_OWN: Final = "it comes from the model's files, so leave it out"
LOADED_OTHERWISE: Final = {
    "assistant_model": "draft_model names the draft model",
    "attn_implementation": "each backend has its own attention, so leave it out",
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
    "n_gpu_layers": 'device="cuda" puts the whole model on the GPU',
    "num_speculative_tokens": 'write speculation={"method": …, "num_speculative_tokens": …}',
    "pipeline_parallel_size": _ONE_DEVICE,
    "prompt_lookup_num_tokens": 'write speculation={"method": "ngram", "num_draft_tokens": …}',
    "quantization_config": _QUANTIZED,
    "speculative_config": "pass the dict as speculation",
    "speculative_model": "draft_model names the draft model",
    "tensor_parallel_size": _ONE_DEVICE,
    "tokenizer": _OWN,
    "torch_dtype": "write dtype",
    "trust_remote_code": "Outrider never runs code from a model, so leave it out",
}
"""Other projects' arguments for loading a model, and what to write here."""


def read_prompts(given: Any) -> list[ReadPrompt]:
    """Read one prompt or several, each as text or token ids.

    Args:
        given: a text, token ids, a dict with ``prompt``, ``prompt_token_ids`` or ``input_ids``, an array of one or two
            dimensions, or an iterable of these.

    Raises:
        RequestError: it is none of these; the message names the place.
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
    """Read one prompt as text or token ids.

    Args:
        given: as for :func:`read_prompts`.
        name: its name in messages.

    Raises:
        RequestError: it is not a prompt, or there are several.
    """
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping):
        found = _from_mapping(given, name)
        if len(found) != 1:
            raise RequestError(f"{name} holds {counted(len(found), 'prompt')}; give one at a time")
        return found[0]
    items = _items(given, name)
    if items and all(isinstance(item, (str, Mapping, list, tuple)) for item in items):
        raise RequestError(
            f"{name} must be one text or its token ids, not a list of prompts; stream() takes one prompt, and "
            "generate() a list of them"
        )
    return [_token_id(item, name) for item in items]


def read_params(given: Any, options: Mapping[str, Any], count: int) -> list[SamplingParams]:
    """Read the sampling parameters of each prompt.

    Args:
        given: parameters or a dict for all prompts, or a list with one per prompt; None is greedy.
        options: single parameters by name; they override the others.
        count: the number of prompts.

    Raises:
        ConfigError: it is none of these, or a value is out of range.
        RequestError: their number differs from that of the prompts.
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
            f"sampling parameters must be SamplingParams, a dict, or a list with one per prompt, not {given!r}"
        )
    each = [_one(item, options) for item in given]
    if len(each) != count:
        raise RequestError(
            f"got {counted(len(each), 'set')} of parameters for {counted(count, 'prompt')}; "
            "give one for all prompts, or one per prompt"
        )
    return each


def _one(given: Any, options: Mapping[str, Any]) -> SamplingParams:
    told = {} if given is None else given
    params = SamplingParams(**_named(told)) if isinstance(told, Mapping) else told
    if not isinstance(params, SamplingParams):
        raise ConfigError(f"sampling parameters must be SamplingParams or a dict, not {given!r}")
    return replace(params, **_named(options)) if options else params


def _named(given: Mapping[Any, Any]) -> dict[str, Any]:
    """The parameters by the names of our fields."""
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
    """Refuse unknown keyword arguments.

    Args:
        unknown: their names.
        door: the function that got them.
        otherwise: what to write instead, by name.

    Raises:
        ConfigError: there is one; the message says what to write instead.
    """
    known = [item.name for item in signature(door).parameters.values() if item.kind is item.KEYWORD_ONLY]
    sampling = {item.name for item in fields(SamplingParams)} | SAME.keys() | OTHERWISE.keys()
    beside = dict.fromkeys(sampling, "pass it to generate(), chat() or stream()")
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
        hint = "; pass conversations to chat()" if {"role", "content", "messages"} & present.keys() else ""
        raise RequestError(f"{name} is a dict without prompt, prompt_token_ids or input_ids{hint}")
    unread = [key for key in present if key not in (source, *_BESIDE)]
    if unread:
        raise RequestError(f"{name} has {unread[0]!r}, which is not supported; leave it out")
    found = read_prompts(present[source])
    mask = present.get("attention_mask")
    return found if mask is None else _masked(found, read_prompts(mask), name)


def _masked(prompts: Sequence[ReadPrompt], masks: Sequence[ReadPrompt], name: str) -> list[ReadPrompt]:
    """Token ids without the padding that the mask marks."""
    if [len(ids) for ids in prompts] != [len(mask) for mask in masks]:
        raise RequestError(f"{name} has an attention_mask whose shape differs from its token ids")
    return [[i for i, kept in zip(ids, mask, strict=True) if kept] for ids, mask in zip(prompts, masks, strict=True)]  # type: ignore[misc]


def _items(given: Any, name: str) -> list[Any]:
    if isinstance(given, (bytes, bytearray, memoryview)):
        raise RequestError(f"{name} must be text or token ids, not bytes; decode it first")
    if isinstance(given, Set):
        raise RequestError(f"{name} must be text or token ids, and a set has no order; give a list")
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
    raise RequestError(f"{name} holds {item!r}, which is not a token id")


def read_load_options(context_length: Any, **names: Any) -> LoadOptions:
    """Read the options of loading a model; dtype and device may be torch objects.

    Args:
        context_length: a whole number, or None.
        names: the other fields; None keeps the default.

    Raises:
        ConfigError: the context length is not a whole number.
    """
    longest = plain(context_length)
    if longest is not None and (isinstance(longest, bool) or not isinstance(longest, int)):
        raise ConfigError(f"context_length must be a whole number or None, not {context_length!r}")
    told = {name: str(value).removeprefix("torch.") for name, value in names.items() if value is not None}
    return LoadOptions(context_length=longest, **told)
