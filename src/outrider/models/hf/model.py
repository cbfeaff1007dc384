"""Any causal language model of transformers with standard attention, with its own code unmodified.

A pass is one flat ``[1, rows]`` batch.  Our attention function has no mask function, so the model builds no dense mask.
It finds the pass's plan in a context variable, because some models do not pass keyword arguments on to their attention.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from threading import Lock
from typing import Any, Final

import torch

from outrider.errors import ModelError
from outrider.kv.pool import PagedCache
from outrider.models.base import Rollback, TargetOutput, check_layers
from outrider.models.hf import embedding_and_head, transformers_api
from outrider.models.hf.selfcheck import compare_with_eager
from outrider.models.pass_plan import PassPlan
from outrider.tree import TreeBatch

ATTENTION: Final = "outrider"
_plan: Final[ContextVar[PassPlan]] = ContextVar("outrider_plan")


class HFModel:
    """A transformers model as :class:`outrider.models.base.TargetModel`.

    The module's attention implementation must be ``ATTENTION``; ``architecture`` is its class, for messages.

    Raises:
        ModelError: its state cannot be rolled back, its attention cannot be replaced, or it is not verified and differs
            from its own eager attention.
    """

    backend = "hf"
    row_invariant = False  # torch's matrix products choose their blocking by the number of rows
    own_threads = False
    rollback = Rollback.TREE  # families with more state than keys and values are refused
    row_buckets: tuple[int, ...] = ()

    def __init__(
        self, module: torch.nn.Module, *, architecture: str, context_length: int, source: Path | None = None
    ) -> None:
        transformers_api.check_servable(module, architecture)
        transformers_api.freeze_rotary(module, context_length)
        self.module, self.context_length, self._architecture = module, context_length, architecture
        self.source = source
        self._turn = Lock()
        """Passes put hooks on the module, so engines that share it take turns."""
        self.vocabulary = transformers_api.vocabulary(module)
        first = next(module.parameters())
        self.device, self._dtype = first.device, first.dtype
        self.precision = str(first.dtype).removeprefix("torch.")
        self.packed_bytes, self.token_bytes = weight_bytes(module)
        blocks = transformers_api.decoder_layers(module)
        self.width, self.layers = embedding_and_head.width(module), len(blocks)
        self._places = [*([block] for block in blocks), embedding_and_head.bodies(module)]
        self.row_bytes = transformers_api.row_bytes(module)
        if transformers_api.is_stock(module) and not transformers_api.is_verified(architecture):
            compare_with_eager(self, module, architecture)

    @torch.inference_mode()
    def forward(self, batch: TreeBatch, cache: PagedCache, layers: tuple[int, ...] = ()) -> TargetOutput:
        check_layers(layers, self.layers)
        hidden: dict[int, torch.Tensor] = {}
        plan = PassPlan(batch, cache)
        with self._turn:
            hooks = [each.register_forward_hook(_keep(hidden, i)) for i in layers for each in self._places[i]]
            reset = _plan.set(plan)
            try:
                logits = transformers_api.call(self.module, batch.tokens, batch.positions, batch.wanted)
            finally:
                _plan.reset(reset)
                for hook in hooks:
                    hook.remove()
        if plan.calls == 0 or plan.calls != len(cache.layers):
            raise ModelError(
                f"{self._architecture} asked for attention {plan.calls} times in this pass and {len(cache.layers)} "
                "times before, so it does not use transformers' attention interface throughout and cannot be served"
            )
        if len(hidden) != len(layers):
            raise ModelError(f"{self._architecture} gives no hidden rows of layers {sorted(set(layers) - set(hidden))}")
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # so the measured time is the pass's, not its launch's
        return TargetOutput(logits, hidden)

    @torch.no_grad()
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return embedding_and_head.embed(self.module, tokens).float()

    @torch.no_grad()
    def unembed(self, hidden: torch.Tensor) -> torch.Tensor:
        with self._turn:
            return embedding_and_head.unembed(self.module, hidden.to(self._dtype)).float()

    @torch.no_grad()
    def unembed_rows(self, ids: torch.Tensor) -> torch.Tensor:
        return embedding_and_head.head_rows(self.module, ids).float()


def weight_bytes(module: torch.nn.Module) -> tuple[int, int]:
    """Bytes of a module's parameters, each counted once, and of those that one token reads."""
    whole = sum(parameter.nbytes for parameter in module.parameters())
    multiplied = {id(part.weight) for part in module.modules() if isinstance(part, torch.nn.Linear)}
    tables = {id(part.weight): part.weight for part in module.modules() if isinstance(part, torch.nn.Embedding)}
    return whole, whole - sum(table.nbytes for key, table in tables.items() if key not in multiplied)


def _keep(hidden: dict[int, torch.Tensor], layer: int) -> Callable[..., None]:
    def hook(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        hidden[layer] = (output if isinstance(output, torch.Tensor) else output[0])[0]

    return hook


transformers_api.register_attention(ATTENTION, lambda *call: _plan.get().attend(*call))
