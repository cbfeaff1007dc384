"""A completion that begins with its prompt: the text is the prompt's own, and every token has its place in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from asked import events_of, token_bytes
from serving import Served, serving, tiny_llm
from tiny_folder import END, make_tokenizer
from tokenizers import processors

from outrider import LLM
from outrider.models.files.tokenizer import Tokenizer
from outrider.server import logprobs

TEXT = "<|user|>the sea<|assistant|>"
SIZE = 320


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    chunked = {"prefill_chunk": 8}
    with tiny_llm(tmp_path_factory.mktemp("echo"), scheduler=chunked, cache={"prefix_cache": True}) as made:
        yield made


@pytest.fixture(scope="module")
def echoing(llm: LLM) -> Iterator[Served]:
    with serving(llm) as running:
        yield running


@pytest.fixture
def client(echoing: Served) -> Iterator[httpx.Client]:
    with echoing.client() as made:
        yield made


def echoed(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"echo": True, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields}
    told = client.post("/v1/completions", json=body)
    assert told.status_code == 200, told.text
    return dict(told.json()["choices"][0])


def streamed(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    """The choices of a stream, joined."""
    body = {"echo": True, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "stream": True, **fields}
    joined: dict[int, dict[str, Any]] = {}
    for event in events_of(client.post("/v1/completions", json=body)):
        for part in event["choices"]:
            choice = joined.setdefault(part["index"], {"text": "", "logprobs": None})
            choice["text"] += part["text"]
            if part["logprobs"] is not None:
                before = choice["logprobs"] or {name: [] for name in part["logprobs"]}
                choice["logprobs"] = {name: before[name] + part["logprobs"][name] for name in before}
    return [joined[index] for index in sorted(joined)]


@pytest.mark.parametrize("skips", [None, True, False])
@pytest.mark.parametrize("scored", [None, 0, 2])
@pytest.mark.parametrize("kind", ["text", "ids", "special text", "special ids"])
def test_the_text_begins_with_the_prompt(
    llm: LLM, client: httpx.Client, kind: str, scored: int | None, skips: bool | None
) -> None:
    assert llm.tokenizer is not None
    text = END if kind.startswith("special") else TEXT
    ids = llm.encode(text)
    prompt = ids if kind.endswith("ids") else text
    expected = llm.tokenizer.decode(ids, skips is not False) if kind.endswith("ids") else text
    fields = {"prompt": prompt, "logprobs": scored, "skip_special_tokens": skips}
    choice = echoed(client, **fields)
    alone = echoed(client, **fields | {"echo": False})
    assert choice["text"] == expected + alone["text"]
    (stream,) = streamed(client, **fields)
    assert stream == {"text": choice["text"], "logprobs": choice["logprobs"]}
    if scored is None:
        return
    told = choice["logprobs"]
    assert len(told["tokens"]) == len(ids) + 4
    assert told["token_logprobs"][0] is None
    assert told["token_logprobs"][len(ids) :] == pytest.approx(alone["logprobs"]["token_logprobs"], abs=1e-4)
    places = told["text_offset"]
    assert places == sorted(places)
    assert places[len(ids)] == len(expected)
    for place, after, token in zip(places[: len(ids)], places[1:], told["tokens"], strict=False):
        assert choice["text"][place:after].encode() in (b"", token_bytes(token))


def test_a_prompt_with_tokens_that_its_text_does_not_have() -> None:
    """Such as those that the tokenizer puts around every text."""
    backend = make_tokenizer(SIZE)
    around = [("<|system|>", backend.token_to_id("<|system|>")), (END, backend.token_to_id(END))]
    backend.post_processor = processors.TemplateProcessing(single=f"<|system|> $A {END}", special_tokens=around)
    tokenizer = Tokenizer(backend, name="around")
    for text in ("the sea", TEXT, "", "é€ <|system|>", "<|system|>"):
        ids = tokenizer.encode(text)
        places = logprobs.of_echo(tokenizer, text, ids, [None] * len(ids)).text_offset
        inside = tokenizer.encode(text, False)
        alone = logprobs.of_echo(tokenizer, text, inside, [None] * len(inside)).text_offset
        if not text.startswith("<|system|>"):  # else nothing tells the one from the other
            assert places == [0, *alone, len(text)]
        assert places[-1] == len(text)


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("scored", [None, 1])
def test_a_prompts_logprobs_are_written_once(
    client: httpx.Client, echoing: Served, monkeypatch: pytest.MonkeyPatch, scored: int | None, echo: bool
) -> None:
    """For all outputs, and not on the event loop."""
    written: list[str] = []

    def noting(write: Any) -> Any:
        def noted(*given: Any) -> Any:
            written.append(threading.current_thread().name)
            return write(*given)

        return noted

    for name in ("of_prompt", "of_echo"):
        monkeypatch.setattr(logprobs, name, noting(getattr(logprobs, name)))
    prompts = [[7, 8, 9], [10, 11, 12, 13]]
    body = {"prompt": prompts, "n": 3, "max_tokens": 2, "seed": 1, "prompt_logprobs": 1, "logprobs": scored}
    told = client.post("/v1/completions", json=body | {"echo": echo})
    within = echo and scored is not None
    for choice in told.json()["choices"]:
        prompt = prompts[choice["index"] // 3]
        values = choice["logprobs"]["token_logprobs"][: len(prompt)] if within else choice["prompt_logprobs"]
        assert [value is None for value in values] == [True] + [False] * (len(prompt) - 1)
    assert len(written) == len(prompts)
    assert echoing.thread.name not in written


@pytest.mark.parametrize("warm", [False, True])
def test_streamed_outputs_of_one_prompt_all_begin_with_its_logprobs(client: httpx.Client, warm: bool) -> None:
    """Those that take the prompt from the cache have text before the one that computes its log-probabilities."""
    prompt = [(40 if warm else 41) + place % 7 for place in range(100)]
    fields = {"prompt": [prompt, prompt[:50]], "n": 3, "seed": 2, "temperature": 1, "logprobs": 1}
    if warm:
        echoed(client, prompt=prompt)
    parts = streamed(client, **fields)
    body = {"echo": True, "max_tokens": 4, "ignore_eos": True, **fields}
    whole = client.post("/v1/completions", json=body).json()["choices"]
    assert [part["text"] for part in parts] == [choice["text"] for choice in whole]
    for part, choice in zip(parts, whole, strict=True):
        for name in ("tokens", "text_offset"):
            assert part["logprobs"][name] == choice["logprobs"][name]
        told, expected = part["logprobs"]["token_logprobs"], choice["logprobs"]["token_logprobs"]
        assert told[0] is expected[0] is None
        assert told[1:] == pytest.approx(expected[1:], abs=1e-4)
