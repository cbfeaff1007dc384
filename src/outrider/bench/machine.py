"""Facts about the machine, for results, and its memory bandwidth."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from outrider.kernels.native import cpu, missing

if TYPE_CHECKING:
    import torch

_BUFFER_BYTES: Final = 512 * 2**20
"""Far more than any cache holds."""
_PASSES: Final = 9
_GIT_SECONDS: Final = 20
"""Timeout of a git command."""
_PACKAGES: Final = ("outrider", "torch", "transformers", "tokenizers", "numpy")


def facts() -> dict[str, Any]:
    """Date, processor, memory, threads, GPUs and versions, for every result."""
    import torch  # takes seconds

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    made = {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "commit": commit(Path(__file__))}
    return made | quick_facts() | {"threads": torch.get_num_threads(), "gpus": gpus}


def quick_facts() -> dict[str, Any]:
    """Facts about the machine that do not need torch."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "kernels": "none: " + str(missing) if cpu is None else cpu.kernel_name(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions(),
    }


def commit(file: Path) -> str | None:
    """The commit of a file, with ``-dirty`` if tracked files were changed; None if git does not track the file."""
    ask = ["git", "-C", str(file.parent)]
    tracked = [*ask, "ls-files", "--error-unmatch", "--", file.name]
    named = [*ask, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        for command in (tracked, named):
            answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_SECONDS).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.strip()


def versions() -> dict[str, str]:
    """Versions of the packages that results depend on."""
    return {package: _version(package) for package in _PACKAGES}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def usable_cores() -> int:
    """Cores this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def read_bandwidth(device: torch.device) -> float:
    """Bytes per second that torch reads with its present threads: the median of summing a large buffer."""
    import torch

    buffer = torch.ones(_BUFFER_BYTES // 4, dtype=torch.float32, device=device)
    seconds = []
    for _ in range(_PASSES):
        _finish(device)
        begun = time.perf_counter()
        buffer.sum()
        _finish(device)
        seconds.append(time.perf_counter() - begun)
    return _BUFFER_BYTES / statistics.median(seconds)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or "unknown")


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
