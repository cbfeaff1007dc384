"""Random requests for a soak: their parameters, the ways to send them, and malformed ones."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from client import CHAT, COMPLETIONS, Request

_STOPS: Final = (".", "\n", ",", " the", "e ", "\n\n", "zebra")
_OPENINGS: Final = (
    "Tell me about",
    "Write a Python function for",
    "List three facts about",
    "Once upon a time there was",
)
_TOPICS: Final = ("the harbour", "prime numbers", "bread", "a tram", "köttbullar", "rain", "日本", "an owl 🦉")


@dataclass(frozen=True)
class Case:
    """A request whose answer is known: everything in it that may change the answer."""

    path: str
    body: Mapping[str, Any]

    @property
    def chat(self) -> bool:
        """Whether it is a conversation."""
        return self.path == CHAT


def make_case(dice: random.Random, texts: Sequence[str], vocabulary: int) -> Case:
    """Draw a request.

    Args:
        dice: decides everything.
        texts: long texts; prompts begin with pieces of them, so that many share prefixes.
        vocabulary: token ids of the model.
    """
    prompt = _prompt(dice, texts)
    body = {"max_tokens": dice.randint(1, 40), "seed": dice.randrange(2**53), **_sampling(dice)}
    body |= _endings(dice, body["max_tokens"])
    if dice.random() < 0.15:
        body["logit_bias"] = {
            str(dice.randrange(vocabulary)): dice.choice((-100.0, -3.5, 2.0, 6.0)) for _ in range(dice.randint(1, 20))
        }
    if dice.random() < 0.15:
        body["n"] = dice.randint(2, 3)
    if dice.random() < 0.5:
        more = {"logprobs": True, "top_logprobs": dice.randint(0, 5)} if dice.random() < 0.4 else {}
        return Case(CHAT, {"messages": _messages(dice, prompt), **body, **more})
    more = {"logprobs": dice.randint(0, 5)} if dice.random() < 0.4 else {}
    return Case(COMPLETIONS, {"prompt": prompt, **body, **more})


def _prompt(dice: random.Random, texts: Sequence[str]) -> str:
    asked = f"{dice.choice(_OPENINGS)} {dice.choice(_TOPICS)}"
    if dice.random() < 0.3:
        return asked
    text = dice.choice(texts)
    return f"{text[: dice.choice((100, 400, 800, dice.randrange(50, 1500)))]}\n\n{asked}"


def _messages(dice: random.Random, prompt: str) -> list[dict[str, str]]:
    before = [{"role": "system", "content": "Answer in one short paragraph."}] if dice.random() < 0.4 else []
    if dice.random() < 0.2:
        before += [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hello. What can I do?"}]
    return [*before, {"role": "user", "content": prompt}]


def _sampling(dice: random.Random) -> dict[str, Any]:
    some: dict[str, Any] = {"temperature": dice.choice((0, 0, 0.5, 0.8, 1.0, 1.5))}
    choices = {
        "top_p": (0.5, 0.9, 0.95),
        "top_k": (1, 5, 40),
        "min_p": (0.02, 0.1),
        "repetition_penalty": (0.9, 1.1, 1.3),
        "presence_penalty": (-0.5, 0.6, 2.0),
        "frequency_penalty": (-0.3, 0.4, 1.5),
    }
    return some | {name: dice.choice(values) for name, values in choices.items() if dice.random() < 0.2}


def _endings(dice: random.Random, most: int) -> dict[str, Any]:
    some: dict[str, Any] = {}
    if dice.random() < 0.25:
        some["stop"] = dice.sample(_STOPS, dice.randint(1, 3))
    if dice.random() < 0.2:
        some["min_tokens"] = dice.randint(0, most)
    if dice.random() < 0.15:
        some["ignore_eos"] = True
    if dice.random() < 0.1:
        some["bad_words"] = dice.sample(("the", "and", "is", "owl"), 2)
    return some


def sending(dice: random.Random, case: Case, algorithms: Sequence[str]) -> Request:
    """Draw a way to send a request that does not change its answer.

    Args:
        dice: decides everything.
        case: what to send.
        algorithms: drafting methods that the server has loaded.
    """
    body = dict(case.body)
    if dice.random() < 0.6:
        told = {"include_usage": True, "continuous_usage_stats": dice.random() < 0.3}
        body |= {"stream": True} | ({"stream_options": told} if dice.random() < 0.7 else {})
    if dice.random() < 0.6:
        wish: dict[str, Any] = {"enabled": dice.choice((True, False, "auto"))}
        wish |= {"algorithm": dice.choice(algorithms)} if dice.random() < 0.5 else {}
        wish |= {"max_draft_tokens": dice.randint(0, 8)} if dice.random() < 0.3 else {}
        body["speculation"] = wish
    for name, value in (
        ("cache_salt", f"salt {dice.randrange(5)}"),
        ("priority", dice.randint(-2, 2)),
        ("timings", True),
        ("return_pieces", True),
        ("user", "soak"),
    ):
        if dice.random() < 0.1:
            body[name] = value
    return Request(case.path, body)


def cancelled(dice: random.Random, request: Request) -> Request:
    """The same request, with a client that hangs up at some point; its output is long, so that it is often early."""
    assert isinstance(request.body, Mapping)
    body = {**request.body, "max_tokens": 200}
    if body.get("stream") and dice.random() < 0.7:
        return Request(request.path, body, events=dice.randrange(12))
    return Request(request.path, body, seconds=dice.uniform(0.0, 0.8))


def malformed(dice: random.Random, context: int) -> Request:
    """A request that must be refused with a status of 4xx.

    Args:
        dice: decides which.
        context: tokens that the model can hold.
    """
    if dice.random() < 0.3:
        return dice.choice(_WRONG)
    wrong = dice.choice([*_WRONG_FIELDS, {"prompt": [1] * (context + 1)}])
    streams = {"stream": True} if dice.random() < 0.5 else {}
    if "messages" in wrong or (dice.random() < 0.5 and "prompt" not in wrong):
        return Request(CHAT, {"messages": [{"role": "user", "content": "Hi"}], **streams, **wrong})
    return Request(COMPLETIONS, {"prompt": "Hi", **streams, **wrong})


_WRONG: Final = (
    Request(COMPLETIONS, b""),
    Request(COMPLETIONS, b"{"),
    Request(COMPLETIONS, b"[]"),
    Request(COMPLETIONS, b"\xff\xfe{}"),
    Request(COMPLETIONS, b'{"prompt": "Hi", "max_tokens": 1e999}'),
    Request(COMPLETIONS, {}),
    Request(CHAT, {"model": None}),
    Request(CHAT, None),
    Request("/v1/no/such/route", {"prompt": "Hi"}),
)
_WRONG_FIELDS: Final[tuple[Mapping[str, Any], ...]] = (
    {"prompt": 5},
    {"prompt": []},
    {"prompt": [2**40]},
    {"prompt": [2**31 - 1]},
    {"messages": []},
    {"messages": "Hi"},
    {"messages": [{"role": "pope", "content": "Hi"}]},
    {"messages": [{"content": "Hi"}]},
    {"temperature": -1},
    {"temperature": "hot"},
    {"top_p": 0},
    {"top_p": 1.5},
    {"top_k": -7},
    {"min_p": 2},
    {"n": 0},
    {"n": 10**6},
    {"max_tokens": -1},
    {"max_tokens": 1.5},
    {"min_tokens": -1},
    {"seed": "x"},
    {"stop": [1]},
    {"stop": ""},
    {"logit_bias": {"a": 1}},
    {"logit_bias": {"-3": 1}},
    {"repetition_penalty": 0},
    {"presence_penalty": 1000},
    {"stream_options": {"include_usage": True}, "stream": False},
    {"speculation": {"enabled": "perhaps"}},
    {"logprobs": 99},
    {"no_such_field": 1},
    {"model": "no-such-model"},
)
