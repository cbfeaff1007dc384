"""Records hidden rows while the target decodes an answer, which computes them anyway.

The engine passes hidden rows to drafters.  This drafter drafts nothing, and keeps the rows until the text has ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from outrider.drafters.base import Committed, DraftContext, Needs, Outcome, Workbench
from outrider.errors import NumericsError
from outrider.llm import LLM
from outrider.train.data.example import Example
from outrider.train.features.buffer import Captured, halves
from outrider.tree import TokenTree, root_only


class RowWatcher:
    """A drafter that drafts nothing, and sees every row of some layers."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.needs = Needs(hidden_layers=tuple(layers))

    def adopt(self, key: str, tokens: Sequence[int], most: int) -> int:
        return 0  # every row must be computed to be seen

    def propose(self, context: DraftContext) -> list[TokenTree]:
        return [root_only(sequence.tokens[-1]) for sequence in context.sequences]

    def observe(self, outcome: Outcome) -> None:
        hidden = outcome.output.hidden
        for kept in outcome.committed:
            first, last = kept.rows[0], kept.rows[-1]
            rows = slice(first, last + 1) if last - first + 1 == len(kept.rows) else torch.tensor(kept.rows)
            self.see(kept, {layer: hidden[layer][rows] for layer in self.needs.hidden_layers})

    def see(self, kept: Committed, rows: dict[int, torch.Tensor]) -> None:
        """Take the next rows of a sequence, which may be views of the pass's rows."""

    def pause(self, key: str) -> None: ...
    def close(self, key: str) -> None: ...


class Recorder(RowWatcher):
    """Keeps the rows of each text, and returns them once the text has ended."""

    def __init__(self, layers: Sequence[int]) -> None:
        super().__init__(layers)
        self._rows: dict[str, list[dict[int, torch.Tensor]]] = defaultdict(list)
        self._tokens: dict[str, Sequence[int]] = {}
        self._failed: dict[str, NumericsError] = {}
        self._ended: dict[tuple[int, ...], dict[int, torch.Tensor] | NumericsError] = {}

    def see(self, kept: Committed, rows: dict[int, torch.Tensor]) -> None:
        self._tokens[kept.key] = kept.tokens
        try:
            self._rows[kept.key].append({layer: halves(layer, found) for layer, found in rows.items()})
        except NumericsError as error:  # concerns this text alone
            self._failed[kept.key] = error

    def pause(self, key: str) -> None:
        self._rows.pop(key, None)
        self._failed.pop(key, None)

    def close(self, key: str) -> None:
        parts, tokens = self._rows.pop(key, []), self._tokens.pop(key, ())
        failed = self._failed.pop(key, None)
        if failed is not None:
            self._ended[tuple(tokens)] = failed
            return
        rows = {layer: [part[layer] for part in parts] for layer in self.needs.hidden_layers}
        if parts and all(sum(map(len, found)) == len(tokens) - 1 for found in rows.values()):
            self._ended[tuple(tokens)] = {layer: torch.cat(found) for layer, found in rows.items()}

    def take(self, example: Example) -> Captured | None:
        """Return and forget a finished text.

        Returns:
            Its rows; that of the last token is zero, because no token follows it.  None if the text was not seen from
            its start.

        Raises:
            NumericsError: a row contains NaN.
        """
        found = self._ended.pop(tuple(example.tokens), None)
        if isinstance(found, NumericsError):
            raise NumericsError(f"the text {example.key}: {found}") from found
        if found is None:
            return None
        features = {layer: torch.cat([rows, rows.new_zeros(1, rows.shape[1])]) for layer, rows in found.items()}
        return Captured(torch.tensor(example.tokens, dtype=torch.int64), example.answer_start, features)


@dataclass(frozen=True, eq=False)
class Recording:
    """The config of plain decoding with a recorder."""

    method: ClassVar[str] = "recording"
    automatic_rank: ClassVar[int] = 0

    recorder: RowWatcher
    most_nodes: ClassVar[int] = 1

    @property
    def needs(self) -> Needs:
        return self.recorder.needs

    def build(self, workbench: Workbench) -> RowWatcher:
        return self.recorder

    @classmethod
    def automatic(cls, draft_models: Sequence[str]) -> None:
        """Return None: ``auto`` never chooses it."""


def watched(llm: LLM, recorder: Recorder) -> LLM:
    """The same target with plain decoding, and a recorder."""
    return llm.speculating(Recording(recorder))
