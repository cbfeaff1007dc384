"""The compiled CPU kernels, if this installation has them.

``cpu`` is the extension module, or None where the package was installed without a compiler; ``missing`` says why.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any, Final

try:
    _module = import_module("outrider.kernels._cpu")
except ImportError as error:
    cpu: Any = None
    missing: str | None = f"the CPU kernels are not built ({error}); install a C++20 compiler and reinstall"
else:
    cpu = _module
    missing = None

_TOPOLOGY: Final = Path("/sys/devices/system/cpu")


def physical_cores() -> int:
    """Physical cores this process may use: of hardware threads that share a core, one counts."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # not on this system
        return os.cpu_count() or 1
    return len({_first_sibling(processor) for processor in allowed}) or 1


def _first_sibling(processor: int) -> str:
    try:
        return (_TOPOLOGY / f"cpu{processor}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(processor)


def set_threads(count: int) -> None:
    """Set how many threads the kernels use, the caller's included."""
    if cpu is not None:
        cpu.set_threads(count)


set_threads(physical_cores())
