"""The ``openai`` package as a client: every answer is the library's own, in the package's own strict types."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any, Literal

import httpx
import openai
import pytest
from openai.types import Completion as TextCompletion
from openai.types import CompletionUsage, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk, completion_create_params
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import BaseModel
from serving import Served, serving, tiny_llm

from outrider import Completion
from outrider.server.wire.chat import ChatRequest
from outrider.server.wire.completions import CompletionRequest

MESSAGES: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "tell me of the sea"}]
LONG: Any = {"max_tokens": 400, "extra_body": {"ignore_eos": True}}


def client_of(served: Served, **options: Any) -> openai.OpenAI:
    """A client that ignores proxies and asks once."""
    http = httpx.Client(trust_env=False)
    settings = {"base_url": f"{served.url}/v1", "api_key": "x", "max_retries": 0, "http_client": http}
    return openai.OpenAI(**settings | options)


@asynccontextmanager
async def async_client_of(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    http = httpx.AsyncClient(trust_env=False)
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0, http_client=http) as client:
        yield client


@pytest.fixture
def ai(served: Served) -> Iterator[openai.OpenAI]:
    with client_of(served) as client:
        yield client


@pytest.fixture
def model(ai: openai.OpenAI) -> str:
    return ai.models.list().data[0].id


def becomes_idle(served: Served) -> bool:
    """Whether the engine gives up its requests soon."""
    until = time.monotonic() + 10
    while not served.idle():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def library(served: Served, **options: Any) -> Completion:
    done = served.llm.chat(**{"messages": MESSAGES, "temperature": 1.0} | options)
    assert isinstance(done, Completion)
    return done


# ---------------------------------------------------------------------------------------------------- answers


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"seed": 7},
    {"seed": 3, "n": 3, "stop": ["e", "zz"], "top_p": 0.9},
    {"temperature": 0, "presence_penalty": 1.5, "frequency_penalty": -0.5, "logit_bias": {"7": -100, "9": 5}},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_chat_at_once_and_streamed(served: Served, ai: openai.OpenAI, model: str, options: dict[str, Any]) -> None:
    answer = ai.chat.completions.create(model=model, messages=MESSAGES, max_tokens=24, **options)
    done = library(served, max_tokens=24, **options)
    assert [choice.message.content for choice in answer.choices] == [choice.text for choice in done.choices]
    assert [choice.finish_reason for choice in answer.choices] == [str(one.finish_reason) for one in done.choices]
    texts = ["" for _ in done.choices]
    usage = None
    for chunk in ai.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=24, stream=True, stream_options={"include_usage": True}, **options
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.text for choice in done.choices]
    assert usage is not None
    assert answer.usage is not None
    assert (usage.completion_tokens, usage.prompt_tokens) == (
        answer.usage.completion_tokens,
        answer.usage.prompt_tokens,
    )


@pytest.mark.parametrize("options", OPTIONS)
def test_completions_at_once_and_streamed(
    served: Served, ai: openai.OpenAI, model: str, options: dict[str, Any]
) -> None:
    answer = ai.completions.create(model=model, prompt="the sea", max_tokens=24, **options)
    done = served.llm.generate("the sea", max_tokens=24, **{"temperature": 1.0} | options)[0]
    assert [choice.text for choice in answer.choices] == [choice.text for choice in done.choices]
    texts = ["" for _ in done.choices]
    for chunk in ai.completions.create(model=model, prompt="the sea", max_tokens=24, stream=True, **options):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in done.choices]


def test_the_asynchronous_client(served: Served) -> None:
    expected = library(served, max_tokens=16, temperature=0).text

    async def ask() -> list[str]:
        async with async_client_of(served) as client:
            wish: dict[str, Any] = {"model": None, "messages": MESSAGES, "max_tokens": 16, "temperature": 0}
            wish["model"] = (await client.models.list()).data[0].id
            stream = await client.chat.completions.create(stream=True, **wish)
            text = "".join([part.choices[0].delta.content or "" async for part in stream])
            others = await asyncio.gather(*(client.chat.completions.create(**wish) for _ in range(4)))
            completed = await client.completions.create(model=wish["model"], prompt="x", max_tokens=2)
            assert completed.choices[0].finish_reason in ("length", "stop")
            return [text, *(one.choices[0].message.content or "" for one in others)]

    assert asyncio.run(ask()) == [expected] * 5


def test_logprobs_and_extensions(served: Served, ai: openai.OpenAI, model: str) -> None:
    extra = {"min_tokens": 8, "top_k": 5, "timings": True, "speculation": {"enabled": False}, "return_pieces": True}
    answer = ai.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_completion_tokens=8,
        seed=5,
        logprobs=True,
        top_logprobs=3,
        extra_body=extra,
        extra_headers={"X-Request-Id": "mine"},
    )
    done = library(served, max_tokens=8, seed=5, min_tokens=8, top_k=5, logprobs=3, speculate=False)
    (choice,) = answer.choices
    assert choice.message.content == done.text
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    known = done.choices[0].logprobs
    assert known is not None
    assert [one.logprob for one in choice.logprobs.content] == pytest.approx([one.logprob for one in known], abs=1e-4)
    assert all(len(one.top_logprobs) == 3 for one in choice.logprobs.content)
    spoken = b"".join(bytes(one.bytes or ()) for one in choice.logprobs.content)
    assert spoken.decode(errors="replace") == choice.message.content
    assert answer.usage is not None
    assert answer.usage.model_extra is not None
    assert answer.usage.model_extra["speculation"]["drafted"] == 0
    assert answer.model_extra is not None
    assert answer.model_extra["timings"]["total_s"] > 0


def test_a_prediction_is_counted_as_openai_counts_it(served: Served, ai: openai.OpenAI, model: str) -> None:
    text = library(served, max_tokens=24, temperature=0).text
    wish: dict[str, Any] = {"model": model, "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    for content in (text, [{"type": "text", "text": text}]):
        answer = ai.chat.completions.create(prediction={"type": "content", "content": content}, **wish)  # type: ignore[misc]
        assert answer.choices[0].message.content == text
        assert answer.usage is not None
        details = answer.usage.completion_tokens_details
        assert details is not None
        assert details.accepted_prediction_tokens is not None
        assert details.rejected_prediction_tokens is not None


def test_raw_and_streaming_responses(served: Served, ai: openai.OpenAI, model: str) -> None:
    wish: dict[str, Any] = {"model": model, "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    raw = ai.chat.completions.with_raw_response.create(**wish, extra_headers={"X-Request-Id": "mine"})
    assert raw.headers["x-request-id"] == "mine" == raw.parse()._request_id
    expected = library(served, max_tokens=8, temperature=0).text
    with ai.chat.completions.with_streaming_response.create(**wish, stream=True) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert expected == "".join(
        choice["delta"].get("content", "") for line in lines[:-1] for choice in json.loads(line[6:])["choices"]
    )


def stopped(served: Served) -> dict[str, Any]:
    """Options with which the answer ends by itself: the package's helpers raise where its length was cut."""
    text = library(served, max_tokens=24, seed=1).text
    return {"messages": MESSAGES, "max_tokens": 24, "seed": 1, "stop": text[6:8]}


