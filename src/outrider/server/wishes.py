"""Reads requests: from fields of the wire to prompts and sampling parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from outrider.engine.call import RequestSpec
from outrider.grammar import Grammar
from outrider.llm import LLM
from outrider.models.files.tokenizer import Tokenizer
from outrider.sampling.params import SamplingParams
from outrider.server.failures import Refusal
from outrider.server.grammars import grammar_of
from outrider.server.tools.answer import AnswerFormat, answer_format
from outrider.server.tools.functions import Function, Mode, read_choice, read_functions
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
    "priority",
)
"""Fields with the names that sampling parameters have."""
_END: Final = 256
"""Tokens at a prompt's end that tell whether it has opened the reasoning."""
_MOST_LISTED: Final = 1 << 20
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
    form: AnswerFormat | None = None
    """How the model writes reasoning and calls; None where the text is all there is."""
    one_call: bool = False
    """Whether only the first call counts."""
    echoes: Sequence[str] | None = None
    """The text of each prompt, if the outputs begin with it."""


@dataclass(frozen=True)
class Caller:
    """Whose request it is."""

    tenant: str | None = None
    """The owner of the key; tenants are served in turn."""
    salt: str | None = None
    """Which other requests it shares cached rows with."""
    may_hurry: bool = True
    """Whether its requests may come before those of others."""


def sampling_params(fields: SamplingFields, caller: Caller, grammar: Grammar | None, **more: Any) -> SamplingParams:
    """Sampling parameters of a request; fields that were not given keep OpenAI's defaults.

    Args:
        fields: the request.
        caller: whose it is.
        grammar: what the output must look like.
        more: parameters that the kinds of requests spell differently.

    Raises:
        ConfigError: a value is out of bounds; the message begins with its name.
    """
    if (fields.priority or 0) < 0 and not caller.may_hurry:
        raise Refusal(400, "priority must be 0 or more where several keys share the server", "priority")
    listed = len(fields.allowed_token_ids or ()) + len(fields.logit_bias or ()) + sum(map(len, fields.bad_words or ()))
    if listed * fields.outputs > _MOST_LISTED:
        told = "allowed_token_ids, logit_bias and bad_words are read for each output; "
        raise Refusal(400, f"{told}{_MOST_LISTED} of them for all outputs together are the most", "n")
    given = {name: value for name in _SAME if (value := getattr(fields, name)) is not None}
    if (wish := fields.speculation) is not None:
        given |= {
            "speculate": wish.enabled,
            "algorithm": wish.algorithm,
            "max_draft_tokens": wish.max_draft_tokens,
        }
    temperature = 1.0 if fields.temperature is None else fields.temperature
    prediction = None if fields.prediction is None else fields.prediction.text
    return SamplingParams(
        temperature=temperature,
        grammar=grammar,
        prediction=prediction,
        tenant=caller.tenant,
        cache_salt=caller.salt,
        **given | more,
    )


def tokenizer_of(llm: LLM) -> Tokenizer:
    """The model's tokenizer.

    Raises:
        Refusal: it has none.
    """
    if llm.tokenizer is None:
        raise Refusal(400, "this model has no tokenizer, so it serves only token ids")
    return llm.tokenizer


def _ready(llm: LLM, params: SamplingParams) -> SamplingParams:
    """Parameters with everything compiled and encoded, once for all outputs; each reads all of them."""
    params, longest = llm.reader.ready([params])[0], llm.engine.target.context_length
    if len(params.prediction or ()) <= longest:
        return params
    return replace(params, prediction=params.prediction_ids[:longest])  # no output is longer


def wishes(fields: SamplingFields, specs: Sequence[RequestSpec]) -> Wishes:
    """Put a request together.

    Args:
        fields: the request.
        specs: its prompts and parameters.
    """
    options = fields.stream_options
    if options is not None and not fields.stream:
        raise Refusal(400, "stream_options needs stream to be true", "stream_options")
    if fields.stream and fields.prompt_logprobs is not None:
        raise Refusal(400, "prompt_logprobs are not streamed; leave stream out", "prompt_logprobs")
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


