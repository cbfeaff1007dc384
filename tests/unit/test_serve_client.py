"""The traffic client of benchmarks/serve, against a small server that answers with exact bytes."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "serve"
SCRIPTS = ("client", "servers", "workload", "figures", "soak_cases", "soak_answers")

Reply = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    """The scripts import each other by their bare names, as they do when one of them is run."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: __import__(name) for name in SCRIPTS}
    finally:
        sys.path.remove(str(FOLDER))
        for name in SCRIPTS:
            sys.modules.pop(name, None)


@pytest.fixture
def client(scripts: dict[str, ModuleType]) -> ModuleType:
    return scripts["client"]


@asynccontextmanager
async def answering(reply: Reply) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server; gives its address and the bodies that it got."""
    bodies: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.startswith(b"Content-Length")]
                bodies.append(await reader.readexactly(int(lengths[0]) if lengths else 0))
                await reply(writer, bodies[-1])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", bodies
    finally:
        server.close()


def chunk(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, **more}]}


def stream_of(chunks: Sequence[dict[str, Any]], line: bytes = b"\n") -> bytes:
    """A whole answer with one event per chunk."""
    events = b"".join(b"data: " + json.dumps(one).encode() + 2 * line for one in chunks)
    events = b": a comment" + 2 * line + events + b"data: [DONE]" + 2 * line
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n" % len(events) + events + b"\r\n0\r\n\r\n"


def whole(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


CHUNKS = [chunk("Dïs"), chunk(""), chunk(" is"), chunk(" 日本", finish_reason="length"), {"choices": [], "usage": {}}]
USAGE = {"completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}


@pytest.mark.parametrize("line", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 7, 10**6])
def test_a_stream_may_be_cut_anywhere(client: ModuleType, size: int, line: bytes) -> None:
    data = stream_of([*CHUNKS, {"choices": [], "usage": USAGE}], line)

    async def reply(writer: asyncio.StreamWriter, _: bytes) -> None:
        for start in range(0, len(data), size):
            writer.write(data[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)

    async def work() -> Any:
        async with answering(reply) as (base, _):
            return await client.Client(base).send(client.completion([1, 2]))

    answer = client.run(work())
    assert answer.whole
    assert answer.text == "Dïs is 日本"
    assert (answer.tokens, answer.cached_tokens) == (7, 3)
    assert len(answer.gaps) == 2
    assert 0 < answer.first_token_s <= answer.ended - answer.sent


def test_one_connection_carries_many_requests_and_extra_fields_go_along(client: ModuleType) -> None:
    connections = set()

    async def reply(writer: asyncio.StreamWriter, body: bytes) -> None:
        connections.add(writer)
        writer.write(whole(json.dumps(chunk(str(json.loads(body)["prompt"]))).encode()))

    async def work() -> tuple[list[Any], list[bytes]]:
        async with answering(reply) as (base, bodies):
            requests = [client.completion([number], stream=False) for number in range(5)]
            return await client.closed_loop(client.Client(base, {"cache_prompt": False}), requests, 1), bodies

    answers, bodies = client.run(work())
    assert [answer.text for answer in answers] == [f"[{number}]" for number in range(5)]
    assert [json.loads(body)["cache_prompt"] for body in bodies] == [False] * 5
    assert len(connections) == 1


def test_clients_send_side_by_side(client: ModuleType) -> None:
    arrived = 0
    everybody = asyncio.Event()

    async def reply(writer: asyncio.StreamWriter, _: bytes) -> None:
        nonlocal arrived
        arrived += 1
        if arrived == 3:
            everybody.set()
        await asyncio.wait_for(everybody.wait(), 10)  # nobody is answered before all three have asked
        writer.write(whole(b"{}"))

    async def work() -> list[Any]:
        async with answering(reply) as (base, _):
            requests = [client.completion([number], stream=False) for number in range(3)]
            return await client.closed_loop(client.Client(base), requests, 3)

    assert [answer.status for answer in client.run(work())] == [200] * 3


def test_arrivals_keep_their_order_in_the_answers(client: ModuleType) -> None:
    async def reply(writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(whole(json.dumps(chunk(str(json.loads(body)["prompt"]))).encode()))

    async def work() -> tuple[list[Any], list[bytes]]:
        async with answering(reply) as (base, bodies):
            requests = [client.completion([number], stream=False) for number in range(3)]
            return await client.open_loop(client.Client(base), requests, [0.2, 0.0, 0.1]), bodies

    answers, bodies = client.run(work())
    assert [answer.text for answer in answers] == ["[0]", "[1]", "[2]"]
    assert [json.loads(body)["prompt"] for body in bodies] == [[1], [2], [0]]


BROKEN = {
    "refused": (whole(b'{"error": {"message": "no"}}', b"400 Bad Request"), 400),
    "an error in the stream": (stream_of([chunk("a"), {"error": {"message": "no"}}]), 200),
    "no end": (stream_of([chunk("a")]).replace(b"data: [DONE]\n\n", b"              "), 200),
    "cut off": (stream_of([chunk("a")])[:-20], 200),
    "not HTTP": (b"hello\r\n\r\n", 0),
    "nothing": (b"", 0),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_answer_is_not_whole(client: ModuleType, name: str) -> None:
    data, status = BROKEN[name]

    async def reply(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(data)
        await writer.drain()
        writer.close()

    async def work() -> Any:
        async with answering(reply) as (base, _):
            return await client.Client(base).send(client.completion([1]))

    answer = client.run(work())
    assert not answer.whole
    assert answer.status == status


def test_a_server_that_is_not_there_is_a_failure(client: ModuleType, scripts: dict[str, ModuleType]) -> None:
    answer = client.run(
        client.Client(f"http://127.0.0.1:{scripts['servers'].free_port()}").send(client.completion([1]))
    )
    assert not answer.whole
    assert "no connection" in answer.failure


@pytest.mark.parametrize("limit", [{"events": 2}, {"events": 0}, {"seconds": 0.1}])
def test_a_client_that_hangs_up_closes_the_connection(client: ModuleType, limit: dict[str, Any]) -> None:
    closed = asyncio.Event()

    async def reply(writer: asyncio.StreamWriter, _: bytes) -> None:
        whole = stream_of([chunk("a"), chunk("b"), chunk("c")])
        head, _, body = whole.partition(b"\r\n\r\n")
        events = body.partition(b"\r\n")[2].partition(b"data: [DONE]")[0]
        writer.write(head + b"\r\n\r\n%x\r\n" % len(events) + events + b"\r\n")
        with suppress(ConnectionError):
            while True:
                await writer.drain()  # raises once a write has found nobody
                writer.write(b"8\r\n: wait\n\n\r\n")
                await asyncio.sleep(0.01)
        closed.set()

    async def work() -> Any:
        async with answering(reply) as (base, _):
            sent = client.completion([1])
            answer = await client.Client(base).send(client.Request(sent.path, sent.body, **limit))
            await asyncio.wait_for(closed.wait(), 5)
            return answer

    answer = client.run(work())
    assert answer.hung_up
    assert not answer.whole
    assert answer.failure is None


def test_a_connection_that_the_server_closed_meanwhile_is_not_an_error(client: ModuleType) -> None:
    connections: list[asyncio.StreamWriter] = []

    async def reply(writer: asyncio.StreamWriter, _: bytes) -> None:
        if writer in connections:  # the second request of a connection finds it closed
            writer.transport.abort()
            return
        connections.append(writer)
        writer.write(whole(b"{}"))

    async def work() -> list[Any]:
        async with answering(reply) as (base, _):
            requests = [client.completion([number], stream=False) for number in range(3)]
            return await client.closed_loop(client.Client(base), requests, 1)

    assert [answer.status for answer in client.run(work())] == [200] * 3


@pytest.mark.parametrize(
    ("log", "address"),
    [
        ("loading\nOutrider ready: http://127.0.0.1:36533\n", "http://127.0.0.1:36533"),
        ("INFO: Uvicorn running on http://127.0.0.1:8000 (Press CTRL+C to quit)", "http://127.0.0.1:8000"),
        ("loading http://example.org:80", None),
    ],
)
def test_the_ready_line(scripts: dict[str, ModuleType], log: str, address: str | None) -> None:
    assert scripts["servers"].ready_address(log) == address


class _Letters:
    """Encodes a text by its characters."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]


