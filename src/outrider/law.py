"""A distribution over the vocabulary, as samplers make it and drafters and acceptance rules pass it on."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Law: TypeAlias = npt.NDArray[np.float64]
"""float64 [vocabulary], non-negative, adding up to 1; on the CPU whatever computed it.

An array and not a tensor: rules ask for single numbers of it, which cost a tensor fifteen times as much.
"""
Laws: TypeAlias = npt.NDArray[np.float64]
"""[rows, vocabulary], a law per row."""
