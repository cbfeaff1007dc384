"""The small routes: models, tokens, health, the switch of speculation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from outrider.server.wire.chat import Message, ToolSpec
from outrider.server.wire.shared import ANSWER, MOST_MESSAGES, STRICT, TokenId


class ModelCard(BaseModel):
    """A model that is served."""

    model_config = ANSWER
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "outrider"
    max_model_len: int
    backend: str
    algorithm: str
    algorithms: list[str]


class ModelList(BaseModel):
    """All models that are served."""

    model_config = ANSWER
    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeRequest(BaseModel):
    """A text or a conversation to encode."""

    model_config = STRICT
    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(fail_fast=True)] | None = Field(
        None, min_length=1, max_length=MOST_MESSAGES
    )
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    tools: list[ToolSpec] | None = Field(None, max_length=128)

    @model_validator(mode="after")
    def _one_of_them(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class TokenizeAnswer(BaseModel):
    """Token ids."""

    model_config = ANSWER
    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(BaseModel):
    """Token ids to decode."""

    model_config = STRICT
    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class DetokenizeAnswer(BaseModel):
    """The text of token ids."""

    model_config = ANSWER
    prompt: str


class ServerStatus(BaseModel):
    """How the server is."""

    model_config = ANSWER
    status: Literal["ok", "draining"]


class Version(BaseModel):
    """The server's version."""

    model_config = ANSWER
    version: str


class SpeculationSwitch(BaseModel):
    """How requests speculate that say nothing of it."""

    model_config = STRICT
    enabled: bool = True
    algorithm: str | None = Field(None, max_length=64, description="A loaded method; null is the server's own.")
    max_draft_tokens: int | None = Field(None, ge=1, le=4096)
