"""What a user passes, as token ids with sampling parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from outrider.engine.call import Wish
from outrider.errors import ConfigError, RequestError
from outrider.inputs import Params, Prompt, read_params, read_prompt, read_prompts
from outrider.messages import Messages, read_conversations
from outrider.models.files.tokenizer import Tokenizer


class Reader:
    """Reads prompts and conversations for one model.

    Args:
        tokenizer: the model's; None reads token ids alone.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._known = tokenizer

    def encode(self, prompt: Prompt) -> list[int]:
        """See :meth:`outrider.LLM.encode`."""
        read = read_prompt(prompt)
        return self._tokenizer.encode(read) if isinstance(read, str) else read

    def prompt(self, prompt: Prompt, params: Params | None, options: Mapping[str, Any]) -> Wish:
        """One prompt; see :meth:`outrider.LLM.stream` for arguments and errors."""
        return self.encode(prompt), read_params(params, options, 1)[0]

    def prompts(
        self, prompts: Prompt | Iterable[Prompt], params: Params | Iterable[Params] | None, options: Mapping[str, Any]
    ) -> list[Wish]:
        """Several prompts; see :meth:`outrider.LLM.generate` for arguments and errors."""
        listed = read_prompts(prompts)
        each = read_params(params, options, len(listed))
        return [(self.encode(prompt), wish) for prompt, wish in zip(listed, each, strict=True)]

    def conversation(self, messages: Messages, told: Mapping[str, Any]) -> list[int]:
        """One conversation; see :meth:`outrider.LLM.encode_chat` for arguments and errors."""
        conversations, several = read_conversations(messages)
        if several:
            raise RequestError(f"encode_chat takes one conversation, but {len(conversations)} were given")
        return self._written(conversations[0], told)

    def conversations(
        self,
        messages: Messages | Sequence[Sequence[Mapping[str, Any]]],
        params: Params | Iterable[Params] | None,
        options: Mapping[str, Any],
        told: Mapping[str, Any],
        *,
        stream: bool,
    ) -> tuple[list[Wish], bool]:
        """Several conversations, and whether a list was given; see :meth:`outrider.LLM.chat` for the rest."""
        conversations, several = read_conversations(messages)
        if stream and several:
            raise RequestError(f"stream=True answers one conversation, but {len(conversations)} were given")
        each = read_params(params, options, len(conversations))
        return [(self._written(one, told), wish) for one, wish in zip(conversations, each, strict=True)], several

    def _written(self, conversation: Sequence[Mapping[str, Any]], told: Mapping[str, Any]) -> list[int]:
        text = self._tokenizer.apply_chat_template(conversation, **told)
        return self._tokenizer.encode(text, add_special_tokens=False)

    @property
    def _tokenizer(self) -> Tokenizer:
        if self._known is None:
            raise ConfigError("this model was given without a tokenizer; pass token ids")
        return self._known
