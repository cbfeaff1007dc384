"""A target that is another one but for what a test changes."""

from __future__ import annotations

from typing import Any

from outrider.models.base import TargetModel


class Wrapped:
    """Answers as its target does, whatever is asked."""

    def __init__(self, target: TargetModel) -> None:
        self.target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)
