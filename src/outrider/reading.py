"""Turns users' prompts and conversations into token ids with sampling parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outrider.engine.admission import in_tokens
from outrider.engine.call import RequestSpec
from outrider.errors import ConfigError, RequestError
from outrider.grammar import CompiledGrammar, Grammar
from outrider.inputs import Params, Prompt, read_params, read_prompt, read_prompts
from outrider.messages import Messages, read_conversations
from outrider.models.files.tokenizer import Tokenizer
from outrider.sampling.params import SamplingParams


class Reader:
    """Reads prompts and conversations for one model.

    Args:
        tokenizer: the model's tokenizer; None allows only token ids.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._known = tokenizer

    def encode(self, prompt: Prompt) -> list[int]:
        """Encode a prompt; arguments and errors are those of :meth:`outrider.LLM.encode`."""
        read = read_prompt(prompt)
        return self._tokenizer.encode(read) if isinstance(read, str) else read

    def prompt(self, prompt: Prompt, params: Params | None, options: Mapping[str, Any]) -> RequestSpec:
        """Read one prompt; arguments and errors are those of :meth:`outrider.LLM.stream`."""
        return self.encode(prompt), self.ready(read_params(params, options, 1))[0]

    def prompts(
        self, prompts: Prompt | Iterable[Prompt], params: Params | Iterable[Params] | None, options: Mapping[str, Any]
    ) -> list[RequestSpec]:
        """Read several prompts; arguments and errors are those of :meth:`outrider.LLM.generate`."""
        listed = read_prompts(prompts)
        each = self.ready(read_params(params, options, len(listed)))
        return [(self.encode(prompt), wish) for prompt, wish in zip(listed, each, strict=True)]

    def conversation(self, messages: Messages, told: Mapping[str, Any]) -> list[int]:
        """Read one conversation; arguments and errors are those of :meth:`outrider.LLM.encode_chat`."""
        conversations, several = read_conversations(messages)
        if several:
            raise RequestError(
                f"encode_chat takes one conversation, but got {len(conversations)}; encode each on its own"
            )
        return self._written(conversations[0], told)

    def conversations(
        self,
        messages: Messages | Sequence[Sequence[Mapping[str, Any]]],
        params: Params | Iterable[Params] | None,
        options: Mapping[str, Any],
        told: Mapping[str, Any],
        *,
        stream: bool,
    ) -> tuple[list[RequestSpec], bool]:
        """Read conversations, as :meth:`outrider.LLM.chat` does; also tells whether several were given."""
        conversations, several = read_conversations(messages)
        if stream and several:
            raise RequestError(
                f"stream=True takes one conversation, but got {len(conversations)}; stream each on its own"
            )
        each = self.ready(read_params(params, options, len(conversations)))
        return [(self._written(one, told), wish) for one, wish in zip(conversations, each, strict=True)], several

    def compiled(self, grammar: Grammar | CompiledGrammar) -> CompiledGrammar:
        """Compile a grammar; arguments and errors are those of :meth:`outrider.LLM.compile_grammar`."""
        if self._known is None:
            raise ConfigError("a grammar needs text, but this model was given without a tokenizer")
        return self._known.grammars.compile(grammar)

    def ready(self, params: Sequence[SamplingParams]) -> list[SamplingParams]:
        """Parameters with everything compiled and encoded, so that no round waits for it."""
        read = {id(one): self._ready(one) for one in params}
        return [read[id(one)] for one in params]

    def _ready(self, params: SamplingParams) -> SamplingParams:
        if params.grammar is not None:
            params = replace(params, grammar=self.compiled(params.grammar))
        return in_tokens(params, self._known)

    def _written(self, conversation: Sequence[Mapping[str, Any]], told: Mapping[str, Any]) -> list[int]:
        try:
            return self._tokenizer.encode_chat(conversation, **told)
        except RecursionError:
            raise RequestError("the messages are nested too deeply; make them flatter", param="messages") from None

    @property
    def _tokenizer(self) -> Tokenizer:
        if self._known is None:
            raise ConfigError("this model has no tokenizer; pass token ids")
        return self._known
