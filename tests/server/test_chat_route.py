"""``/v1/chat/completions`` and ``/v1/completions``: answers are the library's own, streamed or not."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest
from asked import events_of, token_bytes
from serving import Served

from outrider.server.wire.chat import ChatAnswer, ChatChunk
from outrider.server.wire.completions import CompletionAnswer

MESSAGES = [{"role": "user", "content": "tell me of the sea"}]


@pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 7}, {"seed": 3, "n": 3, "stop": ["e"]}])
def test_a_chat_answer_is_the_librarys(served: Served, client: httpx.Client, options: dict[str, Any]) -> None:
    body = {"messages": MESSAGES, "max_tokens": 24, **options}
    told = client.post("/v1/chat/completions", json=body)
    assert told.status_code == 200, told.text
    answer = ChatAnswer.model_validate_json(told.text)
    done = served.llm.chat(MESSAGES, max_tokens=24, **{"temperature": 1.0, **options})
    assert [choice.message.content for choice in answer.choices] == [choice.text for choice in done.choices]
    assert [choice.finish_reason for choice in answer.choices] == [choice.finish_reason for choice in done.choices]
    assert answer.usage.completion_tokens == sum(len(choice.token_ids) for choice in done.choices)
    streamed = client.post(
        "/v1/chat/completions", json=body | {"stream": True, "stream_options": {"include_usage": True}}
    )
    chunks = [ChatChunk.model_validate(event) for event in events_of(streamed)]
    texts = ["" for _ in done.choices]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.text for choice in done.choices]
    seeds = [choice.seed for chunk in chunks for choice in chunk.choices if choice.finish_reason is not None]
    assert len(seeds) == len(done.choices)
    assert set(seeds) == {options["seed"]} if "seed" in options else all(seed is not None for seed in seeds)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


@pytest.mark.parametrize(
    ("path", "prompt"), [("/v1/chat/completions", {"messages": MESSAGES}), ("/v1/completions", {"prompt": "the sea"})]
)
def test_every_chunk_may_tell_the_usage_so_far(client: httpx.Client, path: str, prompt: dict[str, Any]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = prompt | {"max_tokens": 6, "n": 2, "seed": 1, "ignore_eos": True, "stream": True, "stream_options": options}
    usages = [event["usage"] for event in events_of(client.post(path, json=body))]
    counts = [usage["completion_tokens"] for usage in usages]
    assert len({usage["prompt_tokens"] for usage in usages}) == 1
    assert counts == sorted(counts)
    assert counts[-1] == 12


def test_completions_take_texts_ids_and_batches(served: Served, client: httpx.Client) -> None:
    ids = served.llm.encode("the sea")
    wish = {"max_tokens": 8, "temperature": 0}
    expected = served.llm.generate("the sea", **wish)[0].text
    for prompt, count in (("the sea", 1), (ids, 1), (["the sea", "the sea"], 2), ([ids, ids, ids], 3)):
        told = client.post("/v1/completions", json={"prompt": prompt, **wish})
        answer = CompletionAnswer.model_validate_json(told.text)
        assert [choice.text for choice in answer.choices] == [expected] * count


def test_echo_and_prompt_logprobs(served: Served, client: httpx.Client) -> None:
    for most in (0, 1, 5):
        body = {"prompt": "the sea", "max_tokens": most, "temperature": 0, "echo": True, "logprobs": 2}
        answer = CompletionAnswer.model_validate_json(client.post("/v1/completions", json=body).text)
        (choice,) = answer.choices
        assert choice.logprobs is not None
        assert choice.text.startswith("the sea")
        assert choice.logprobs.token_logprobs[0] is None
        joined = b"".join(map(token_bytes, choice.logprobs.tokens))
        assert joined.decode(errors="replace").startswith(choice.text)  # half a character at the end is no text
        assert len(choice.logprobs.tokens) == answer.usage.prompt_tokens + most  # type: ignore[union-attr]
        streamed = client.post("/v1/completions", json=body | {"stream": True})
        tokens = [
            token for event in events_of(streamed) for part in event["choices"] for token in part["logprobs"]["tokens"]
        ]
        assert tokens == choice.logprobs.tokens


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", "0.5"),
        ("top_p", 0),
        ("max_tokens", "many"),
        ("n", 0),
        ("stop", 5),
        ("logit_bias", {"7": "x"}),
        ("messages", []),
        ("frobnicate", 1),
        ("top_logprobs", 3),
        ("stream_options", {"include_usage": True}),
    ],
)
def test_wrong_values_name_their_field(client: httpx.Client, field: str, value: object) -> None:
    told = client.post("/v1/chat/completions", json={"messages": MESSAGES, field: value})
    assert told.status_code == 400
    error = told.json()["error"]
    assert error["param"] == field
    assert error["type"] == "invalid_request_error"
    assert field in error["message"]


def test_what_is_not_offered_is_refused(client: httpx.Client) -> None:
    for path in ("/v1/embeddings", "/v1/images/generations", "/v1/audio/speech", "/nowhere"):
        told = client.post(path, json={})
        assert told.status_code == 404
        assert told.json()["error"]["type"] == "not_found_error"
    told = client.post("/v1/chat/completions", json={"messages": MESSAGES, "model": "gpt-9"})
    assert told.status_code == 404
    assert told.json()["error"]["code"] == "model_not_found"


def test_the_small_routes(served: Served, client: httpx.Client) -> None:
    ids = client.post("/tokenize", json={"prompt": "the sea"}).json()["tokens"]
    assert ids == served.llm.encode("the sea")
    assert client.post("/detokenize", json={"tokens": ids}).json()["prompt"] == "the sea"
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").status_code == 200
    (card,) = client.get("/v1/models").json()["data"]
    assert client.get(f"/v1/models/{card['id']}").json() == card
    assert served.idle()


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_logprobs_of_a_prompt_are_told_once(client: httpx.Client, echo: bool, logprobs: int | None) -> None:
    body = {"prompt": [7, 8, 9], "max_tokens": 1, "prompt_logprobs": 1, "echo": echo, "logprobs": logprobs}
    choice = client.post("/v1/completions", json=body).json()["choices"][0]
    beside = choice.get("prompt_logprobs")
    within = [] if choice["logprobs"] is None else choice["logprobs"]["tokens"][:-1]
    assert [len(beside or ()), len(within)] in ([3, 0], [0, 3])


def test_prompts_of_one_request_are_sampled_independently(client: httpx.Client) -> None:
    body = {"prompt": [[7, 8, 9]] * 4, "max_tokens": 1}
    seeds = [choice["seed"] for choice in client.post("/v1/completions", json=body).json()["choices"]]
    assert len(set(seeds)) == 4
    given = [choice["seed"] for choice in client.post("/v1/completions", json=body | {"seed": 5}).json()["choices"]]
    assert given == [5] * 4


def test_an_answer_without_tokens_has_no_negative_speed(client: httpx.Client) -> None:
    told = client.post("/v1/completions", json={"prompt": "the sea", "max_tokens": 0, "timings": True}).json()
    assert told["timings"]["tokens_per_second"] >= 0


@pytest.mark.parametrize(
    "form",
    [
        {"guided_regex": "[a-c]{3}"},
        {"guided_json": {"type": "object"}},
        {"guided_choice": ["one", "two"]},
        {"response_format": {"type": "json_object"}},
    ],
)
@pytest.mark.parametrize("chats", [False, True])
def test_no_grammar_is_compiled_on_the_event_loop(
    served: Served, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, form: dict[str, Any], chats: bool
) -> None:
    assert served.llm.tokenizer is not None
    grammars, threads = served.llm.tokenizer.grammars, set[int]()
    compile_one = grammars.compile

    def noting(grammar: Any) -> Any:
        threads.add(threading.get_ident())
        return compile_one(grammar)

    monkeypatch.setattr(grammars, "compile", noting)
    path, prompt = ("/v1/chat/completions", {"messages": MESSAGES}) if chats else ("/v1/completions", {"prompt": "sea"})
    assert client.post(path, json={**prompt, **form, "max_tokens": 2}).status_code == 200
    assert threads
    assert served.thread.ident not in threads


def test_a_head_request_counts_for_its_route(client: httpx.Client) -> None:
    assert client.head("/health").status_code == 200
    told = client.get("/metrics").text
    assert [line for line in told.splitlines() if 'method="HEAD"' in line and 'route="/health"' in line]
