"""DFlash: blocks with independent slots, without correction or confidence.

Source: Chen, Liang, Liu 2026 (arXiv 2602.06036).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from outrider.options import option
from outrider.train.recipes.base import register
from outrider.train.recipes.dspark import DSparkRecipe


@register
@dataclass(frozen=True)
class DFlashRecipe(DSparkRecipe):
    """Options of training a DFlash head: those of DSpark with other defaults."""

    method: ClassVar[str] = "dflash"
    confidence: ClassVar[bool] = False
    draft_from_anchor: ClassVar[bool] = False

    slots: int = option(8, "Rows of a block: the anchor and the drafted tokens.", low=2, high=32)
    correction: str = option("independent", "Correction by the token before: independent, markov, gated or rnn.")
    objective: str = option("cross_entropy", "Objective, or a sum such as 0.1*cross_entropy+1.8*tv.")
