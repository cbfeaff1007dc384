"""Fields that requests of several kinds share, and what every answer reports of itself."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

STRICT: Final = ConfigDict(strict=True, extra="forbid", frozen=True)
"""As OpenAI reads requests: no conversions, and an unknown field is refused by its name."""
ANSWER: Final = ConfigDict(frozen=True)


def absent() -> Any:
    """A field of an answer that is left out where there is nothing to tell."""
    return Field(None, exclude_if=lambda value: value is None)


def unread(why: str = "Ignored.") -> Any:
    """A field that clients send and nothing reads.

    Args:
        why: the reason, for the documentation.
    """
    return Field(None, exclude=True, description=why)


def not_offered(advice: str) -> BeforeValidator:
    """Let a field be only null: what it asks for is refused instead of ignored.

    Args:
        advice: why, and what to do.
    """

    def check(value: Any) -> Any:
        if value is not None:
            raise PydanticCustomError("not_offered", "{advice}", {"advice": advice})
        return value

    return BeforeValidator(check)


def only(kind: str, advice: str) -> BeforeValidator:
    """Let an object be only of one ``type``; any other type is refused in one sentence.

    Args:
        kind: the type.
        advice: what to do.
    """

    def check(value: Any) -> Any:
        given = value.get("type") if isinstance(value, dict) else None
        if isinstance(given, str) and given != kind:
            said = {"given": given[:64], "kind": kind, "advice": advice}
            raise PydanticCustomError("not_offered", "type {given} is not offered, only {kind}; {advice}", said)
        return value

    return BeforeValidator(check)


MOST_STOPS, LONGEST_STOP, MOST_BIASES, MOST_BAD_WORDS, MOST_CHOICES = 256, 4096, 16384, 1024, 128
MOST_MESSAGES, MOST_CHOICES_OF_TEXT = 8192, 16384
"""Bounds of one request, so that no request takes more of the server's time than its tokens do."""
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
StopText = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]


class StreamOptions(BaseModel):
    """What a stream reports beside its text."""

    model_config = STRICT
    include_usage: bool | None = None
    include_obfuscation: bool | None = unread()
    continuous_usage_stats: bool | None = Field(None, description="Report the usage so far in every chunk.")


class SpeculationWish(BaseModel):
    """How to speculate for one request; it changes the speed and never the text."""

    model_config = STRICT
    enabled: bool | Literal["auto"] | None = Field(None, description="Off, on, or as the server decides.")
    algorithm: str | None = Field(None, max_length=64, description="A drafting method that the server has loaded.")
    max_draft_tokens: int | None = Field(None, ge=0, le=4096, description="Most draft tokens per round; 0 is off.")


class TextPart(BaseModel):
    """A part of a message or prediction."""

    model_config = STRICT
    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: dict[str, Any] | None = unread("Ignored; equal prefixes are found without it.")
    cache_control: dict[str, Any] | None = unread("Ignored; equal prefixes are found without it.")


Parts = Annotated[
    list[Annotated[TextPart, only("text", "this server reads no images, audio or files")]],
    Field(max_length=1024, fail_fast=True),
]


class PredictedText(BaseModel):
    """A text that the answer probably resembles, such as the file to edit (OpenAI's Predicted Outputs)."""

    model_config = STRICT
    type: Literal["content"]
    content: str | Parts

    @property
    def text(self) -> str:
        """The predicted text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class JsonSchema(BaseModel):
    """A JSON schema with a name."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, serialize_by_alias=True)
    name: str = Field(max_length=64)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """The form that the answer must have."""

    model_config = STRICT
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(BaseModel):
    """The form that the answer must have, as vLLM spells it; one of the fields is given."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, serialize_by_alias=True)
    json_: dict[str, Any] | str | None = Field(None, alias="json", description="A JSON schema.")
    json_object: bool | None = Field(None, description="Any JSON object.")
    regex: str | None = None
    grammar: str | None = Field(None, description="Lark or GBNF.")
    choice: list[str] | None = Field(None, min_length=1, max_length=MOST_CHOICES_OF_TEXT)


class SamplingFields(BaseModel):
    """How tokens are chosen, and how one request is served."""

    model_config = STRICT
    model: str | None = Field(None, max_length=1024, description="Any model's name that /v1/models lists, or none.")
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = Field(None, max_length=MOST_BIASES)
    bad_words: list[Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]] | None = Field(
        None, max_length=MOST_BAD_WORDS
    )
    allowed_token_ids: Annotated[list[TokenId], Field(fail_fast=True)] | None = Field(None, max_length=2**20)
    min_tokens: int | None = None
    max_tokens: int | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: list[TokenId] | None = Field(None, max_length=MOST_STOPS)
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    seed: int | None = None
    n: int | None = Field(None, ge=1, le=MOST_CHOICES)
    prompt_logprobs: int | None = Field(None, ge=0, le=20)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: list[str] | None = Field(None, min_length=1, max_length=MOST_CHOICES_OF_TEXT)
    structured_outputs: StructuredOutputs | None = None
    speculation: SpeculationWish | None = None
    prediction: PredictedText | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    priority: int | None = Field(None, ge=-(2**31), lt=2**31, description="Lower is served first; 0 is the default.")
    timeout: float | None = Field(None, gt=0, description="Seconds after which the request is given up.")
    timings: bool | None = Field(None, description="Report how long the answer took.")
    return_pieces: bool | None = Field(None, description="Mark in each chunk which text was drafted.")
    user: str | None = unread()

    @property
    def outputs(self) -> int:
        """How many outputs it asks for."""
        return self.n or 1


class PromptDetails(BaseModel):
    """What became of the prompt."""

    model_config = ANSWER
    cached_tokens: int = 0


class CompletionDetails(BaseModel):
    """What the answer's tokens were."""

    model_config = ANSWER
    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = Field(0, description="Accepted drafts of a request with `prediction`.")
    rejected_prediction_tokens: int = Field(0, description="Its rejected drafts.")


class SpeculationUsage(BaseModel):
    """What speculation did for the request."""

    model_config = ANSWER
    algorithm: str
    rounds: int = Field(description="Passes of the target that decoded.")
    drafted: int = Field(description="Draft tokens.")
    tested: int = Field(description="Draft tokens that the rule looked at.")
    accepted: int
    acceptance_rate: float = Field(description="Accepted ÷ tested.")
    accepted_length: float = Field(description="Tokens per round, the target's own included; plain decoding has 1.")
    forced: int = Field(0, description="Accepted tokens that a grammar forced; they are not in the other counts.")


class Usage(BaseModel):
    """Tokens of a request, all choices together."""

    model_config = ANSWER
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    speculation: SpeculationUsage


class Timings(BaseModel):
    """How long an answer took, in seconds."""

    model_config = ANSWER
    queue_s: float
    first_token_s: float
    total_s: float
    tokens_per_second: float
    plain_tokens_per_second: float | None = Field(description="Estimated from passes with one row; null if unknown.")


class AnswerHead(BaseModel):
    """What an answer and all chunks of a stream begin with."""

    model_config = ANSWER
    id: str
    created: int
    model: str
    system_fingerprint: str | None = Field(None, description="Equal seeds give equal texts as long as it is the same.")


class ErrorDetail(BaseModel):
    """Why a request was refused or failed."""

    model_config = ANSWER
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every error."""

    model_config = ANSWER
    error: ErrorDetail
