"""One prompt, whichever file it came from."""

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
    """A conversation, or bare text that the model goes on with."""

    number: int
    """Its place among the prompts of its file, from 0."""
    id: str
    """No other prompt of the file has it."""
    category: str
    messages: Messages = ()
    """A conversation as it was written down, an answer at its end included."""
    text: str = ""
    """Used where there are no messages."""
    place: str = ""
    """File and line, for messages to the user."""

    @property
    def unanswered(self) -> Messages:
        """The conversation up to the last turn of the user's, which is for the target to answer."""
        return unanswered(self.messages)

    def asked(self) -> Prompt:
        """The same with the one question that is asked in a measurement.

        A conversation that ends with the user is asked whole.  Of one that ends with an answer the first question is
        asked, under the system's instructions before it.
        """
        if self.unanswered == self.messages:
            return self
        first = next(place for place, (role, _) in enumerate(self.messages) if role == USER)
        before = tuple(message for message in self.messages[:first] if message[0] == SYSTEM)
        return replace(self, messages=(*before, self.messages[first]))

    @property
    def turns(self) -> list[dict[str, str]]:
        """The conversation as a chat template reads it; bare text is a question of the user's."""
        return [{"role": role, "content": content} for role, content in self.messages or ((USER, self.text),)]

    def encode(self, tokenizer: Tokenizer, *, chat: bool) -> list[int]:
        """Token ids, ready for the answer.

        Args:
            tokenizer: the target's.
            chat: put a conversation through the chat template; otherwise its turns are bare text, one after another.
                Bare text stays what it is.

        Raises:
            ModelError: there is no chat template.
            RequestError: the template refuses the conversation.
        """
        if self.messages and chat:
            return tokenizer.encode(tokenizer.apply_chat_template(self.turns), add_special_tokens=False)
        return tokenizer.encode("\n\n".join(turn["content"] for turn in self.turns))


def unanswered(messages: Messages) -> Messages:
    """A conversation without the answers at its end."""
    last = max((place for place, (role, _) in enumerate(messages) if role != ASSISTANT), default=-1)
    return messages[: last + 1]
