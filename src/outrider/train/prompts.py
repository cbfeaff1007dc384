"""Prompts to train on: read from JSON lines, refused where the evaluation prompts are among them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from outrider.errors import ConfigError
from outrider.train.overlap import HeldOut, evaluation_prompts

if TYPE_CHECKING:
    from outrider.target.tokenizer import Tokenizer

VALIDATION_SHARE: Final = 0.03
"""Of all prompts, those that are kept for held-out figures."""
_USER: Final = "user"
_ASSISTANT: Final = "assistant"
_ROLES: Final = ("system", _USER, _ASSISTANT)
_SHAPE: Final = '{"messages": [{"role", "content"}, …]}, {"prompt": text} or {"text": text}'


@dataclass(frozen=True)
class Prompt:
    """What the target is to answer: a conversation that ends with the user, or bare text that it goes on with."""

    messages: tuple[tuple[str, str], ...] = ()
    """Role and content of each turn."""
    text: str = ""
    """Used where there are no messages."""

    @classmethod
    def asked(cls, question: str) -> Prompt:
        """A conversation of one question."""
        return cls(messages=((_USER, question),))

    @cached_property
    def key(self) -> str:
        """A name that equal prompts share: the same in every process."""
        return hashlib.sha256(json.dumps([self.messages, self.text]).encode()).hexdigest()[:16]

    @property
    def parts(self) -> tuple[str, ...]:
        """Every piece of text in it."""
        return tuple(content for _, content in self.messages) or (self.text,)

    @property
    def for_validation(self) -> bool:
        """Whether it is kept for held-out figures: a function of the prompt alone."""
        return int(self.key[:8], 16) < VALIDATION_SHARE * 2**32

    def to_dict(self) -> dict[str, Any]:
        """What :func:`read_prompts` reads."""
        if not self.messages:
            return {"text": self.text}
        return {"messages": [{"role": role, "content": content} for role, content in self.messages]}

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids, ready for the answer; a question to a model without a chat template is bare text."""
        if not self.messages:
            return tokenizer.encode(self.text)
        if not tokenizer.chat_template and len(self.messages) == 1:
            return tokenizer.encode(self.messages[0][1])
        turns = [{"role": role, "content": content} for role, content in self.messages]
        return tokenizer.encode(tokenizer.apply_chat_template(turns), add_special_tokens=False)


def read_prompts(paths: Sequence[Path], held_out: HeldOut | None = None) -> list[Prompt]:
    """The prompts of JSON lines files, each once.

    Args:
        paths: one JSON object a line: a conversation, of which an answer at the end is left off; a ``prompt``, which
            the user asks; or a ``text``, which the model goes on with.
        held_out: evaluation prompts; None takes those that come with Outrider.

    Raises:
        ConfigError: a file cannot be read, a line is not a prompt, or one holds an evaluation prompt; file and line
            are named.
    """
    refused = evaluation_prompts() if held_out is None else held_out
    prompts: dict[str, Prompt] = {}
    for path in paths:
        for place, prompt in _lines(path):
            for part in prompt.parts:
                if (found := refused.found_in(part)) is not None:
                    raise ConfigError(
                        f"{place} holds the words {found!r} of an evaluation prompt, and what is measured may not be "
                        "trained on; take the line out"
                    )
            prompts[prompt.key] = prompt
    if not prompts:
        raise ConfigError(f"there is no prompt in {', '.join(map(str, paths)) or 'no file'}; give at least one line")
    return list(prompts.values())


def write_prompts(path: Path, prompts: Iterable[Prompt]) -> None:
    """Write prompts as :func:`read_prompts` reads them; the file is whole or not there."""
    temporary = path.with_suffix(path.suffix + ".part")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(prompt.to_dict(), ensure_ascii=False) + "\n" for prompt in prompts)
    temporary.write_text("".join(lines), encoding="utf-8")
    temporary.replace(path)


def _lines(path: Path) -> Iterable[tuple[str, Prompt]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompt file {path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{path}: line {number}", _prompt(f"{path}: line {number}", line)


def _prompt(place: str, line: str) -> Prompt:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place} is no JSON object; write {_SHAPE}")
    if "messages" in value:
        return Prompt(messages=_messages(place, value["messages"]))
    text = next((value[name] for name in ("prompt", "text") if name in value), None)
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{place} is no prompt; write {_SHAPE}")
    return Prompt.asked(text) if "prompt" in value else Prompt(text=text)


def _messages(place: str, value: Any) -> tuple[tuple[str, str], ...]:
    try:
        turns = [(turn["role"], turn["content"]) for turn in value]
    except (TypeError, KeyError):
        raise ConfigError(f"{place}: each of its messages needs a role and a content") from None
    if any(role not in _ROLES or not isinstance(content, str) for role, content in turns):
        raise ConfigError(f"{place}: the roles are {', '.join(_ROLES)}, and a content is text")
    while turns and turns[-1][0] == _ASSISTANT:  # the target gives its own answer
        turns.pop()
    if not turns or turns[-1][0] != _USER or not turns[-1][1].strip():
        raise ConfigError(f"{place}: no user's turn is left to answer")
    return tuple(turns)