def test_prompts_of_a_trace_share_what_their_blocks_share(scripts: dict[str, ModuleType]) -> None:
    workload = scripts["workload"]
    texts = workload.Texts(_Letters())
    scale = 16
    block = workload.RECORDED_BLOCK // scale
    blocks = [(0, 1, 2), (0, 1, 3), (0, 4), (5, 1)]
    prompts = [
        workload.scaled_prompt(workload.Recorded(0.0, 512 * len(ids) - 100, 10, ids), texts, scale) for ids in blocks
    ]
    assert [len(prompt) for prompt in prompts] == [(512 * len(ids) - 100) // scale for ids in blocks]
    assert prompts[0][: 2 * block] == prompts[1][: 2 * block]
    assert prompts[0][block : 2 * block] != prompts[2][block : 2 * block]
    assert prompts[0][:block] == prompts[2][:block] != prompts[3][:block]
    shared = workload.most_shared(prompts)
    assert 3 * block <= shared < 3 * block + 8  # pieces of text may begin with some equal letters


def test_pieces_of_text_begin_differently(scripts: dict[str, ModuleType]) -> None:
    texts = scripts["workload"].Texts(_Letters())
    pieces = {tuple(texts.piece(number, 200)) for number in range(300)}
    assert len(pieces) == 300
    assert texts.piece(7, 50) == texts.piece(7, 200)[:50]


def test_the_slope_is_of_the_line(scripts: dict[str, ModuleType]) -> None:
    slope = scripts["figures"].slope
    assert slope([0, 1, 2, 3], [5, 8, 11, 14]) == pytest.approx(3)
    assert slope([], []) == slope([2, 2], [1, 5]) == 0


class TestSoakCases:
    def test_equal_seeds_draw_equal_cases_that_the_library_accepts(self, scripts: dict[str, ModuleType]) -> None:
        from outrider import SamplingParams

        make = scripts["soak_cases"].make_case
        for seed in range(200):
            case = make(random.Random(seed), ["some text " * 200], 1000)
            assert case == make(random.Random(seed), ["some text " * 200], 1000)
            other = ("messages", "prompt", "logprobs", "top_logprobs")
            SamplingParams(**{name: value for name, value in case.body.items() if name not in other})

    def test_a_way_of_sending_leaves_the_case_alone(self, scripts: dict[str, ModuleType]) -> None:
        cases = scripts["soak_cases"]
        for seed in range(200):
            dice = random.Random(seed)
            case = cases.make_case(dice, ["some text " * 200], 1000)
            sent = cases.sending(dice, case, ["ngram"])
            assert sent.path == case.path
            assert {name: sent.body[name] for name in case.body} == case.body

    def test_requests_are_of_the_wires_form_unless_malformed(self, scripts: dict[str, ModuleType]) -> None:
        from pydantic import ValidationError

        from outrider.server.wire.chat import ChatRequest
        from outrider.server.wire.completions import CompletionRequest

        cases, refused = scripts["soak_cases"], 0
        models = {"/v1/completions": CompletionRequest, "/v1/chat/completions": ChatRequest}
        for seed in range(200):
            dice = random.Random(seed)
            case = cases.make_case(dice, ["some text " * 200], 1000)
            for request in (sent := cases.sending(dice, case, ["ngram"]), cases.cancelled(dice, sent)):
                models[request.path].model_validate_json(json.dumps(request.body))
            wrong = cases.malformed(dice, 50)
            if isinstance(wrong.body, dict) and wrong.path in models:
                try:
                    models[wrong.path].model_validate_json(json.dumps(wrong.body))
                except ValidationError:
                    refused += 1
        assert refused > 50

    def test_differences_are_found(self, scripts: dict[str, ModuleType]) -> None:
        differences = scripts["soak_answers"].differences
        choice = {"text": "a", "finish_reason": "stop", "stop_reason": None, "logprobs": [-0.1], "top": []}
        good = {"prompt_tokens": 3, "completion_tokens": 1, "choices": [choice]}
        assert differences(good, good) == differences(good, {"choices": [choice]}) == []
        for name, value in {"text": "b", "finish_reason": None, "logprobs": [-0.10000001], "stop_reason": "x"}.items():
            assert differences(good, {"choices": [{**choice, name: value}]}) == [f"choice 0: {name}"]
        assert differences(good, {**good, "completion_tokens": 2}) == ["completion_tokens"]
        assert differences(good, {"choices": []}) == ["the number of choices"]

    def test_a_stream_and_a_whole_answer_read_alike(self, scripts: dict[str, ModuleType]) -> None:
        client, cases, of_wire = scripts["client"], scripts["soak_cases"], scripts["soak_answers"].of_wire
        case = cases.Case("/v1/completions", {"prompt": "x", "logprobs": 0, "n": 2})
        parts = [
            {"index": 1, "text": "c", "logprobs": {"token_logprobs": [-3.0]}, "finish_reason": None},
            {"index": 0, "text": "a", "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": None},
            {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"},
            {
                "index": 1,
                "text": "d",
                "logprobs": {"token_logprobs": [-4.0]},
                "finish_reason": "stop",
                "stop_reason": 5,
            },
        ]
        streamed = [(0.0, json.dumps({"choices": [part]}).encode()) for part in parts]
        joined = [
            {"index": 0, "text": "a", "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "length"},
            {
                "index": 1,
                "text": "cd",
                "logprobs": {"token_logprobs": [-3.0, -4.0]},
                "finish_reason": "stop",
                "stop_reason": 5,
            },
        ]
        stream = client.Answer(0.0, 1.0, 200, (*streamed, (0.0, b"[DONE]")), b"")
        at_once = client.Answer(0.0, 1.0, 200, (), json.dumps({"choices": joined}).encode())
        assert stream.whole
        assert of_wire(stream, case) == of_wire(at_once, case)
        assert [choice["text"] for choice in of_wire(stream, case)["choices"]] == ["a", "cd"]
        assert [choice["logprobs"] for choice in of_wire(stream, case)["choices"]] == [[-1.0], [-3.0, -4.0]]
