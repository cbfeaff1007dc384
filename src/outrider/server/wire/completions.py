"""``/v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from outrider.server.wire.shared import ANSWER, AnswerHead, SamplingFields, Timings, TokenId, Usage, absent

MOST_PROMPTS = 1024
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]


class CompletionRequest(SamplingFields):
    """A prompt, or several, to complete."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"prompt": "def fibonacci(n):", "max_tokens": 64, "temperature": 0, "stop": ["\n\n"]}]
        }
    )
    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
        | TokenIds
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
    )
    echo: bool | None = Field(None, description="Begin the text with the prompt.")
    logprobs: int | None = Field(None, ge=0, le=20)
    add_special_tokens: bool | None = Field(None, description="Put the model's special tokens around a text prompt.")
    best_of: Literal[1] | None = Field(None, description="Only 1: nothing is thrown away.")
    suffix: Literal[""] | None = Field(None, description="Not supported.")

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each as text or token ids."""
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if one else list(self.prompt)  # type: ignore[list-item, arg-type]

    @property
    def outputs(self) -> int:
        """How many outputs it asks for, those of all prompts together."""
        return len(self.prompts) * (self.n or 1)


class CompletionLogprobs(BaseModel):
    """Log-probabilities of a completion's tokens, in lists of equal length."""

    model_config = ANSWER
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One completion, or what a chunk adds to it."""

    model_config = ANSWER
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = absent()
    seed: int | None = absent()
    prompt_logprobs: list[dict[str, Any] | None] | None = absent()
    pieces: list[tuple[str, bool]] | None = absent()


class CompletionAnswer(AnswerHead):
    """The completions of a request, or one event of a stream."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: Usage | None = Field(None, description="In a stream only with `include_usage`; null before its end.")
    timings: Timings | None = absent()