def test_the_stream_helper(served: Served, ai: openai.OpenAI, model: str) -> None:
    with ai.chat.completions.stream(model=model, logprobs=True, **stopped(served)) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert final.choices[0].message.content == library(served, **stopped(served)).text
    assert kinds == {"chunk", "content.delta", "content.done", "logprobs.content.delta", "logprobs.content.done"}
    assert final.choices[0].finish_reason == "stop"
    with pytest.raises(openai.LengthFinishReasonError):
        ai.chat.completions.parse(model=model, messages=MESSAGES, max_tokens=2)


def test_an_answer_goes_back_as_a_message(served: Served, ai: openai.OpenAI, model: str) -> None:
    wish: dict[str, Any] = {"model": model, **stopped(served)}
    first = ai.chat.completions.create(**wish).choices[0].message
    parsed = ai.chat.completions.parse(**wish).choices[0].message
    for message in (first, first.model_dump(), parsed, parsed.model_dump()):
        again = [*MESSAGES, message, {"role": "user", "content": [{"type": "text", "text": "more"}]}]
        assert ai.chat.completions.create(model=model, messages=again, max_tokens=2).choices


def test_models(ai: openai.OpenAI, model: str) -> None:
    card = ai.models.retrieve(model)
    assert isinstance(card, Model)
    assert (card.id, card.object, type(card.created)) == (model, "model", int)
    with pytest.raises(openai.NotFoundError) as error:
        ai.models.retrieve("gpt-9")
    assert error.value.code == "model_not_found"


