"""Answers of a soak in one form, whether a server or the library gave them, so that they compare bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from client import Answer
from soak_cases import Case

from outrider import LLM, SamplingParams
from outrider.completion import Choice, Completion

_SPELLED_OTHERWISE: Final = ("messages", "prompt", "logprobs", "top_logprobs")


def solo(llm: LLM, case: Case) -> dict[str, Any]:
    """The library's answer to a case, alone and without speculation."""
    given = {name: value for name, value in case.body.items() if name not in _SPELLED_OTHERWISE}
    asked = case.body.get("logprobs")
    count = (case.body.get("top_logprobs", 0) if asked else None) if case.chat else asked
    params = SamplingParams(**given, logprobs=count, speculate=False)
    done = llm.chat(case.body["messages"], params) if case.chat else llm.generate(case.body["prompt"], params)[0]
    return _of_library(done, chat=case.chat)


def _of_library(done: Completion, *, chat: bool) -> dict[str, Any]:
    return {
        "prompt_tokens": len(done.prompt_token_ids),
        "completion_tokens": sum(len(choice.token_ids) for choice in done.choices),
        "choices": [_choice(choice, chat=chat) for choice in done.choices],
    }


def _choice(choice: Choice, *, chat: bool) -> dict[str, Any]:
    return {
        "text": choice.text,
        "finish_reason": choice.finish_reason.value,
        "stop_reason": choice.stop_reason,
        "logprobs": None if choice.logprobs is None else [item.logprob for item in choice.logprobs],
        "top": [[value for _, value in item.top] for item in choice.logprobs or ()] if chat else [],
    }


def of_wire(answer: Answer, case: Case) -> dict[str, Any]:
    """A server's answer to a case, whole or streamed; usage only if it was sent."""
    parts = [choice for _, chunk in answer.chunks for choice in chunk.get("choices", ())]
    indices = sorted({part["index"] for part in parts})
    usage = {key: answer.usage[key] for key in ("prompt_tokens", "completion_tokens") if key in answer.usage}
    return usage | {"choices": [_joined([part for part in parts if part["index"] == index], case) for index in indices]}


def _joined(parts: Sequence[Mapping[str, Any]], case: Case) -> dict[str, Any]:
    """One choice, from its parts."""
    text, logprobs, top = "", [], []
    for part in parts:
        text += _text(part)
        told = part.get("logprobs") or {}
        if case.chat:
            content = told.get("content") or ()
            logprobs += [item["logprob"] for item in content]
            top += [[each["logprob"] for each in item["top_logprobs"]] for item in content]
        else:
            logprobs += told.get("token_logprobs") or ()
    asked = case.body.get("logprobs", False) is not False  # 0 asks for the chosen token's alone
    last = parts[-1]
    return {
        "text": text,
        "finish_reason": last.get("finish_reason"),
        "stop_reason": last.get("stop_reason"),
        "logprobs": logprobs if asked else None,
        "top": top,
    }


def _text(part: Mapping[str, Any]) -> str:
    said = part.get("text") if "text" in part else (part.get("delta") or part.get("message") or {}).get("content")
    return said or ""


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The names of what differs; usage that was not sent counts as equal."""
    names = [key for key in ("prompt_tokens", "completion_tokens") if key in found and found[key] != expected[key]]
    if len(expected["choices"]) != len(found["choices"]):
        return [*names, "the number of choices"]
    for place, (mine, theirs) in enumerate(zip(expected["choices"], found["choices"], strict=True)):
        names += [f"choice {place}: {key}" for key in mine if mine[key] != theirs[key]]
    return names
