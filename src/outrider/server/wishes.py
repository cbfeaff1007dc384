"""Reads requests: from fields of the wire to prompts and sampling parameters."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from outrider.engine.admission import in_tokens
from outrider.engine.call import RequestSpec
from outrider.llm import LLM
from outrider.sampling.params import SamplingParams
from outrider.server.failures import Refusal
from outrider.server.wire.chat import ChatRequest, Message, NamedTool
from outrider.server.wire.completions import CompletionRequest
from outrider.server.wire.shared import SamplingFields

_SAME: Final = (
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "min_tokens",
    "max_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "seed",
    "n",
    "prompt_logprobs",
)
"""Fields with the names that sampling parameters have."""
_SEED_BITS: Final = 53
"""A drawn seed is reported, and JSON's readers keep no more bits of a number."""
_COMPLETION_TOKENS: Final = 16
"""OpenAI's default for completions."""


@dataclass(frozen=True)
class Wishes:
    """What a request asks for, ready for the engine."""

    specs: Sequence[RequestSpec]
    streams: bool
    include_usage: bool
    continuous_usage: bool
    timings: bool
    pieces: bool
    predicts: bool
    """Whether the client gave a prediction."""
    seconds: float | None
    """Time that the client gives."""


def sampling_params(fields: SamplingFields, salt: str | None, **more: Any) -> SamplingParams:
    """Sampling parameters of a request; fields that were not given keep OpenAI's defaults.

    Args:
        fields: the request.
        salt: which other requests it shares cached rows with.
        more: parameters that the kinds of requests spell differently.

    Raises:
        ConfigError: a value is out of bounds; the message begins with its name.
    """
    given = {name: value for name in _SAME if (value := getattr(fields, name)) is not None}
    speculation = fields.speculation
    if speculation is not None and speculation.enabled is False:
        given["speculate"] = False
    if fields.seed is None:
        given["seed"] = secrets.randbits(_SEED_BITS)
    temperature = 1.0 if fields.temperature is None else fields.temperature
    return SamplingParams(temperature=temperature, cache_salt=salt, **given | more)


def wishes(fields: SamplingFields, specs: Sequence[RequestSpec]) -> Wishes:
    """Put a request together.

    Args:
        fields: the request.
        specs: its prompts and parameters.
    """
    options = fields.stream_options
    if options is not None and not fields.stream:
        raise Refusal(400, "stream_options needs stream to be true", "stream_options")
    return Wishes(
        specs=specs,
        streams=bool(fields.stream),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
        timings=bool(fields.timings),
        pieces=bool(fields.return_pieces),
        predicts=fields.prediction is not None,
        seconds=fields.timeout,
    )


def chat_wishes(body: ChatRequest, llm: LLM, salt: str | None) -> Wishes:
    """Read a conversation.

    Raises:
        OutriderError: it cannot be served.
        Refusal: fields contradict each other.
    """
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if body.top_logprobs and not body.logprobs:
        raise Refusal(400, "top_logprobs needs logprobs to be true", "top_logprobs")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    params = in_tokens(sampling_params(body, salt, max_tokens=most, logprobs=logprobs), llm.tokenizer)
    told = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        told.setdefault("reasoning_effort", body.reasoning_effort)
    tools = None if body.tool_choice == "none" else [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
    _check_tools(body)
    prompt = llm.encode_chat(
        [message(one) for one in body.messages],
        tools=tools or None,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
        chat_template_kwargs=told,
    )
    return wishes(body, [llm.reader.prompt(prompt, params, {})])


def completion_wishes(body: CompletionRequest, llm: LLM, salt: str | None) -> Wishes:
    """Read prompts to complete.

    Raises:
        OutriderError: they cannot be served.
        Refusal: fields contradict each other.
    """
    most = _COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    told = sampling_params(body, salt, max_tokens=most, logprobs=body.logprobs, **_of_echo(body))
    params = in_tokens(told, llm.tokenizer)
    prompts: list[Any] = [body.prompt] if _is_one(body.prompt) else list(body.prompt)
    plain = body.add_special_tokens is False and llm.tokenizer is not None
    ids = [
        llm.tokenizer.encode(each, False) if plain and llm.tokenizer and isinstance(each, str) else each
        for each in prompts
    ]
    return wishes(body, [llm.reader.prompt(each, params, {}) for each in ids])


def _of_echo(body: CompletionRequest) -> dict[str, Any]:
    """The prompt's log-probabilities, where they are part of the text's."""
    if not body.echo or body.logprobs is None:
        return {}
    return {"prompt_logprobs": max(body.logprobs, body.prompt_logprobs or 0)}


def _is_one(prompt: Any) -> bool:
    return isinstance(prompt, str) or isinstance(prompt[0], int)


def message(one: Message) -> dict[str, Any]:
    """A message as chat templates read it."""
    said = one.model_dump(exclude_none=True, exclude={"refusal", "audio", "function_call", "annotations"})
    return said if said.get("content") is not None or said.get("tool_calls") else said | {"content": ""}


def _check_tools(body: ChatRequest) -> None:
    """Refuse a choice of tools that are not there."""
    names = [tool.function.name for tool in body.tools or ()]
    if isinstance(body.tool_choice, NamedTool) and (name := body.tool_choice.function.name) not in names:
        raise Refusal(400, f"tool_choice names {name!r}, which tools does not have", "tool_choice")
    if body.tool_choice == "required" and not names:
        raise Refusal(400, "tool_choice is required, but there are no tools", "tool_choice")