# ----------------------------------------------------------------------------- structured answers and tools


class Colours(BaseModel):
    """Colours of a thing."""

    colour: Literal["red", "green"]
    others: tuple[Literal["blue", "grey"], Literal["blue", "grey"]]


class Paint(BaseModel):
    """Paint a thing."""

    colour: Literal["red", "green"]
    twice: bool


SURE: dict[str, Any] = {"temperature": 0, "max_tokens": 200}


def unblank(served: Served) -> dict[str, Any]:
    """Options under which a random model does not fill its answer with the blanks that JSON allows."""
    blanks = [served.llm.encode(blank)[0] for blank in " \n\t\r"]
    return SURE | {"logit_bias": {str(token): -100 for token in blanks}}


def test_parsed_answers(served: Served, ai: openai.OpenAI, model: str) -> None:
    wish: dict[str, Any] = {"model": model, "messages": MESSAGES, **unblank(served)}
    answer = ai.chat.completions.parse(response_format=Colours, **wish)
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Colours)
    with ai.chat.completions.stream(response_format=Colours, **wish) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == parsed
    assert {"content.delta", "content.done"} <= kinds
    plain = ai.chat.completions.parse(response_format=Colours, extra_body={"speculation": {"enabled": False}}, **wish)
    assert plain.choices[0].message.content == answer.choices[0].message.content


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "Paint"}}])
def test_a_call_that_must_be_made(served: Served, ai: openai.OpenAI, model: str, choice: Any) -> None:
    tools = [openai.pydantic_function_tool(Paint)]
    wish: dict[str, Any] = {"model": model, "messages": MESSAGES, "tools": tools, "tool_choice": choice}
    wish |= {"parallel_tool_calls": False, **unblank(served)}
    parsed = ai.chat.completions.parse(**wish)
    (call,) = parsed.choices[0].message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, Paint)
    assert parsed.choices[0].message.content is None
    assert parsed.choices[0].finish_reason == "tool_calls"
    chunks = list(ai.chat.completions.create(stream=True, **wish))
    deltas = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or ()]
    assert deltas[0].id is not None
    assert deltas[0].function is not None
    assert (deltas[0].function.name, deltas[0].type, deltas[0].index) == ("Paint", "function", 0)
    assert all(part.id is None and part.function and part.function.name is None for part in deltas[1:])
    joined = "".join(part.function.arguments or "" for part in deltas if part.function)
    assert joined == call.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.model_dump(), strict=True)
    with ai.chat.completions.stream(**wish) as stream:
        kinds = {event.type for event in stream}
        again = stream.get_final_completion().choices[0].message
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert again.tool_calls is not None
    assert again.tool_calls[0].function.parsed_arguments == call.function.parsed_arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    for message in (parsed.choices[0].message, again, again.model_dump()):
        more = ai.chat.completions.create(model=model, messages=[*MESSAGES, message, result], tools=tools, **SURE)
        assert more.choices
    ChatCompletion.model_validate(parsed.model_dump(), strict=True)


