"""``/v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from outrider.server.wire.shared import (
    ANSWER,
    MOST_MESSAGES,
    STRICT,
    AnswerHead,
    Parts,
    SamplingFields,
    Timings,
    Usage,
    absent,
    not_offered,
    only,
    unread,
)


class FunctionCall(BaseModel):
    """A function and its arguments as JSON text."""

    model_config = STRICT
    name: str
    arguments: str
    parsed_arguments: Any = unread("Ignored; clients send it back with an answer that they parsed.")


class ToolCall(BaseModel):
    """A call that an answer of the model made."""

    model_config = STRICT
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = unread("Ignored; clients send it back from a stream.")


class Message(BaseModel):
    """One message of a conversation."""

    model_config = STRICT
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Parts | None = None
    name: str | None = Field(None, max_length=256)
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = unread()
    audio: Annotated[None, not_offered("this server reads only text")] = None
    function_call: Annotated[None, not_offered("use tool_calls")] = None
    annotations: list[Any] | None = unread()
    parsed: Any = unread("Ignored; clients send it back with an answer that they parsed.")


class FunctionSpec(BaseModel):
    """A function that the model may call."""

    model_config = STRICT
    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolSpec(BaseModel):
    """A tool that the model may call."""

    model_config = STRICT
    type: Literal["function"]
    function: FunctionSpec


class FunctionName(BaseModel):
    """A function by name."""

    model_config = STRICT
    name: str


class NamedTool(BaseModel):
    """The tool that the answer must call."""

    model_config = STRICT
    type: Literal["function"]
    function: FunctionName


class ChatRequest(SamplingFields):
    """A conversation to answer."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"messages": [{"role": "user", "content": "Tell me of the sea."}], "max_tokens": 64, "stream": True}
            ]
        }
    )
    messages: Annotated[list[Message], Field(fail_fast=True)] = Field(min_length=1, max_length=MOST_MESSAGES)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Annotated[ToolSpec, only("function", "describe it as a function")]] | None = Field(None, max_length=128)
    tool_choice: (
        Literal["none", "auto", "required"] | Annotated[NamedTool, only("function", "offer fewer tools instead")] | None
    ) = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    reasoning_effort: str | None = Field(None, description="Passed to the chat template.")
    modalities: list[Literal["text"]] | None = Field(None, max_length=8)
    functions: Annotated[None, not_offered("use tools")] = None
    function_call: Annotated[None, not_offered("use tool_choice")] = None
    audio: Annotated[None, not_offered("this server writes only text")] = None
    moderation: Annotated[None, not_offered("this server does not moderate")] = None
    web_search_options: Annotated[None, not_offered("this server does not search the web; give it a tool")] = None
    metadata: dict[str, str] | None = unread()
    store: bool | None = unread("Ignored; nothing is stored.")
    service_tier: str | None = unread()
    safety_identifier: str | None = unread()
    prompt_cache_key: str | None = unread("Ignored; equal prefixes are found without it.")
    prompt_cache_options: dict[str, Any] | None = unread("Ignored; equal prefixes are found without it.")
    prompt_cache_retention: str | None = unread("Ignored; prefixes stay as long as there is room.")
    verbosity: str | None = unread()


class TopLogprob(BaseModel):
    """A token and its log-probability."""

    model_config = ANSWER
    token: str
    logprob: float
    bytes: list[int] | None = None


class ChatLogprob(BaseModel):
    """A token of the answer, its log-probability, and the most probable tokens there."""

    model_config = ANSWER
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(BaseModel):
    """Log-probabilities of an answer's tokens."""

    model_config = ANSWER
    content: list[ChatLogprob] | None


class AnswerMessage(BaseModel):
    """The model's message."""

    model_config = ANSWER
    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | None = absent()
    refusal: None = None
    tool_calls: list[ToolCall] | None = absent()


class ChatChoice(BaseModel):
    """One answer."""

    model_config = ANSWER
    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str
    stop_reason: int | str | None = absent()
    seed: int
    pieces: list[tuple[str, bool]] | None = absent()


class ChatAnswer(AnswerHead):
    """The answers to a conversation."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings | None = absent()
    prompt_logprobs: list[dict[str, Any] | None] | None = absent()


class FunctionDelta(BaseModel):
    """What a chunk adds to a call."""

    model_config = ANSWER
    name: str | None = absent()
    arguments: str | None = absent()


class ToolCallDelta(BaseModel):
    """A call that begins or goes on."""

    model_config = ANSWER
    index: int
    id: str | None = absent()
    type: Literal["function"] | None = absent()
    function: FunctionDelta


class Delta(BaseModel):
    """What a chunk adds to an answer."""

    model_config = ANSWER
    role: Literal["assistant"] | None = absent()
    content: str | None = absent()
    reasoning_content: str | None = absent()
    tool_calls: list[ToolCallDelta] | None = absent()


class ChunkChoice(BaseModel):
    """One answer's part of a chunk."""

    model_config = ANSWER
    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = absent()
    seed: int | None = absent()
    pieces: list[tuple[str, bool]] | None = absent()


class ChatChunk(AnswerHead):
    """One event of a stream."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChunkChoice]
    usage: Usage | None = Field(None, description="Only with `include_usage`; null before the stream's end.")
    timings: Timings | None = absent()
