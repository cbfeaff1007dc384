"""``LLM``: load a model and complete prompts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import torch
from rich.progress import Progress as ProgressBar

from outrider.completion import Completion
from outrider.config import CacheConfig, SchedulerConfig, Speculation
from outrider.drafters.base import DrafterConfig
from outrider.engine.build import Algorithms, configured_engine, planned
from outrider.engine.call import RequestSpec
from outrider.engine.driver import Driver
from outrider.engine.engine import Engine
from outrider.engine.stream import AsyncStream, Stream
from outrider.errors import ConfigError
from outrider.grammar import CompiledGrammar, Grammar
from outrider.heads.checkpoint import HeadCheckpoint
from outrider.inputs import Params, Prompt, read_load_options, refuse_unknown
from outrider.messages import TEMPLATE_OPTIONS, Messages, Tool, read_template
from outrider.models.backends import load_model
from outrider.models.base import TargetModel
from outrider.models.files.tokenizer import Tokenizer
from outrider.models.loading import heads_beside
from outrider.notebook import table_html
from outrider.reading import Reader
from outrider.verify.base import rule_label

Plan = str | DrafterConfig | Speculation | Mapping[str, Any] | bool | None
"""How to speculate, in any form that :meth:`outrider.config.Speculation.of` reads."""


class LLM:
    """A model that completes prompts with speculative decoding; speculation changes only the speed.

    Threads and coroutines may share one ``LLM``.  Each gets the same text as alone; their requests share rounds.

    Args:
        model: a folder, a hub id, a ``.gguf`` file, or a name in the models folder.
        speculation: a method's name or config, a dict, a :class:`Speculation`, or None for plain decoding.
        draft_model: a draft model or several, each a folder, hub id or file; used where lookup finds nothing.
        head: a trained head, by its folder or the name of a shipped one; used where lookup finds nothing.
        algorithms: more methods that requests may choose with ``algorithm``, by name or config; None loads those that
            need no draft model.
        dtype: precision on the ``hf`` backend: ``float32``, ``bfloat16`` or ``float16``; ``auto`` lets it choose.
        device: ``auto``, ``cpu`` or ``cuda``.
        backend: ``native`` (dense decoders on CPU kernels), ``hf`` (transformers), or ``auto``: ``native`` if possible.
        context_length: maximum tokens of prompt and output together; None is the model's own limit.
        quantization: quantize the weights on the native backend: ``none``, ``w8`` or ``w4``.
        draft_quantization: the same for draft models; ``auto`` is ``w4``, which affects only the acceptance rate.
        cache: size and layout of the KV cache, as a :class:`CacheConfig` or a dict.
        scheduler: limits of one forward pass, as a :class:`SchedulerConfig` or a dict.
        unknown: other arguments are refused; the message says what to write instead.

    Raises:
        ModelError: the model cannot be found, read or run.
        ConfigError: an option is unknown or out of bounds, or the rule is not exact for the method's drafts.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of the user's
        self,
        model: str | Path,
        *,
        speculation: Plan = "auto",
        draft_model: str | Path | Sequence[str | Path] | None = None,
        head: str | Path | None = None,
        algorithms: Algorithms = None,
        dtype: str | torch.dtype | None = "auto",
        device: str | torch.device | None = "auto",
        backend: str | None = "auto",
        context_length: int | None = None,
        quantization: str | None = "none",
        draft_quantization: str | None = "auto",
        cache: CacheConfig | Mapping[str, Any] | None = None,
        scheduler: SchedulerConfig | Mapping[str, Any] | None = None,
        **unknown: object,
    ) -> None:
        refuse_unknown(unknown, LLM)
        if not isinstance(model, (str, os.PathLike)):
            raise ConfigError(
                f"model must be a folder, a hub id or a file, not {type(model).__name__}; pass a model in "
                "memory to LLM.from_model"
            )
        options = read_load_options(
            context_length,
            backend=backend,
            dtype=dtype,
            device=device,
            quantization=quantization,
            draft_quantization=draft_quantization,
        )

        def load(path: str | Path) -> tuple[TargetModel, Tokenizer]:
            return load_model(path, options.for_drafter)

        plan = planned(speculation, draft_model, head)
        plan = Speculation(plan.drafter_config(lambda: heads_beside(model)), plan.verifier, adaptive=plan.adaptive)
        target, tokenizer = load_model(model, options)
        setup = {"load": load, "algorithms": algorithms, "cache": cache, "scheduler": scheduler}
        self._take(os.fspath(model), target, tokenizer, plan, setup)

    @classmethod
    def from_model(
        cls,
        target: TargetModel,
        tokenizer: Tokenizer | None = None,
        *,
        speculation: Plan = "auto",
        draft_models: Mapping[str, TargetModel] | None = None,
        heads: Mapping[str, HeadCheckpoint] | None = None,
        algorithms: Algorithms = None,
        cache: CacheConfig | Mapping[str, Any] | None = None,
        scheduler: SchedulerConfig | Mapping[str, Any] | None = None,
        **unknown: object,
    ) -> LLM:
        """Use models that are already in memory.

        Args:
            target: the target model.
            tokenizer: its tokenizer; None allows only token ids.
            speculation: as for the class.
            draft_models: draft models by name; they share the target's tokenizer.
            heads: trained heads by name.
            algorithms: as for the class.
            cache: as for the class.
            scheduler: as for the class.
            unknown: refused.
        """
        refuse_unknown(unknown, cls.from_model, {})
        known = dict(draft_models or {})

        def load(path: str | Path) -> tuple[TargetModel, Tokenizer | None]:
            if str(path) not in known:
                raise ConfigError(
                    f"there is no draft model {path!r} in memory; there are: {', '.join(known) or 'none'}"
                )
            return known[str(path)], tokenizer

        setup = {"load": load, "heads": heads, "algorithms": algorithms, "cache": cache, "scheduler": scheduler}
        name = tokenizer.name if tokenizer else type(target).__name__
        return cls._made(name, target, tokenizer, speculation, setup)

    def speculating(self, speculation: Plan) -> LLM:
        """Make another ``LLM`` with the same target and limits, but another drafter and its own KV cache.

        Args:
            speculation: as for the class; draft models are loaded with the options of this ``LLM``.
        """
        return self._made(self.name, self.engine.target, self.tokenizer, speculation, self._setup)

    @classmethod
    def _made(cls, *parts: Any) -> LLM:
        llm = cls.__new__(cls)
        llm._take(*parts)
        return llm

    def _take(
        self, name: str, target: TargetModel, tokenizer: Tokenizer | None, plan: Plan, setup: Mapping[str, Any]
    ) -> None:
        made = configured_engine(target, tokenizer, Speculation.of(plan), **setup)
        self._setup, self.driver = setup, Driver(made.engine)
        """Runs the rounds for all callers; the server sends its requests here."""
        self.name = name
        """The model, as it was given."""
        self.reader = Reader(tokenizer)
        """Reads prompts, conversations and parameters, in any thread."""
        self.tokenizer, self.drafter_config, self.verifier = tokenizer, made.drafter_config, made.verifier
        self.cache_bytes = made.cache_bytes
        """Maximum memory of the KV cache in bytes, by model."""

    @property
    def engine(self) -> Engine:
        """The engine; if you run its rounds directly, nobody else may use this ``LLM``.

        Raises:
            RequestError: this ``LLM`` is closed.
        """
        return self.driver.engine

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: Params | Iterable[Params] | None = None,
        *,
        progress: bool = False,
        **options: Any,
    ) -> list[Completion]:
        """Complete one prompt or several at once.

        Args:
            prompts: a text, token ids, a dict with ``prompt`` or ``prompt_token_ids``, or several of these.
            params: :class:`SamplingParams` or a dict for all prompts, or a list with one per prompt; None is greedy.
            progress: show a progress bar.
            options: single sampling parameters by name; they override ``params``.

        Returns:
            One completion per prompt, in order.

        Raises:
            RequestError: a prompt is empty, too long or not a prompt; no prompt is completed then.
            ConfigError: a sampling parameter is unknown or out of range.
        """
        return self._complete(self.reader.prompts(prompts, params, options), progress=progress)

    async def agenerate(
        self, prompts: Prompt | Iterable[Prompt], params: Params | Iterable[Params] | None = None, **options: Any
    ) -> list[Completion]:
        """Complete prompts from an event loop; cancelling the coroutine cancels the requests.

        Arguments and errors are those of :meth:`generate`.
        """
        return await self.driver.acomplete(self.reader.prompts(prompts, params, options))

    def stream(self, prompt: Prompt, params: Params | None = None, **options: Any) -> Stream:
        """Stream the completion of one prompt; closing the iterator early cancels the request.

        Args:
            prompt: a text, token ids, or a dict with one of them.
            params: the sampling parameters; None is greedy.
            options: single sampling parameters by name; they override ``params``.

        Returns:
            An iterator over chunks; decoding continues even while nobody reads it.

        Raises:
            RequestError: the prompt is empty, too long or not a prompt.
            ConfigError: a sampling parameter is unknown or out of range.
        """
        return Stream(self.driver, self.driver.submit([self.reader.prompt(prompt, params, options)]))

    def astream(self, prompt: Prompt, params: Params | None = None, **options: Any) -> AsyncStream:
        """Stream the completion of one prompt in an event loop; dropping the iterator cancels the request.

        Arguments and errors are those of :meth:`stream`; a prompt that is too long raises at the first chunk.
        """
        return AsyncStream(self.driver, self.driver.post([self.reader.prompt(prompt, params, options)]))

    @overload
    def chat(
        self,
        messages: Messages,
        params: Params | None = None,
        *,
        stream: Literal[False] = False,
        **options: Any,
    ) -> Completion: ...
    @overload
    def chat(
        self,
        messages: Sequence[Sequence[Mapping[str, Any]]],
        params: Params | Iterable[Params] | None = None,
        *,
        stream: Literal[False] = False,
        **options: Any,
    ) -> list[Completion]: ...
    @overload
    def chat(
        self,
        messages: Messages,
        params: Params | None = None,
        *,
        stream: Literal[True],
        **options: Any,
    ) -> Stream: ...
    def chat(
        self,
        messages: Messages | Sequence[Sequence[Mapping[str, Any]]],
        params: Params | Iterable[Params] | None = None,
        *,
        stream: bool = False,
        tools: Sequence[Tool] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        progress: bool = False,
        **options: Any,
    ) -> Completion | list[Completion] | Stream:
        """Answer one conversation or several at once, with the model's chat template.

        Args:
            messages: a list of ``{"role": …, "content": …}``, where content is a text or a list of text parts; a list
                of such lists; or a text, which becomes one user message.
            params: parameters for all conversations, or a list with one per conversation; None is greedy.
            stream: stream the answer to one conversation, like :meth:`stream`.
            tools: tools that the model may call: functions, or dicts with a JSON schema.
            add_generation_prompt: begin a new answer; default: yes, unless the last message is continued.
            continue_final_message: continue the last message instead of answering it.
            chat_template_kwargs: more variables of the template, such as ``enable_thinking``.
            progress: show a progress bar.
            options: single sampling parameters by name; they override ``params``.

        Returns:
            A completion; a list for several conversations; with ``stream`` an iterator over chunks.

        Raises:
            ModelError: the model has no chat template.
            RequestError: a message is malformed, or the template refuses the conversation.
            ConfigError: a sampling parameter is unknown or out of range.
        """
        told = read_template(tools, add_generation_prompt, continue_final_message, chat_template_kwargs)
        wishes, several = self.reader.conversations(messages, params, options, told, stream=stream)
        if stream:
            return Stream(self.driver, self.driver.submit(wishes))
        done = self._complete(wishes, progress=progress)
        return done if several else done[0]

    async def achat(
        self,
        messages: Messages | Sequence[Sequence[Mapping[str, Any]]],
        params: Params | Iterable[Params] | None = None,
        *,
        stream: bool = False,
        **options: Any,
    ) -> Any:
        """Answer conversations from an event loop; arguments and errors are those of :meth:`chat`.

        Returns:
            A completion; a list for several conversations; with ``stream`` an :class:`AsyncStream`.
        """
        told = read_template(*(options.pop(name, None) for name in TEMPLATE_OPTIONS))
        wishes, several = self.reader.conversations(messages, params, options, told, stream=stream)
        if stream:
            return AsyncStream(self.driver, self.driver.post(wishes))
        found = await self.driver.acomplete(wishes)
        return found if several else found[0]

    def __repr__(self) -> str:
        """The model, and how it speculates."""
        facts = ", ".join(f"{name}={value!r}" for name, value in self._facts.items())
        return f"LLM({self.name!r}, {facts})"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return table_html(f"LLM {self.name}", self._facts)

    @property
    def _facts(self) -> dict[str, Any]:
        if self.driver.closed:
            return {"closed": True}
        target, rule = self.engine.target, self.verifier
        facts = {"speculation": self.drafter_config.method, "verifier": rule_label(rule.name, lossless=rule.lossless)}
        return facts | {
            "backend": target.backend,
            "device": str(target.device),
            "context_length": target.context_length,
        }

    def clear_prefix_cache(self) -> None:
        """Empty the prefix cache; this affects only the speed."""
        self.driver.between_rounds(Engine.clear_prefix_cache)

    def close(self) -> None:
        """Cancel open requests and release the models; later calls are refused."""
        self.driver.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def encode(self, prompt: Prompt) -> list[int]:
        """Encode a prompt; token ids stay as they are.

        Raises:
            RequestError: it is not a prompt.
            ConfigError: the prompt is text, and the model has no tokenizer.
        """
        return self.reader.encode(prompt)

    def encode_chat(
        self,
        messages: Messages,
        *,
        tools: Sequence[Tool] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Encode one conversation with the chat template; arguments and errors are those of :meth:`chat`."""
        told = read_template(tools, add_generation_prompt, continue_final_message, chat_template_kwargs)
        return self.reader.conversation(messages, told)

    def compile_grammar(self, grammar: Grammar) -> CompiledGrammar:
        """Compile a grammar in this thread, to pass it as ``grammar`` later; other calls compile theirs themselves.

        Raises:
            ConfigError: the grammar has a mistake or is too complex, or the model has no tokenizer.
        """
        return self.reader.compiled(grammar)

    def _complete(self, wishes: Sequence[RequestSpec], *, progress: bool) -> list[Completion]:
        with ProgressBar(disable=not progress, transient=True) as bar:
            task = bar.add_task("completing", total=sum(params.n for _, params in wishes))
            return self.driver.complete(wishes, lambda: bar.advance(task))