# ----------------------------------------------------------------------------------------------- strict types


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}, {"timings": True}])
def test_chat_answers_have_openais_types(client: httpx.Client, more: dict[str, Any]) -> None:
    wish = {"messages": MESSAGES, "max_tokens": 12, "seed": 1, **more}
    told = client.post("/v1/chat/completions", json=wish)
    answer = told.json()
    ChatCompletion.model_validate_json(told.text, strict=True)
    assert answer["object"] == "chat.completion"
    for choice in answer["choices"]:
        assert {"index", "message", "logprobs", "finish_reason"} <= choice.keys()
        assert {"role", "content", "refusal"} <= choice["message"].keys()
    chunks = _chunks(client, "/v1/chat/completions", wish)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    for index in range(more.get("n", 1)):
        mine = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert [choice["delta"].get("role") for choice in mine] == ["assistant"] + [None] * (len(mine) - 1)
        assert [choice["finish_reason"] for choice in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == answer["choices"][index]["finish_reason"]


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"logprobs": 2}, {"echo": True, "logprobs": 1}])
def test_completions_have_openais_types(client: httpx.Client, more: dict[str, Any]) -> None:
    wish = {"prompt": "the sea", "max_tokens": 12, "seed": 1, **more}
    told = client.post("/v1/completions", json=wish)
    chunks = _chunks(client, "/v1/completions", wish)
    for answer in (told.json(), *chunks):
        for choice in answer["choices"]:  # nulls that OpenAI sends, and that its types leave out
            choice["finish_reason"] = choice["finish_reason"] or "stop"
            if more.get("echo") and choice["logprobs"]["token_logprobs"][0] is None:
                assert choice["logprobs"]["top_logprobs"].pop(0) is None
                choice["logprobs"]["token_logprobs"].pop(0)
        TextCompletion.model_validate(answer, strict=True)
    for index, choice in enumerate(told.json()["choices"]):
        if (found := choice["logprobs"]) is None:
            continue
        streamed = [part["logprobs"] for chunk in chunks for part in chunk["choices"] if part["index"] == index]
        assert [place for part in streamed for place in part["text_offset"]] == found["text_offset"]
        assert found["text_offset"] == sorted(found["text_offset"])
        assert found["text_offset"][0] == 0
        assert len({len(found[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}) == 1


def _chunks(client: httpx.Client, route: str, wish: dict[str, Any]) -> list[dict[str, Any]]:
    """A stream's chunks, after what all streams have in common was checked."""
    told = client.post(route, json=wish | {"stream": True, "stream_options": {"include_usage": True}})
    lines = [line.removeprefix("data: ") for line in told.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    chunks: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["system_fingerprint"]) for chunk in chunks}) == 1
    assert type(chunks[0]["created"]) is int
    assert chunks[-1]["choices"] == []
    CompletionUsage.model_validate(chunks[-1]["usage"], strict=True)
    assert all(chunk["choices"] for chunk in chunks[:-1])
    assert not any(chunk.get("usage") for chunk in chunks[:-1])
    return chunks


def test_the_fingerprint_names_the_model_and_not_the_request(client: httpx.Client) -> None:
    told = [
        client.post(route, json={"max_tokens": 1, **prompt}).json()["system_fingerprint"]
        for route, prompt in (("/v1/chat/completions", {"messages": MESSAGES}), ("/v1/completions", {"prompt": "x"}))
    ]
    assert told[0] == told[1]
    assert told[0].startswith("fp_")


# ------------------------------------------------------------------------------------------------- parameters


def test_every_parameter_of_openais_is_known_by_name() -> None:
    """A parameter is served, ignored with a reason, or refused with one: never refused as if it did not exist."""
    chat = completion_create_params.CompletionCreateParamsNonStreaming.__annotations__
    assert chat.keys() <= ChatRequest.model_fields.keys()
    assert CompletionCreateParamsNonStreaming.__annotations__.keys() <= CompletionRequest.model_fields.keys()


