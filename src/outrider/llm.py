"""The front door: load a model, complete prompts."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from operator import index
from pathlib import Path
from typing import Any

from rich.progress import Progress as ProgressBar

from outrider.completion import Choice, Chunk, Completion
from outrider.config import CacheConfig, SchedulerConfig, Speculation
from outrider.drafters.base import DrafterConfig, Workbench
from outrider.engine import Engine, Progress
from outrider.errors import ConfigError, RequestError
from outrider.heads.checkpoint import HeadCheckpoint
from outrider.kv.memory import automatic_rows, check_fits
from outrider.kv.pool import KVPool
from outrider.request import Request
from outrider.sampling.params import SamplingParams
from outrider.target.backends import LoadOptions, load_model
from outrider.target.base import TargetModel
from outrider.target.loading import heads_beside
from outrider.target.tokenizer import Tokenizer
from outrider.verify import check_exact, make_verifier

Prompt = str | Sequence[int]
_MOST_ROWS = 65536
_log = logging.getLogger(__name__)
Messages = Sequence[Mapping[str, str]]


class LLM:
    """A model ready to complete prompts, with speculation that changes nothing but the speed.

    Args:
        model: a folder, a hub id, a ``.gguf`` file, or the name of one in the models folder.
        speculation: a method's name or config, a :class:`Speculation`, or None for plain decoding.
        dtype: precision on the ``hf`` backend: ``float32``, ``bfloat16`` or ``float16``; ``auto`` leaves the choice to
            the backend.
        device: ``auto``, ``cpu`` or ``cuda``.
        backend: what runs the model: ``native`` (dense decoders on the CPU), ``hf`` (everything), or ``auto`` for the
            best that serves it.
        context_length: most tokens of prompt and output together; None is the model's own limit.
        quantization: what the native backend makes of the weights: ``none``, ``w8`` or ``w4``.
        draft_quantization: the same for draft models; ``auto`` is ``w4``, which changes the acceptance rate alone.
        cache: how many keys and values are kept.
        scheduler: how much work goes into one pass.

    Raises:
        ModelError: the model cannot be found, read or served.
        ConfigError: an option is unknown or out of bounds, or the rule is not exact for the method's drafts.
    """

    def __init__(  # noqa: PLR0913 - the front door: each is a choice of the user's
        self,
        model: str | Path,
        *,
        speculation: str | DrafterConfig | Speculation | None = "auto",
        dtype: str = "auto",
        device: str = "auto",
        backend: str = "auto",
        context_length: int | None = None,
        quantization: str = "none",
        draft_quantization: str = "auto",
        cache: CacheConfig | None = None,
        scheduler: SchedulerConfig | None = None,
    ) -> None:
        options = LoadOptions(
            backend=backend,
            dtype=dtype,
            device=device,
            context_length=context_length,
            quantization=quantization,
            draft_quantization=draft_quantization,
        )

        def load(path: str | Path) -> tuple[TargetModel, Tokenizer]:
            return load_model(path, options.for_drafter)

        plan = _plan(speculation)
        config = plan.drafter_config(lambda: heads_beside(model))
        target, tokenizer = load_model(model, options)
        self._assemble(target, tokenizer, load, Speculation(config, plan.verifier), cache, scheduler)

    @classmethod
    def from_model(
        cls,
        target: TargetModel,
        tokenizer: Tokenizer | None = None,
        *,
        speculation: str | DrafterConfig | Speculation | None = "auto",
        draft_models: Mapping[str, TargetModel] | None = None,
        heads: Mapping[str, HeadCheckpoint] | None = None,
        cache: CacheConfig | None = None,
        scheduler: SchedulerConfig | None = None,
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
        """
        known = dict(draft_models or {})

        def load(path: str | Path) -> tuple[TargetModel, Tokenizer | None]:
            if str(path) not in known:
                raise ConfigError(
                    f"there is no draft model {path!r} in memory; there are: {', '.join(known) or 'none'}"
                )
            return known[str(path)], tokenizer

        llm = cls.__new__(cls)
        llm._assemble(target, tokenizer, load, speculation, cache, scheduler, heads)
        return llm

    def speculating(self, speculation: str | DrafterConfig | Speculation | None) -> LLM:
        """The same target under another drafter, with pages of its own.

        Args:
            speculation: as for the class; draft models are loaded as this one's would be.
        """
        llm = type(self).__new__(type(self))
        llm._assemble(self.engine.target, self.tokenizer, self._load, speculation, None, None, self._heads)
        return llm

    def _assemble(
        self,
        target: TargetModel,
        tokenizer: Tokenizer | None,
        load: Any,
        speculation: str | DrafterConfig | Speculation | None,
        cache: CacheConfig | None,
        scheduler: SchedulerConfig | None,
        heads: Mapping[str, HeadCheckpoint] | None = None,
    ) -> None:
        plan = _plan(speculation)
        config, verifier = plan.drafter_config(), make_verifier(plan.verifier)
        check_exact(verifier, config.method, config.needs)
        if not verifier.lossless:
            warn_lossy(verifier.name)
        pages = cache or CacheConfig()
        automatic = automatic_rows(target.context_length, _MOST_ROWS, target.row_bytes, target.device)
        pool = KVPool(pages.rows or automatic, pages.page_size, pages.prefix_cache)
        needs = {"the target": target.row_bytes}

        def load_draft(path: str) -> tuple[TargetModel, Tokenizer | None]:
            model, its_tokenizer = load(path)
            needs[str(path)] = model.row_bytes
            return model, its_tokenizer

        vocabulary = min(target.vocabulary, tokenizer.vocab_size) if tokenizer else target.vocabulary
        bench = Workbench(
            target=target,
            tokenizer=tokenizer,
            pool=pool,
            draws=verifier.draws,
            device=target.device,
            vocabulary=vocabulary,
            load=load_draft,
            heads=heads or {},
            reserve=needs.__setitem__,
        )
        self._inboxes: dict[str, deque[Progress]] = {}
        self.drafter_config, self.verifier, self.tokenizer = config, verifier, tokenizer
        self._load, self._heads = load, heads
        self.engine = Engine(
            target=target,
            tokenizer=tokenizer,
            pool=pool,
            drafter=config.build(bench),
            verifier=verifier,
            config=scheduler or SchedulerConfig(),
            most_nodes=config.most_nodes,
            vocabulary=vocabulary,
        )
        check_fits(pool, needs, target.device)
        self.cache_bytes = {model: pool.rows * size for model, size in needs.items()}
        """Memory for keys and values, by model: the most it will ever be."""

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[Completion]:
        """Complete prompts, side by side.

        Args:
            prompts: a text, a list of token ids, or a list of either.
            params: one for all prompts or one for each; None is greedy.
            progress: show a progress bar.

        Returns:
            One completion per prompt, in order.
        """
        listed = [prompts] if _is_one(prompts) else list(prompts)
        each = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * len(listed)
        if len(each) != len(listed):
            raise RequestError(f"there are {len(listed)} prompts but {len(each)} sampling parameters")
        encoded = [self.encode(prompt) for prompt in listed]  # type: ignore[arg-type]
        before = self.engine.seconds.copy()
        groups: list[list[Request]] = []
        try:
            for prompt, wish in zip(encoded, each, strict=True):
                groups.append(self._submit(prompt, wish))
            self._finish([request for group in groups for request in group], progress)
        except BaseException:
            self._abandon(request for group in groups for request in group)
            raise
        spent = self.engine.seconds.minus(before)
        return [
            Completion(
                prompt_token_ids=tuple(prompt),
                choices=tuple(Choice.of(request) for request in group),
                seconds=spent,
                prompt_logprobs=None if wish.prompt_logprobs is None else tuple(group[0].prompt_logprobs),
            )
            for prompt, group, wish in zip(encoded, groups, each, strict=True)
        ]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Chunk]:
        """Complete one prompt piece by piece; closing the iterator early cancels the request.

        Args:
            prompt: a text or token ids.
            params: None is greedy.
        """
        return self._stream(self.encode(prompt), params or SamplingParams())

    def _stream(self, prompt: Sequence[int], params: SamplingParams) -> Iterator[Chunk]:
        requests = self._submit(prompt, params)
        inbox: deque[Progress] = deque()
        self._inboxes |= {request.id: inbox for request in requests}
        open_requests = len(requests)
        try:
            while open_requests:
                while not inbox:
                    self._step()
                item = inbox.popleft()
                open_requests -= item.finished
                whole = Choice.of(item.request) if item.finished else None
                yield Chunk(item.request.choice, item.text, item.tokens, item.drafted, whole)
        finally:
            for request in requests:
                self._inboxes.pop(request.id, None)
            self._abandon(requests)

    def chat(self, messages: Messages, params: SamplingParams | None = None) -> Completion:
        """Answer a conversation, through the model's own chat template.

        Args:
            messages: ``{"role": …, "content": …}`` in order.
            params: None is greedy.

        Raises:
            ModelError: the model has no chat template.
        """
        return self.generate(self.encode_chat(messages), params)[0]

    def clear_prefix_cache(self) -> None:
        """Forget what earlier requests left for later ones whose text begins alike; nothing but speed changes."""
        self.engine.clear_prefix_cache()

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; ids pass through.

        Raises:
            ConfigError: text for a model without a tokenizer.
        """
        if not isinstance(prompt, str):
            return [token if isinstance(token, int) else index(token) for token in prompt]
        return self._tokenizer.encode(prompt)

    def encode_chat(self, messages: Messages) -> list[int]:
        """Token ids of a conversation, ready for the model's answer."""
        text = self._tokenizer.apply_chat_template([dict(message) for message in messages])
        return self._tokenizer.encode(text, add_special_tokens=False)

    @property
    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ConfigError("this model was given without a tokenizer; pass token ids")
        return self.tokenizer

    def _submit(self, prompt: Sequence[int], params: SamplingParams) -> list[Request]:
        first = self.engine.submit(prompt, params)
        return [first, *(self.engine.submit(prompt, params, choice=i, seed=first.seed) for i in range(1, params.n))]

    def _finish(self, requests: Sequence[Request], progress: bool) -> None:
        with ProgressBar(disable=not progress, transient=True) as bar:
            task = bar.add_task("completing", total=len(requests))
            while any(request.finish_reason is None for request in requests):
                self._step()
                bar.update(task, completed=sum(request.finish_reason is not None for request in requests))

    def _step(self) -> None:
        """Run a round, and hand what happened to the streams it belongs to: several may be open side by side."""
        self._deliver(self.engine.step())

    def _deliver(self, progress: Sequence[Progress]) -> None:
        for item in progress:
            if item.request.id in self._inboxes:
                self._inboxes[item.request.id].append(item)

    def _abandon(self, requests: Any) -> None:
        for request in requests:
            self.engine.cancel(request)
        self._deliver(self.engine.end_cancelled())


@cache
def warn_lossy(rule: str) -> None:
    """Log that a rule changes the text, once for each."""
    _log.warning("verifier %r is lossy: the text will not be the target's own", rule)


def _plan(speculation: str | DrafterConfig | Speculation | None) -> Speculation:
    return speculation if isinstance(speculation, Speculation) else Speculation(speculation or "none")


def _is_one(prompts: Prompt | Sequence[Prompt]) -> bool:
    if isinstance(prompts, str) or len(prompts) == 0:
        return isinstance(prompts, str)
    try:
        index(prompts[0])  # type: ignore[arg-type]
    except TypeError:
        return False
    return True
