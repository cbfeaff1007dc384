"""What plain decoding loses while another process takes one of its cores.

    python benchmarks/busy_core.py [--models SmolLM2-135M Qwen2.5-Coder-1.5B] [--json results/busy_core.json]

A child process spins on the last of this process's cores, or is stopped: windows with and without it take turns in one
run, and the loss is that of the medians.  The load of the cores that is neither this process nor the child is measured
in each window and told, because it would count against both.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from result import write
from rich.console import Console
from rich.table import Table

from outrider import LLM, SamplingParams
from outrider.bench.machine import facts
from outrider.kernels.native import cpu, physical_cores, set_threads

ARMS = ("alone", "busy")
PROMPT = 64
SETTLE_S = 0.2
"""Before each window: the system moves threads between cores."""
MOST_OTHER = 0.05
"""Of the cores' time; with more than that taken by strangers a figure means little."""


class Spinner:
    """A child process that keeps one core busy, or none while it is stopped."""

    def __init__(self, core: int) -> None:
        words = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"]
        self._child = subprocess.Popen(words)
        self.pid = self._child.pid
        self.spin(False)

    def spin(self, wanted: bool) -> None:
        """Go on, or stop."""
        self._child.send_signal(signal.SIGCONT if wanted else signal.SIGSTOP)

    def end(self) -> None:
        """End the child."""
        self._child.kill()
        self._child.wait()


def busy_seconds(cores: set[int]) -> float:
    """Seconds that some cores have worked since the system started."""
    total = 0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in cores:
            user, nice, system, _, _, interrupt, soft = map(int, fields[:7])
            total += user + nice + system + interrupt + soft
    return total / os.sysconf("SC_CLK_TCK")


def process_seconds(pid: int) -> float:
    """Seconds that a process has run."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def strangers(cores: set[int], spinner: Spinner) -> float:
    """Seconds that some cores have worked, so far, for neither this process nor the child."""
    return busy_seconds(cores) - process_seconds(os.getpid()) - process_seconds(spinner.pid)


@contextmanager
def decoding(llm: LLM) -> Iterator[None]:
    """Keep one request in the engine that does not end."""
    dice = random.Random(1)
    prompt = [dice.randrange(1000, 20000) for _ in range(PROMPT)]
    llm.engine.submit(prompt, SamplingParams(max_tokens=10**6, ignore_eos=True))
    progress = llm.engine.step()
    yield
    for item in progress:
        llm.engine.cancel(item.request)
    llm.engine.end_cancelled()


def window(llm: LLM, seconds: float) -> float:
    """Tokens per second of plain decoding, one a step."""
    with decoding(llm):
        steps, began = 0, time.perf_counter()
        while (spent := time.perf_counter() - began) < seconds:
            llm.engine.step()
            steps += 1
    return steps / spent


def measure(model: str, wishes: argparse.Namespace, spinner: Spinner, cores: set[int]) -> dict[str, Any]:
    """All windows of one model."""
    llm = LLM(model, speculation=None, backend="native", context_length=wishes.context)
    speeds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    others: dict[str, list[float]] = {arm: [] for arm in ARMS}
    window(llm, wishes.seconds)  # warms up
    for turn in range(wishes.windows):
        for arm in ARMS if turn % 2 else reversed(ARMS):
            spinner.spin(arm == "busy")
            time.sleep(SETTLE_S)
            before, began = strangers(cores, spinner), time.perf_counter()
            speeds[arm].append(window(llm, wishes.seconds))
            elapsed = len(cores) * (time.perf_counter() - began)
            others[arm].append(max(0.0, strangers(cores, spinner) - before) / elapsed)
            spinner.spin(False)
    medians = {arm: statistics.median(values) for arm, values in speeds.items()}
    return {
        "model": model,
        "tokens_per_s": speeds,
        "median_tokens_per_s": medians,
        "loss": 1 - medians["busy"] / medians["alone"],
        "other_load": others,
    }


def main() -> int:
    """Measure, print a table, end with one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["SmolLM2-135M"])
    parser.add_argument("--windows", type=int, default=7, help="of each arm")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each window")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--json", type=Path)
    wishes = parser.parse_args()
    cores = os.sched_getaffinity(0)
    if cpu is None or len(cores) < 2:
        parser.error("this takes the CPU kernels and two cores")
    set_threads(physical_cores())
    spinner = Spinner(max(cores))
    try:
        results = [measure(model, wishes, spinner, cores) for model in wishes.models]
    finally:
        spinner.end()
    table = Table("model", *(f"{arm}, tokens/s" for arm in ARMS), "loss", "other load")
    for result in results:
        speeds = [f"{result['median_tokens_per_s'][arm]:.1f}" for arm in ARMS]
        load = statistics.median(value for values in result["other_load"].values() for value in values)
        warning = " (too much to trust)" if load > MOST_OTHER else ""
        table.add_row(result["model"], *speeds, f"{result['loss']:.0%}", f"{load:.0%}{warning}")
    Console().print(table)
    machine = facts() | {"kernel_threads": cpu.threads(), "load_average": os.getloadavg()}
    write({"machine": machine, "window_s": wishes.seconds, "busy_core": max(cores), "models": results}, wishes.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