@pytest.mark.parametrize(
    "ignored",
    [
        {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "verbosity": "low"},
        {"safety_identifier": "me", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
        {"prompt_cache_options": {"mode": "implicit"}, "parallel_tool_calls": True, "modalities": ["text"]},
        {"reasoning_effort": "low", "response_format": {"type": "text"}, "tools": [], "stop": None, "n": None},
        {"functions": None, "function_call": None, "audio": None, "web_search_options": None, "logit_bias": {}},
    ],
)
def test_what_does_not_change_the_text_is_let_pass(
    served: Served, ai: openai.OpenAI, model: str, ignored: dict[str, Any]
) -> None:
    answer = ai.chat.completions.create(model=model, messages=MESSAGES, temperature=0, max_tokens=8, **ignored)
    assert answer.choices[0].message.content == library(served, temperature=0, max_tokens=8).text


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        ({"functions": [{"name": "f"}]}, "functions: use tools"),
        ({"function_call": "auto"}, "function_call: use tool_choice"),
        ({"audio": {"voice": "alloy", "format": "wav"}}, "audio: this server writes only text"),
        ({"modalities": ["text", "audio"]}, "modalities.1: Input should be 'text'"),
        ({"web_search_options": {}}, "web_search_options: this server does not search the web; give it a tool"),
        ({"moderation": {"model": "m"}}, "moderation: this server does not moderate"),
        (
            {"tools": [{"type": "custom", "custom": {"name": "f"}}]},
            "tools.0: type custom is not offered, only function; describe it as a function",
        ),
        ({"tool_choice": "required"}, "tool_choice is required, but the request has no tools; add some"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
            "tool_choice: type allowed_tools is not offered, only function; offer fewer tools instead",
        ),
        ({"stop": 5}, "stop: Input should be a valid string or a valid list"),
        ({"max_tokens": 0.5}, "max_tokens: Input should be a valid integer"),
        ({"frobnicate": 1}, "there is no field frobnicate"),
        ({"stream_options": {"include_usage": True}}, "stream_options needs stream to be true"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role: Input should be 'system'"),
        ({"messages": [{"role": "user", "contents": "x"}]}, "there is no field messages.0.contents"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            "messages.0.content.0: type image_url is not offered, only text; this server reads no images",
        ),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content: Input should be a valid string or"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "but the context holds"),
    ],
)
def test_what_is_not_done_is_refused_in_one_sentence(
    ai: openai.OpenAI, model: str, refused: dict[str, Any], said: str
) -> None:
    (param,) = refused
    with pytest.raises(openai.BadRequestError) as error:
        ai.chat.completions.create(model=model, messages=MESSAGES, extra_body=refused)
    assert isinstance(error.value.body, dict)
    message = error.value.body["message"]
    assert said in message
    assert message.count(";") <= 1
    assert (error.value.param, error.value.type) == (param, "invalid_request_error")


def test_an_unknown_parameter_has_openais_code(ai: openai.OpenAI, model: str) -> None:
    for wrong, code in (({"frobnicate": 1}, "unknown_parameter"), ({"n": "x"}, "invalid_value")):
        with pytest.raises(openai.BadRequestError) as error:
            ai.chat.completions.create(model=model, messages=MESSAGES, extra_body=wrong)
        assert error.value.code == code


def test_a_body_that_is_no_json_object_says_so(client: httpx.Client) -> None:
    for content, kind in (
        (b"[]", "application/json"),
        (b"{}", "text/plain"),
        (b"a=b", "application/x-www-form-urlencoded"),
    ):
        told = client.post("/v1/chat/completions", content=content, headers={"Content-Type": kind})
        assert told.status_code == 400
        assert "JSON object" in told.json()["error"]["message"]


def test_lists_of_any_values_are_read(client: httpx.Client) -> None:
    for values in ([[1], 2], [{"a": 1}, "x", None], [1, [2]], [[[]], [], {}], []):
        wish = {"messages": MESSAGES, "max_tokens": 1, "chat_template_kwargs": {"values": values}}
        assert client.post("/v1/chat/completions", json=wish).status_code == 200


