"""The front door: load a model, complete prompts."""

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
from outrider.engine.build import assemble, planned
from outrider.engine.call import Wish
from outrider.engine.driver import Driver
from outrider.engine.engine import Engine
from outrider.engine.stream import AsyncStream, Stream
from outrider.errors import ConfigError
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
"""What says how to speculate; see :meth:`outrider.config.Speculation.of`."""


class LLM:
    """A model ready to complete prompts, with speculation that changes nothing but the speed.

    Threads and coroutines may share one: each gets what it would get alone, and their requests share rounds.

    Args:
        model: a folder, a hub id, a ``.gguf`` file, or the name of one in the models folder.
        speculation: a method's name or config, a dict of ``method``, ``verifier`` and options, a
            :class:`Speculation`, or None for plain decoding.
        draft_model: a smaller model, or several, that draft where lookup finds nothing; a folder, hub id or file each.
        head: a trained head that drafts where lookup finds nothing: its folder, or the name of a shipped one.
        dtype: precision on the ``hf`` backend: ``float32``, ``bfloat16`` or ``float16``; ``auto`` leaves the choice to
            the backend.
        device: ``auto``, ``cpu`` or ``cuda``.
        backend: what runs the model: ``native`` (dense decoders on the CPU), ``hf`` (everything), or ``auto`` for the
            best that serves it.
        context_length: most tokens of prompt and output together; None is the model's own limit.
        quantization: what the native backend makes of the weights: ``none``, ``w8`` or ``w4``.
        draft_quantization: the same for draft models; ``auto`` is ``w4``, which changes the acceptance rate alone.
        cache: how many keys and values are kept, as a :class:`CacheConfig` or a dict.
        scheduler: how much work goes into one pass, as a :class:`SchedulerConfig` or a dict.
        unknown: refused, with what to write instead of other engines' arguments.

    Raises:
        ModelError: the model cannot be found, read or served.
        ConfigError: an option is unknown or out of bounds, or the rule is not exact for the method's drafts.
    """

    def __init__(  # noqa: PLR0913 - the front door: each is a choice of the user's
        self,
        model: str | Path,
        *,
        speculation: Plan = "auto",
        draft_model: str | Path | Sequence[str | Path] | None = None,
        head: str | Path | None = None,
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
                f"model must be a folder, a hub id or a file, not {type(model).__name__}; a model in memory goes to "
                "LLM.from_model"
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
        plan = Speculation(plan.drafter_config(lambda: heads_beside(model)), plan.verifier)
        target, tokenizer = load_model(model, options)
        self._take(os.fspath(model), target, tokenizer, plan, {"load": load, "cache": cache, "scheduler": scheduler})

    @classmethod
    def from_model(
        cls,
        target: TargetModel,
        tokenizer: Tokenizer | None = None,
        *,
        speculation: Plan = "auto",
        draft_models: Mapping[str, TargetModel] | None = None,
        heads: Mapping[str, HeadCheckpoint] | None = None,
        cache: CacheConfig | Mapping[str, Any] | None = None,
        scheduler: SchedulerConfig | Mapping[str, Any] | None = None,
        **unknown: object,
    ) -> LLM:
        """Serve models that are in memory already.

        Args:
            target: the model served.
            tokenizer: None serves token ids alone.
            speculation: as for the class.
            draft_models: models a drafter may ask for by name; they share the target's tokenizer.
            heads: trained heads a drafter may ask for by name.
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

        setup = {"load": load, "heads": heads, "cache": cache, "scheduler": scheduler}
        name = tokenizer.name if tokenizer else type(target).__name__
        return cls._made(name, target, tokenizer, speculation, setup)

    def speculating(self, speculation: Plan) -> LLM:
        """The same target under another drafter, with as many pages of its own and the same limits.

        Args:
            speculation: as for the class; draft models are loaded as this one's would be.
        """
        return self._made(self._name, self.engine.target, self.tokenizer, speculation, self._setup)

    @classmethod
    def _made(cls, *parts: Any) -> LLM:
        llm = cls.__new__(cls)
        llm._take(*parts)
        return llm

    def _take(
        self, name: str, target: TargetModel, tokenizer: Tokenizer | None, plan: Plan, setup: Mapping[str, Any]
    ) -> None:
        made = assemble(target, tokenizer, Speculation.of(plan), **setup)
        self._name, self._setup, self._driver, self._reader = name, setup, Driver(made.engine), Reader(tokenizer)
        self.tokenizer, self.drafter_config, self.verifier = tokenizer, made.drafter_config, made.verifier
        self.cache_bytes = made.cache_bytes
        """Memory for keys and values, by model: the most it will ever be."""

    @property
    def engine(self) -> Engine:
        """What decodes; whoever runs its rounds directly must be alone with it.

        Raises:
            RequestError: this LLM is closed.
        """
        return self._driver.engine

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: Params | Iterable[Params] | None = None,
        *,
        progress: bool = False,
        **options: Any,
    ) -> list[Completion]:
        """Complete prompts, side by side.

        Args:
            prompts: a text, token ids, a dict with ``prompt`` or ``prompt_token_ids``, or several of these.
            params: one for all prompts or one for each, as :class:`SamplingParams` or dicts; None is greedy.
            progress: show a progress bar.
            options: single sampling parameters by name, which go before ``params``.

        Returns:
            One completion per prompt, in order.

        Raises:
            RequestError: a prompt is empty, too long or no prompt; no other is completed then.
            ConfigError: a sampling parameter is unknown or out of range.
        """
        return self._complete(self._reader.prompts(prompts, params, options), progress=progress)

    async def agenerate(
        self, prompts: Prompt | Iterable[Prompt], params: Params | Iterable[Params] | None = None, **options: Any
    ) -> list[Completion]:
        """Complete prompts without blocking the event loop; cancelling the coroutine cancels the requests.

        Arguments, result and errors are those of :meth:`generate`.
        """
        return await self._driver.acomplete(self._reader.prompts(prompts, params, options))

    def stream(self, prompt: Prompt, params: Params | None = None, **options: Any) -> Stream:
        """Complete one prompt piece by piece; closing the iterator early cancels the request.

        Args:
            prompt: a text, token ids, or a dict of either.
            params: None is greedy.
            options: single sampling parameters by name, which go before ``params``.

        Returns:
            An iterator over chunks, whose request goes on whether or not it is read.

        Raises:
            RequestError: the prompt is empty, too long or no prompt.
            ConfigError: a sampling parameter is unknown or out of range.
        """
        return Stream(self._driver, self._driver.submit([self._reader.prompt(prompt, params, options)]))

    def astream(self, prompt: Prompt, params: Params | None = None, **options: Any) -> AsyncStream:
        """Complete one prompt piece by piece without blocking the event loop; leaving its loop cancels the request.

        Arguments and errors are those of :meth:`stream`; a prompt that is too long is refused at the first chunk.

        Returns:
            An asynchronous iterator over chunks, whose request goes on whether or not it is read.
        """
        return AsyncStream(self._driver, self._driver.post([self._reader.prompt(prompt, params, options)]))

    @overload
    def chat(
        self,
        messages: Messages,
        params: Params | None = None,
        *,
        stream: Literal[False] = False,
        tools: Sequence[Tool] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        progress: bool = False,
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
        """Answer a conversation, or several side by side, through the model's own chat template.

        Args:
            messages: ``{"role": …, "content": …}`` in order, content a text or a list of text parts; a list of such
                lists; or a text, which is one message of the user's.
            params: one for all conversations or one for each; None is greedy.
            stream: answer one conversation piece by piece, as :meth:`stream` does.
            tools: what the model may call: functions, or dicts with a JSON schema.
            add_generation_prompt: end with what begins the model's answer; by default unless a message is continued.
            continue_final_message: go on with the last message instead of answering it.
            chat_template_kwargs: further variables of the template, such as ``enable_thinking``.
            progress: show a progress bar.
            options: single sampling parameters by name, which go before ``params``.

        Returns:
            A completion; a list of them for several conversations; with ``stream`` an iterator over chunks.

        Raises:
            ModelError: the model has no chat template.
            RequestError: a message is no message, or the template refuses the conversation.
            ConfigError: a sampling parameter is unknown or out of range.
        """
        told = read_template(tools, add_generation_prompt, continue_final_message, chat_template_kwargs)
        wishes, several = self._reader.conversations(messages, params, options, told, stream=stream)
        if stream:
            return Stream(self._driver, self._driver.submit(wishes))
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
        """Answer a conversation, or several, without blocking the event loop.

        Arguments and errors are those of :meth:`chat`.

        Returns:
            A completion; a list of them for several conversations; with ``stream`` an :class:`AsyncStream`.
        """
        told = read_template(*(options.pop(name, None) for name in TEMPLATE_OPTIONS))
        wishes, several = self._reader.conversations(messages, params, options, told, stream=stream)
        if stream:
            return AsyncStream(self._driver, self._driver.post(wishes))
        found = await self._driver.acomplete(wishes)
        return found if several else found[0]

    def __repr__(self) -> str:
        """Which model, and how it speculates."""
        facts = ", ".join(f"{name}={value!r}" for name, value in self._facts.items())
        return f"LLM({self._name!r}, {facts})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return table_html(f"LLM {self._name}", self._facts)

    @property
    def _facts(self) -> dict[str, Any]:
        if self._driver.closed:
            return {"closed": True}
        target, rule = self.engine.target, self.verifier
        facts = {"speculation": self.drafter_config.method, "verifier": rule_label(rule.name, lossless=rule.lossless)}
        return facts | {
            "backend": target.backend,
            "device": str(target.device),
            "context_length": target.context_length,
        }

    def clear_prefix_cache(self) -> None:
        """Forget what earlier requests left for later ones whose text begins alike; only speed changes."""
        self._driver.between_rounds(Engine.clear_prefix_cache)

    def close(self) -> None:
        """Cancel what is open and let go of the models; what is asked afterwards is refused."""
        self._driver.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; ids pass through.

        Raises:
            RequestError: it is no prompt.
            ConfigError: text for a model without a tokenizer.
        """
        return self._reader.encode(prompt)

    def encode_chat(
        self,
        messages: Messages,
        *,
        tools: Sequence[Tool] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of one conversation, ready for the model's answer; see :meth:`chat` for arguments and errors."""
        told = read_template(tools, add_generation_prompt, continue_final_message, chat_template_kwargs)
        return self._reader.conversation(messages, told)

    def _complete(self, wishes: Sequence[Wish], *, progress: bool) -> list[Completion]:
        with ProgressBar(disable=not progress, transient=True) as bar:
            task = bar.add_task("completing", total=sum(params.n for _, params in wishes))
            return self._driver.complete(wishes, lambda: bar.advance(task))
