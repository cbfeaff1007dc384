"""Measures at start what passes of the target cost by rows, and remembers it on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import statistics
import time
from pathlib import Path
from typing import Final

from outrider.files import write_whole
from outrider.kernels.native import cpu
from outrider.kv.pool import KVPool
from outrider.models.base import TargetModel
from outrider.tree import SequenceRows, TreeBatch, TreeBuilder

VARIABLE: Final = "OUTRIDER_PROFILES"
VERSION: Final = 1
"""Raise it when kernels change what passes cost."""
ROWS: Final = (1, 2, 4, 6, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64)
"""Where kernels change, and between."""
_CONTEXT: Final = 128
_PAGE: Final = 16
_SECONDS: Final = 3.0
"""After this time nothing more is measured but small passes that were not yet."""
_SMALL: Final = 16
_SAMPLES: Final = 5
_KEY: Final = "text"
_log: Final = logging.getLogger(__name__)


def profiles_folder() -> Path:
    """Folder of the profiles: OUTRIDER_PROFILES, else ~/.cache/outrider/profiles."""
    return Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "outrider" / "profiles")


def pass_profile(target: TargetModel) -> dict[int, float] | None:
    """Seconds of a pass by rows, from disk or measured, which takes about three seconds.

    None where passes run on other than the kernels' threads: what they cost is learned from rounds then.
    """
    if not target.own_threads or cpu is None:
        return None
    file = profiles_folder() / f"{_name(target)}.json"
    try:
        return {int(rows): float(seconds) for rows, seconds in json.loads(file.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        pass
    found = measured(target)
    if target.source is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(found).encode())
        except OSError as error:
            _log.info("the profile of passes could not be kept: %s", error)
    return found


def measured(target: TargetModel, seconds: float = _SECONDS) -> dict[int, float]:
    """Median seconds of passes by rows, after a short context; large passes are left out where there is no time."""
    rows = [count for count in ROWS if _CONTEXT + count < target.context_length] or [1]
    context = min(_CONTEXT, target.context_length - rows[-1] - 1)
    cache = KVPool(_PAGE * (2 + (context + rows[-1]) // _PAGE), _PAGE).cache("profile")
    cache.extend(_KEY, context + rows[-1])
    tokens = [1 + place % (target.vocabulary - 1) for place in range(max(context, rows[-1]))]
    target.forward(TreeBatch.pack([SequenceRows(_KEY, 0, tuple(tokens[:context]), None)], target.device), cache)
    samples: dict[int, list[float]] = {count: [] for count in rows}
    begun = time.perf_counter()
    for turn in range(_SAMPLES):
        for count in rows:
            if (turn or count > _SMALL) and time.perf_counter() - begun > seconds:
                break
            tree = TreeBuilder(tokens[0]).chain(tokens[1:count]).build()
            batch = TreeBatch.pack([SequenceRows(_KEY, context, (), tree)], target.device)
            before = time.perf_counter()
            target.forward(batch, cache)
            samples[count].append(time.perf_counter() - before)
    return {count: statistics.median(times) for count, times in samples.items() if times}


def _name(target: TargetModel) -> str:
    """What a profile depends on: the model, the precision, the machine and the threads."""
    source = target.source
    facts = [VERSION, str(source), source and source.stat().st_mtime_ns, target.precision, target.packed_bytes]
    machine = [cpu.kernel_name(), cpu.threads(), os.cpu_count(), *_processor()]
    return hashlib.blake2b(json.dumps([facts, machine]).encode(), digest_size=12).hexdigest()


def _processor() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return sorted({line for line in lines if line.startswith(("model name", "model\t", "cpu family", "cache size"))})
