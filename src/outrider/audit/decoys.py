"""A drafter that knows the answer and drafts it beside wrong tokens.

It exercises the whole engine on the user's model, whatever method the user chose: branching trees, accepted rows apart
in the cache, rejected rows before, beside and after them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from outrider.drafters.base import DraftContext, Drafter, DraftSequence, Needs, Workbench
from outrider.tree import TokenTree

Answers = Mapping[tuple[int, ...], Sequence[Sequence[int]]]
"""By prompt: the tokens of plain decoding, for each seed and choice."""


@dataclass(frozen=True, eq=False)
class Decoys:
    """Config of the drafter; not registered, because only an audit knows the answers."""

    answers: Answers
    depth: int = 3
    method: ClassVar[str] = "decoys"
    automatic_rank: ClassVar[int] = 0
    needs: ClassVar[Needs] = Needs(deterministic=True, branching=True)

    @property
    def most_nodes(self) -> int:
        return 1 + 2 * self.depth

    def build(self, workbench: Workbench) -> DecoyDrafter:
        return DecoyDrafter(self, workbench.vocabulary)

    @classmethod
    def automatic(cls, draft_models: Sequence[str]) -> Decoys | None:
        return None


class DecoyDrafter(Drafter):
    """Drafts a wrong and the right token at every level, to a depth that changes from round to round."""

    needs = Decoys.needs

    def __init__(self, config: Decoys, vocabulary: int) -> None:
        self._config, self._vocabulary = config, vocabulary

    def propose(self, context: DraftContext) -> list[TokenTree]:
        return [self._tree(sequence) for sequence in context.sequences]

    def _tree(self, sequence: DraftSequence) -> TokenTree:
        builder, node = sequence.builder(), 0
        prompt, output = sequence.tokens[: sequence.prompt_length], [*sequence.tokens[sequence.prompt_length :]]
        done = len(output)
        known = self._config.answers.get(tuple(prompt), ())
        right = next((answer[done:] for answer in known if [*answer[:done]] == output), ())
        deepest = min(1 + done % self._config.depth, sequence.depth, (sequence.nodes - 1) // 2)
        for token in right[:deepest]:
            builder.add(node, (token + 1) % self._vocabulary)
            node = builder.add(node, token)
        return builder.build()
