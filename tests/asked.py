"""Asks a server for a text in every way there is: at once or streamed, with drafts or without."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

ROUTES = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
BASE: dict[str, Any] = {"speculation": {"enabled": False}}


@dataclass
class Spoken:
    """One output, joined if it was streamed."""

    text: str = ""
    reasons: tuple[Any, ...] = ()
    """Finish reason and stop reason."""
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    top: list[list[tuple[str, float]]] = field(default_factory=list)
    """The best tokens of each place, as they were told."""
    pieces: list[str] = field(default_factory=list)
    """The text of each chunk."""
    reasoning: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)
    """Names and arguments of calls."""

    def add(self, choice: dict[str, Any]) -> None:
        """Read an answer's choice, or a chunk's."""
        said = choice.get("message") or choice.get("delta") or choice
        text = said.get("content", said.get("text")) or ""
        self.text += text
        self.pieces.append(text)
        self.reasoning += said.get("reasoning_content") or ""
        for place, call in enumerate(said.get("tool_calls") or ()):
            self._add_call(call.get("index", place), call)
        if choice["finish_reason"] is not None:
            assert not self.reasons, "an output ends once"
            self.reasons = (choice["finish_reason"], choice.get("stop_reason"))
        if found := choice.get("logprobs"):
            self._add_logprobs(found)

    def _add_call(self, place: int, call: dict[str, Any]) -> None:
        if "id" in call:
            assert place == len(self.calls), "calls come one after another"
            self.calls.append({"name": call["function"]["name"], "arguments": ""})
        self.calls[place]["arguments"] += call["function"].get("arguments") or ""

    def _add_logprobs(self, found: dict[str, Any]) -> None:
        if "content" in found:
            for entry in found["content"]:
                self.tokens.append(entry["token"])
                self.logprobs.append(entry["logprob"])
                self.top.append([(top["token"], top["logprob"]) for top in entry["top_logprobs"]])
        else:
            self.tokens += found["tokens"]
            self.logprobs += found["token_logprobs"]
            self.top += [list((told or {}).items()) for told in found["top_logprobs"]]


@dataclass
class Said:
    """All outputs of a request, and what it came to."""

    outputs: list[Spoken]
    usage: dict[str, Any]

    @property
    def texts(self) -> list[str]:
        """The texts."""
        return [one.text for one in self.outputs]

    def assert_equals(self, other: Said) -> None:
        """Compare texts, ends, tokens, logprobs and the number of tokens."""
        assert self.texts == other.texts
        assert [one.calls for one in self.outputs] == [one.calls for one in other.outputs]
        assert [one.reasoning for one in self.outputs] == [one.reasoning for one in other.outputs]
        assert [one.reasons for one in self.outputs] == [one.reasons for one in other.outputs]
        assert [one.tokens for one in self.outputs] == [one.tokens for one in other.outputs]
        for mine, theirs in zip(self.outputs, other.outputs, strict=True):
            assert len(mine.logprobs) == len(theirs.logprobs)
            assert [one is None for one in mine.logprobs] == [one is None for one in theirs.logprobs]
            assert [one or 0.0 for one in mine.logprobs] == pytest.approx(
                [one or 0.0 for one in theirs.logprobs], abs=1e-4
            )
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert self.usage[name] == other.usage[name]


def body(route: str, prompt: str, **fields: Any) -> dict[str, Any]:
    """A request's body; ``logprobs`` is the number of best tokens on either route."""
    made: dict[str, Any] = {"temperature": 0, **fields}
    if route == "completions":
        return {"prompt": prompt, **made}
    if (most := made.pop("logprobs", None)) is not None:
        made |= {"logprobs": True, "top_logprobs": most}
    return {"messages": [{"role": "user", "content": prompt}], **made}


def whole(client: httpx.Client, wish: dict[str, Any]) -> Said:
    """Ask for an answer at once."""
    told = client.post(_route(wish), json=wish)
    assert told.status_code == 200, told.text
    answer = told.json()
    outputs = [Spoken() for _ in answer["choices"]]
    for choice in answer["choices"]:
        outputs[choice["index"]].add(choice)
    return Said(outputs, answer["usage"])


def streamed(client: httpx.Client, wish: dict[str, Any]) -> Said:
    """Ask for a stream and join it."""
    wish = {**wish, "stream": True, "stream_options": {"include_usage": True}}
    outputs: dict[int, Spoken] = {}
    usage = None
    with client.stream("POST", _route(wish), json=wish) as answer:
        events = [line[len("data: ") :] for line in answer.iter_lines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    for event in map(json.loads, events):
        assert "error" not in event, event
        for choice in event["choices"]:
            outputs.setdefault(choice["index"], Spoken()).add(choice)
        usage = event.get("usage") or usage
    assert usage is not None
    return Said([outputs[index] for index in sorted(outputs)], usage)


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, which ends with [DONE]."""
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    lines = [line[len("data: ") :] for line in answer.text.split("\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def everywhere(client: httpx.Client, wish: dict[str, Any], *, drafts: bool = True) -> Said:
    """Ask in four ways, and compare.

    Args:
        client: of the server.
        wish: the body, without ``stream``.
        drafts: whether the server must have drafted, where it may.

    Returns:
        The streamed answer with drafts.
    """
    base, spec = {**wish, **BASE}, wish
    expected = whole(client, base)
    assert expected.usage["speculation"]["drafted"] == 0
    streamed(client, base).assert_equals(expected)
    for found in (whole(client, spec), said := streamed(client, spec)):
        found.assert_equals(expected)
        assert not drafts or found.usage["speculation"]["drafted"] > 0
    return said


def together(client: httpx.Client, wishes: Sequence[dict[str, Any]]) -> list[Said]:
    """Ask at the same time: every second one for a stream."""
    with ThreadPoolExecutor(len(wishes)) as pool:
        asked = [pool.submit(streamed if place % 2 else whole, client, wish) for place, wish in enumerate(wishes)]
        return [one.result() for one in asked]


def _route(wish: dict[str, Any]) -> str:
    return ROUTES["chat" if "messages" in wish else "completions"]


def token_bytes(token: str) -> bytes:
    """The bytes of a token in a completion's logprobs; those that are no text by themselves are spelled out."""
    if not token.startswith("bytes:"):
        return token.encode()
    return bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
