"""Ways to spoil a file, shared by the tests of everything that reads one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

FUZZ: Final = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FUZZ_LOADS: Final = settings(FUZZ, max_examples=50)
"""For what takes longer."""
HOSTILE_NUMBERS: Final = (
    *(0, -1, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**40, 2**63, 10**30),
    *(0.0, -0.5, 0.5, 1e-45, 1e308, 10.0**15, float("nan"), float("inf"), -float("inf")),
)
_PATCHES: Final = st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"\xff" * 8, bytes(8)]))


def patched(data: st.DataObject, whole: bytes, places: Sequence[tuple[int, int]]) -> bytes:
    """Overwrite a few bytes.

    Args:
        data: makes the choices.
        whole: the file as it ought to be.
        places: from and to of the parts in which patches may begin.
    """
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        first, last = data.draw(st.sampled_from(places))
        at = data.draw(st.integers(first, min(last, len(whole) - 8)))
        patch = data.draw(_PATCHES)
        content[at : at + len(patch)] = patch
    return bytes(content)
