"""What methods that draft with a trained head have in common."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.heads.checkpoint import kind_of


def the_head(draft_models: Sequence[str], kind: str) -> str | None:
    """The one draft model that was named, if it is a head of a kind.

    Args:
        draft_models: what the user named.
        kind: a file of ``heads``.
    """
    if len(draft_models) == 1 and kind_of(draft_models[0]) == kind:
        return draft_models[0]
    return None
