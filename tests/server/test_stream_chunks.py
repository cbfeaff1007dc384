"""What every chunk of a stream has beside its text, whichever options it was asked with."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from asked import events_of
from pydantic import BaseModel
from serving import Served, serving
from tiny import VOCABULARY, tiny_model

from outrider import LLM
from outrider.requests.turn import Progress
from outrider.server.desk import Ticket
from outrider.server.sse import ChunkEvents

ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "the sea"}]},
    "/v1/completions": {"prompt": "the sea"},
}
MORE: dict[str, dict[str, dict[str, Any]]] = {
    "nothing": {path: {} for path in ROUTES},
    "logprobs": {"/v1/chat/completions": {"logprobs": True}, "/v1/completions": {"logprobs": 0}},
    "pieces": {path: {"return_pieces": True} for path in ROUTES},
    "timings": {path: {"timings": True} for path in ROUTES},
}


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("path", ROUTES)
def test_usage_is_in_all_chunks_or_in_none(
    client: httpx.Client, path: str, include: bool, continuous: bool, more: str
) -> None:
    options = {"include_usage": include, "continuous_usage_stats": continuous}
    body = {**ROUTES[path], **MORE[more][path], "n": 2, "max_tokens": 6, "seed": 1, "ignore_eos": True}
    events = events_of(client.post(path, json=body | {"stream": True, "stream_options": options}))
    assert {"usage" in event for event in events} == {include or continuous}
    if include and not continuous:
        assert [event for event in events if event["usage"] is not None] == events[-1:]
        assert events[-1]["choices"] == []
        assert events[-1]["usage"]["completion_tokens"] == 12
    assert [event for event in events if "timings" in event] == (events[-1:] if more == "timings" else [])


@pytest.mark.parametrize("path", ROUTES)
def test_the_usage_so_far_is_that_of_what_was_sent(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """And not of what the engine has done since."""
    progress = Ticket.progress

    async def late(self: Ticket) -> AsyncIterator[Progress]:
        async for item in progress(self):
            await asyncio.sleep(0.02)
            yield item

    monkeypatch.setattr(Ticket, "progress", late)
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**ROUTES[path], **MORE["logprobs"][path], "n": 2, "max_tokens": 8, "seed": 1, "ignore_eos": True}
    sent = 0
    for event in events_of(client.post(path, json=body | {"stream": True, "stream_options": options})):
        for choice in event["choices"]:
            sent += len((choice["logprobs"] or {}).get("tokens" if path[4:] == "completions" else "content", ()))
        assert event["usage"]["completion_tokens"] == sent
    assert sent == 16


class Chunk(BaseModel):
    """As a chunk, with something on both sides of its choices."""

    id: str = '"choices":['
    choices: list[dict[str, Any]] = []
    usage: int | None = None
    more: str = "x"


@pytest.mark.parametrize("left", [one for n in range(4) for one in itertools.combinations(("id", "usage", "more"), n)])
def test_a_quick_chunk_is_a_whole_one(left: tuple[str, ...]) -> None:
    events = ChunkEvents(Chunk(), frozenset(left))

    def read(event: bytes) -> Any:
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n")
        return json.loads(event[len(b"data: ") :])

    choice = {"index": 0, "text": '"choices":[]'}
    quick = read(events.quick(choice))
    assert quick["choices"] == [choice]
    assert quick.keys() == {"id", "choices", "usage", "more"} - set(left)
    assert quick | {"choices": []} == read(events.whole([]))


# Without a tokenizer


@pytest.fixture(scope="module")
def wordless() -> Iterator[Served]:
    with LLM.from_model(tiny_model(0, VOCABULARY)) as llm, serving(llm) as running:
        yield running


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 200),
        ({"n": 2}, 200),
        ({"return_pieces": True}, 200),
        ({"timings": True, "skip_special_tokens": False}, 200),
        ({"logprobs": 1}, 400),
        ({"echo": True}, 400),
        ({"echo": True, "logprobs": 1}, 400),
        ({"guided_regex": "a"}, 400),
        ({"prediction": {"type": "content", "content": "a"}}, 400),
        ({"bad_words": ["a"]}, 400),
        ({"prompt": "a"}, 400),
        ({"prompt": "a", "add_special_tokens": False}, 400),
    ],
)
def test_a_stream_needs_a_tokenizer_where_a_whole_answer_does(
    wordless: Served, fields: dict[str, Any], status: int
) -> None:
    with wordless.client() as client:
        for streams in (False, True):
            body = {"prompt": [7, 8, 9], "max_tokens": 3, **fields, "stream": streams}
            told = client.post("/v1/completions", json=body)
            assert told.status_code == status, told.text
            assert "tokenizer" in told.text or status == 200
    assert wordless.idle()
