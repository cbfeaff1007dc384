"""Hidden rows of texts while the target writes them: the passes that decode an answer have computed them already.

The engine hands every kept row to a drafter that asks for it.  This one asks, drafts nothing, and keeps what it sees
until the text has ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from outrider.drafters.base import Committed, DraftContext, Needs, Outcome, Workbench
from outrider.errors import NumericsError
from outrider.llm import LLM
from outrider.train.features.buffer import Captured, halves
from outrider.tree import TokenTree, root_only

if TYPE_CHECKING:
    from outrider.train.data.example import Example


class RowWatcher:
    """A drafter that drafts nothing, and sees every row of some of the target's layers."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.needs = Needs(hidden_layers=tuple(layers))

    def adopt(self, key: str, tokens: Sequence[int], most: int) -> int:
        """Every row has to be seen, so none is taken over."""
        return 0

    def propose(self, context: DraftContext) -> list[TokenTree]:
        return [root_only(sequence.tokens[-1]) for sequence in context.sequences]

    def observe(self, outcome: Outcome) -> None:
        hidden = outcome.output.hidden
        for kept in outcome.committed:
            first, last = kept.rows[0], kept.rows[-1]
            rows = slice(first, last + 1) if last - first + 1 == len(kept.rows) else torch.tensor(kept.rows)
            self.see(kept, {layer: hidden[layer][rows] for layer in self.needs.hidden_layers})

    def see(self, kept: Committed, rows: dict[int, torch.Tensor]) -> None:
        """Take in the next rows of a sequence, which are views of the pass's where they lie side by side there."""

    def pause(self, key: str) -> None:
        """The request comes back and is computed again."""

    def close(self, key: str) -> None:
        """Do nothing: nothing depends on it."""


class Recorder(RowWatcher):
    """Keeps what it sees of each text, and hands it out once the text has ended."""

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
        except NumericsError as error:  # this text's alone: others of the pass are sound
            self._failed[kept.key] = error

    def pause(self, key: str) -> None:
        """The request comes back and is computed again."""
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
        """Hand out an ended text once.

        Returns:
            Its rows, that of the last token zero: nothing follows it, so nothing is learned from it.  None where the
            text was not seen from its beginning.

        Raises:
            NumericsError: a row of it holds something that is no number.
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
    """Plain decoding that is watched, as a choice of speculation."""

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
        """Never a user's choice."""


def watched(llm: LLM, recorder: Recorder) -> LLM:
    """The same target, decoding plainly before a recorder's eyes."""
    return llm.speculating(Recording(recorder))
