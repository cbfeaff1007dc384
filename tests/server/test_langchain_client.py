"""``ChatOpenAI`` of LangChain as a client: its answers are the library's own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field
from serving import Served

SYSTEM, QUESTION = "be brief", "tell me of the sea"
CONVERSATION = [SystemMessage(SYSTEM), HumanMessage(QUESTION)]


@pytest.fixture
def options(served: Served, client: httpx.Client) -> Iterator[dict[str, Any]]:
    """What every model of LangChain's needs to know."""
    with httpx.Client(trust_env=False) as http:
        yield {
            "base_url": f"{served.url}/v1",
            "api_key": "x",
            "model": client.get("/v1/models").json()["data"][0]["id"],
            "max_retries": 0,
            "http_client": http,
            "http_async_client": httpx.AsyncClient(trust_env=False),
        }


def expected(served: Served, question: str = QUESTION, **params: Any) -> str:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    done = served.llm.chat(messages, **{"max_tokens": 16, "temperature": 0.0} | params)
    return done.text


def test_invoke_stream_and_batch(served: Served, options: dict[str, Any]) -> None:
    model = ChatOpenAI(**options, temperature=0, max_tokens=16, stream_usage=True)
    answer = model.invoke(CONVERSATION)
    assert answer.content == expected(served)
    assert answer.response_metadata["finish_reason"] in ("stop", "length")
    whole = None
    for chunk in model.stream(CONVERSATION):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.content == answer.content
    assert whole.usage_metadata == answer.usage_metadata
    assert whole.response_metadata["finish_reason"] == answer.response_metadata["finish_reason"]
    questions = ["a", "b", "c", "d"]
    told = model.batch([[SystemMessage(SYSTEM), HumanMessage(question)] for question in questions])
    assert [one.content for one in told] == [expected(served, question) for question in questions]


def test_options_reach_the_model(served: Served, options: dict[str, Any]) -> None:
    model = ChatOpenAI(**options, temperature=0.8, max_tokens=16, seed=5, top_p=0.9, stop=["e"], frequency_penalty=0.5)
    params = {"temperature": 0.8, "seed": 5, "top_p": 0.9, "stop": "e", "frequency_penalty": 0.5}
    assert model.invoke(CONVERSATION).content == expected(served, **params)
    scored = ChatOpenAI(
        **options, temperature=0, max_tokens=4, logprobs=True, top_logprobs=2, extra_body={"min_tokens": 4}
    )
    assert len(scored.invoke(CONVERSATION).response_metadata["logprobs"]["content"]) == 4


def test_asynchronous_calls_in_a_chain(served: Served, options: dict[str, Any]) -> None:
    template = ChatPromptTemplate.from_messages([("system", SYSTEM), ("human", "{question}")])

    async def ask() -> list[str]:
        chain = template | ChatOpenAI(**options, temperature=0, max_tokens=16)
        whole = [str((await chain.ainvoke({"question": QUESTION})).content)]
        whole.append("".join([str(chunk.content) async for chunk in chain.astream({"question": QUESTION})]))
        await options["http_async_client"].aclose()
        return whole

    assert asyncio.run(ask()) == [expected(served)] * 2


def test_completions(served: Served, options: dict[str, Any]) -> None:
    model = OpenAI(**options, temperature=0, max_tokens=16)
    done = served.llm.generate("the sea", max_tokens=16)[0].text
    assert model.invoke("the sea") == done
    assert "".join(model.stream("the sea")) == done
    assert model.batch(["the sea", "the sea"]) == [done, done]


def test_a_conversation_with_tools_goes_through(options: dict[str, Any]) -> None:
    """Messages with calls and their results, as an agent sends them back."""
    model = ChatOpenAI(**options, temperature=0, max_tokens=4)
    call = {"name": "depth", "args": {"sea": "north"}, "id": "call_1", "type": "tool_call"}
    messages = [*CONVERSATION, AIMessage("", tool_calls=[call]), ToolMessage("90 m", tool_call_id="call_1")]
    assert model.invoke(messages).response_metadata["finish_reason"] in ("stop", "length")

    def depth(sea: str) -> str:
        """How deep a sea is."""
        return sea

    for choice in ("auto", "none"):
        bound = model.bind_tools([depth], tool_choice=choice, parallel_tool_calls=False)
        assert bound.invoke(messages).response_metadata["finish_reason"] in ("stop", "length")


class Colour(BaseModel):
    """The colour of a thing."""

    name: Literal["red", "green"] = Field(description="its name")
    bright: bool


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of LangChain's, while it streams parsed answers
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(served: Served, options: dict[str, Any], method: str) -> None:
    blanks = {str(served.llm.encode(blank)[0]): -100 for blank in " \n\t\r"}
    model = ChatOpenAI(**options, temperature=0, max_tokens=200, logit_bias=blanks)
    structured = model.with_structured_output(Colour, method=method, strict=True)
    found = structured.invoke(CONVERSATION)
    assert isinstance(found, Colour)
    assert list(structured.stream(CONVERSATION))[-1] == found


def test_calls_are_streamed_in_pieces(served: Served, options: dict[str, Any]) -> None:
    blanks = {str(served.llm.encode(blank)[0]): -100 for blank in " \n\t\r"}
    model = ChatOpenAI(**options, temperature=0, max_tokens=200, logit_bias=blanks)
    bound = model.bind_tools([Colour], tool_choice="any", strict=True, parallel_tool_calls=False)
    answer = bound.invoke(CONVERSATION)
    (call,) = answer.tool_calls
    assert Colour.model_validate(call["args"])
    whole = None
    for chunk in bound.stream(CONVERSATION):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert [(one["name"], one["args"]) for one in whole.tool_calls] == [(call["name"], call["args"])]
    assert model.invoke([*CONVERSATION, answer, ToolMessage("fine", tool_call_id=call["id"])]).response_metadata
