"""The compiled CPU kernels: ``cpu`` is the extension module, or None if it is not built; ``missing`` says why."""

from __future__ import annotations

import logging
import os
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from outrider.errors import ConfigError

try:
    _module = import_module("outrider.kernels._cpu")
except ImportError as error:
    cpu: Any = None
    missing: str | None = f"the CPU kernels are not built ({error}); install a C++20 compiler and reinstall"
else:
    cpu = _module
    missing = None

KERNELS_VARIABLE: Final = "OUTRIDER_KERNELS"
"""Names the kernels for this process and its children; see :func:`use_kernels`."""
SLOW_KERNELS: Final = {
    "portable": "it has no AVX2, so a token takes several times as long as with AVX-512, and a prompt tens of times",
}
"""Slow kernels, and why a CPU has no better ones."""
_TOPOLOGY: Final = Path("/sys/devices/system/cpu")
_POOL_LIMIT: Final = 1024
"""Limit of the thread pool."""
_FEWEST_ALLOWED: Final = 64
_PER_CORE: Final = 8
_log: Final = logging.getLogger("outrider")


def physical_cores() -> int:
    """Number of physical cores that this process may use; hardware threads of one core count once."""
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


def most_threads() -> int:
    """Maximum number of threads: eight per core, at least 64, at most the pool's limit."""
    return min(_POOL_LIMIT, max(_FEWEST_ALLOWED, _PER_CORE * (os.cpu_count() or 1)))


def set_threads(count: int) -> None:
    """Set the kernels' number of threads, the caller's included.

    Raises:
        ConfigError: it is out of bounds (:func:`most_threads`), or the system refuses.
    """
    if not 1 <= count <= most_threads():
        raise ConfigError(f"threads must be from 1 to {most_threads()} on this machine, not {count}")
    if cpu is None:
        return
    try:
        cpu.set_threads(count)
    except RuntimeError as error:
        raise ConfigError(f"the system refuses {count} threads ({error}); ask for fewer") from error


def kernel_names() -> list[str]:
    """Names of the kernels that this CPU can run, best first; empty if they are not built."""
    return [] if cpu is None else list(cpu.kernel_names())


def use_kernels(name: str | None) -> None:
    """Use the kernels of one instruction set, in this process and its children; all give the same bits.

    Args:
        name: one of :func:`kernel_names`; None is the best and ignores the environment variable ``OUTRIDER_KERNELS``.

    Raises:
        ConfigError: this CPU cannot run them, or they are not built.
    """
    if name is not None and name not in kernel_names():
        raise ConfigError(missing or f"there are no kernels {name!r} for this CPU; there are: {_listed()}")
    if cpu is not None:
        cpu.select_kernels(name)
    if name is None:
        os.environ.pop(KERNELS_VARIABLE, None)
    else:
        os.environ[KERNELS_VARIABLE] = name


def _listed() -> str:
    return ", ".join(kernel_names())


def warn_of_slow_kernels() -> None:
    """Log once if this CPU can run only slow kernels; no warning if the user chose them."""
    names = kernel_names()
    if names and names[0] in SLOW_KERNELS:
        _warn(names[0])


@cache
def _warn(name: str) -> None:
    _log.warning("this CPU runs the %s kernels: %s", name, SLOW_KERNELS[name])


set_threads(min(physical_cores(), most_threads()))
if _wish := os.environ.get(KERNELS_VARIABLE):
    try:
        use_kernels(_wish)
    except ConfigError as error:
        raise ConfigError(f"the environment variable {KERNELS_VARIABLE} cannot be followed: {error}") from None