# ----------------------------------------------------------------------------------------- errors and leaving


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a key and room for one request."""
    options = {"scheduler": {"max_running": 1}}
    with (
        tiny_llm(tmp_path_factory.mktemp("strict"), **options) as llm,
        serving(llm, api_keys=("secret",), max_waiting=0) as running,
    ):
        yield running


def test_errors_are_of_the_right_class(strict: Served) -> None:
    with client_of(strict, api_key="wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with client_of(strict, api_key="secret") as ai:
        model = ai.models.list().data[0].id
        with pytest.raises(openai.NotFoundError) as missing:
            ai.chat.completions.create(model="gpt-9", messages=MESSAGES)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError):
            ai.embeddings.create(model=model, input="x")
        with closing(ai.chat.completions.create(model=model, messages=MESSAGES, stream=True, **LONG)):
            with pytest.raises(openai.RateLimitError) as busy:
                ai.chat.completions.create(model=model, messages=MESSAGES)
            assert int(busy.value.response.headers["retry-after"]) >= 1
        assert becomes_idle(strict)
        with pytest.raises(openai.BadRequestError, match="temperature"):
            ai.chat.completions.create(model=model, messages=MESSAGES, temperature=-1)
        assert ai.chat.completions.create(model=model, messages=MESSAGES, max_tokens=1).choices


def test_a_server_that_drains_is_an_internal_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    with tiny_llm(tmp_path_factory.mktemp("drains")) as llm, serving(llm) as running, client_of(running) as ai:
        model = ai.models.list().data[0].id
        running.desk.drain()
        try:
            with pytest.raises(openai.InternalServerError) as error:
                ai.chat.completions.create(model=model, messages=MESSAGES)
        finally:
            running.desk.draining = False
        assert error.value.status_code == 503


def test_a_failure_in_a_stream_is_an_error_of_the_client(served: Served, ai: openai.OpenAI, model: str) -> None:
    """The time for a request runs out in the middle of its answer."""
    wish: dict[str, Any] = {"model": model, "messages": MESSAGES, "max_tokens": 400}
    with pytest.raises(openai.APIError):
        list(ai.chat.completions.create(stream=True, extra_body={"ignore_eos": True, "timeout": 0.02}, **wish))
    with pytest.raises(openai.APIStatusError):
        ai.chat.completions.create(extra_body={"ignore_eos": True, "timeout": 0.001}, **wish)
    assert becomes_idle(served)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_request_that_used_its_time_is_not_sent_again(served: Served, model: str, streamed: bool) -> None:
    """With the client's own number of retries: the answer would take as long once more."""
    sent = list[httpx.Request]()
    http = httpx.Client(trust_env=False, event_hooks={"request": [sent.append]})
    with client_of(served, max_retries=openai.DEFAULT_MAX_RETRIES, http_client=http) as client:
        with pytest.raises(openai.APIError) as refused:
            more: Any = {"ignore_eos": True, "timeout": 0.05}
            list(
                client.completions.create(
                    model=model, prompt="the", max_tokens=480, n=8, stream=streamed, extra_body=more
                )
            )
        assert refused.value.code == "timeout"
        assert len(sent) == 1
    assert becomes_idle(served)


@pytest.mark.parametrize("how", ["close", "break", "timeout", "cancel"])
def test_who_leaves_is_cancelled_in_the_engine(served: Served, ai: openai.OpenAI, model: str, how: str) -> None:
    wish: dict[str, Any] = {"model": model, "messages": MESSAGES, **LONG}
    if how == "close":
        stream = ai.chat.completions.create(stream=True, **wish)
        next(iter(stream))
        stream.close()
    elif how == "break":
        with ai.chat.completions.create(stream=True, **wish) as stream:
            for _ in stream:
                break
    elif how == "timeout":
        with pytest.raises(openai.APITimeoutError):
            ai.with_options(timeout=0.02).chat.completions.create(**wish)
    else:
        asyncio.run(_cancelled(served, wish))
    assert becomes_idle(served)


async def _cancelled(served: Served, wish: dict[str, Any]) -> None:
    async with async_client_of(served) as client:
        task = asyncio.ensure_future(client.chat.completions.create(**wish))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