def chat_wishes(body: ChatRequest, llm: LLM, caller: Caller) -> Wishes:
    """Read a conversation.

    Raises:
        OutriderError: it cannot be served.
        Refusal: fields contradict each other.
    """
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
    functions = read_functions(tools)
    named = body.tool_choice.model_dump() if isinstance(body.tool_choice, NamedTool) else body.tool_choice
    choice = read_choice(named, functions)
    offered = () if choice.mode is Mode.NONE else functions
    told = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        told.setdefault("reasoning_effort", body.reasoning_effort)
    prompt = llm.encode_chat(
        [message(one) for one in body.messages],
        tools=tools if offered else None,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
        chat_template_kwargs=told,
    )
    form, several = _form(llm, prompt, offered), body.parallel_tool_calls is not False
    written, grammar = form.grammar(choice, several=several), grammar_of(body)
    if written is not None and grammar is not None:
        raise Refusal(400, "tool_choice and another field ask for different forms of one answer", "tool_choice")
    if grammar is not None:  # the grammar describes all of the answer, which so begins with no reasoning
        form = replace(form, reasoning=None, reasoning_open=False)
    params = _chat_params(body, caller, grammar if written is None else Grammar.lark(written), form)
    return replace(wishes(body, [(prompt, _ready(llm, params))]), form=form, one_call=not several)


def _form(llm: LLM, prompt: Sequence[int], functions: Sequence[Function]) -> AnswerFormat:
    """How the model writes an answer to a prompt."""
    tokenizer = tokenizer_of(llm)
    end = tokenizer.decode(prompt[-_END:], skip_special_tokens=False)
    return answer_format(tokenizer.template_text, tokenizer.special_spellings, end, functions)


def _chat_params(body: ChatRequest, caller: Caller, grammar: Grammar | None, form: AnswerFormat) -> SamplingParams:
    if body.top_logprobs and not body.logprobs:
        raise Refusal(400, "top_logprobs needs logprobs to be true", "top_logprobs")
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    more: dict[str, Any] = {"skip_special_tokens": False} if form.needs_special_tokens else {}
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return sampling_params(body, caller, grammar, max_tokens=most, logprobs=logprobs, **more)


def completion_wishes(body: CompletionRequest, llm: LLM, caller: Caller) -> Wishes:
    """Read prompts to complete.

    Raises:
        OutriderError: they cannot be served.
        Refusal: fields contradict each other.
    """
    if (body.logprobs, body.prompt_logprobs) != (None, None):
        tokenizer_of(llm)  # they are told by the tokens' texts
    most = _COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    params = sampling_params(body, caller, grammar_of(body), max_tokens=most, logprobs=body.logprobs, **_of_echo(body))
    ready = _ready(llm, params)
    made = wishes(body, [(_encoded(each, body, llm), ready) for each in body.prompts])
    return replace(made, echoes=[_echo(each, params, llm) for each in body.prompts]) if body.echo else made


def _encoded(prompt: str | list[int], body: CompletionRequest, llm: LLM) -> list[int]:
    if isinstance(prompt, str) and body.add_special_tokens is False:
        return tokenizer_of(llm).encode(prompt, False)
    return llm.reader.encode(prompt)


def _echo(prompt: str | list[int], params: SamplingParams, llm: LLM) -> str:
    """A prompt's text: as it was given, or what its token ids say."""
    return prompt if isinstance(prompt, str) else tokenizer_of(llm).decode(prompt, params.skip_special_tokens)


def _of_echo(body: CompletionRequest) -> dict[str, Any]:
    """The prompt's log-probabilities, where they are part of the text's."""
    if not body.echo or body.logprobs is None:
        return {}
    return {"prompt_logprobs": max(body.logprobs, body.prompt_logprobs or 0)}


def message(one: Message) -> dict[str, Any]:
    """A message as chat templates read it."""
    said = one.model_dump(exclude_none=True)
    return said if said.get("content") is not None or said.get("tool_calls") else said | {"content": ""}
