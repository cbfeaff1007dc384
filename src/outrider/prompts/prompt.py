"""One prompt of a prompt file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from outrider.models.files.tokenizer import Tokenizer

SYSTEM: Final = "system"
USER: Final = "user"
ASSISTANT: Final = "assistant"
ROLES: Final = (SYSTEM, USER, ASSISTANT)

Messages = tuple[tuple[str, str], ...]
"""Role and content of each turn."""


@dataclass(frozen=True)
class Prompt:
    """A conversation, or plain text to continue."""

    number: int
    """Its index in the file, from 0."""
    id: str
    """Unique within the file."""
    category: str
    messages: Messages = ()
    """The conversation as written, with an answer at its end, if any."""
    text: str = ""
    """Plain text, used if there are no messages."""
    place: str = ""
    """File and line, for error messages."""

    @property
    def unanswered(self) -> Messages:
        """The conversation without the answers at its end."""
        return unanswered(self.messages)

    def asked(self) -> Prompt:
        """The prompt as a measurement uses it.

        A conversation that ends with the user stays whole.  One that ends with an answer is cut to its first question,
        with the system messages before it.
        """
        if self.unanswered == self.messages:
            return self
        first = next(place for place, (role, _) in enumerate(self.messages) if role == USER)
        before = tuple(message for message in self.messages[:first] if message[0] == SYSTEM)
        return replace(self, messages=(*before, self.messages[first]))

    @property
    def turns(self) -> list[dict[str, str]]:
        """The conversation for a chat template; plain text becomes a user message."""
        return [{"role": role, "content": content} for role, content in self.messages or ((USER, self.text),)]

    def encode(self, tokenizer: Tokenizer, *, chat: bool) -> list[int]:
        """Encode the prompt; if ``chat``, with the chat template, otherwise with its turns joined as plain text.

        Raises:
            ModelError: the model has no chat template.
            RequestError: the template refuses the conversation.
        """
        if self.messages and chat:
            return tokenizer.encode_chat(self.turns)
        return tokenizer.encode("\n\n".join(turn["content"] for turn in self.turns))


def unanswered(messages: Messages) -> Messages:
    """The conversation without the answers at its end."""
    last = max((place for place, (role, _) in enumerate(messages) if role != ASSISTANT), default=-1)
    return messages[: last + 1]
