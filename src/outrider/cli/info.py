"""``outrider info``: versions and hardware; drafting methods with their options, and acceptance rules."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter
from rich.box import SIMPLE_HEAD
from rich.table import Table

from outrider.bench.machine import facts, quick_facts
from outrider.cli import output
from outrider.kernels.native import cpu, kernel_names
from outrider.models.files.models_folder import models_folder

if TYPE_CHECKING:
    from rich.console import Console

_NVIDIA: Final = Path("/proc/driver/nvidia/gpus")
_NAMES: Final = 11
"""Width of the name column."""
_PATIENCE_S: Final = 5.0


def info(
    *,
    methods: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, output.AS_JSON] = False,
) -> int:
    """Show versions and hardware; --methods lists drafting methods and acceptance rules.

    Args:
        methods: List the drafting methods, their options, and the acceptance rules.
        as_json: Print everything as one JSON object.
    """
    if as_json:
        output.write_json({"machine": facts(), "models_folder": str(models_folder())} | _methods())
    elif methods:
        _show_methods(_methods(), output.screen())
    else:
        _show_machine(output.screen())
    return 0


def _show_machine(console: Console) -> None:
    """Print the machine's facts without importing torch or transformers."""
    machine = quick_facts()
    packages = machine["versions"] | {"python": machine["python"]}
    versions = [f"{package} {version}" for package, version in packages.items()]
    threads = "" if cpu is None else f", {cpu.threads()} kernel threads"
    others = [name for name in kernel_names() if name != machine["kernels"]]
    choice = f" (--kernels also takes {', '.join(others)})" if others else ""
    memory = machine["memory_bytes"]
    for name, value in (
        ("versions", f"{', '.join(versions)} on {machine['system']}"),
        ("cpu", f"{machine['cpu']}, {machine['usable_cores']} cores{threads}"),
        ("kernels", f"{machine['kernels']}{choice}"),
        ("gpu", ", ".join(_gpus()) or "none"),
        ("memory", "unknown" if memory is None else f"{memory / 2**30:.1f} GiB"),
        ("backends", "hf" if cpu is None else "native, hf"),
        ("models in", f"{models_folder()} (outrider models lists them)"),
        ("methods", "outrider info --methods lists them, with options and acceptance rules"),
    ):
        output.tell(f"{name:<{_NAMES}}{value}", indent=_NAMES, console=console)


def _gpus() -> list[str]:
    """NVIDIA GPUs that the driver reports; torch may be built without CUDA all the same."""
    found = []
    for file in sorted(_NVIDIA.glob("*/information")):
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    tool = shutil.which("nvidia-smi")
    if found or tool is None:
        return found
    try:
        words = [tool, "--query-gpu=name", "--format=csv,noheader"]
        asked = subprocess.run(words, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in asked.stdout.splitlines() if line.strip()]


def _methods() -> dict[str, Any]:
    from outrider.drafters import methods
    from outrider.models.backends import backends
    from outrider.verify import registered

    return {
        "backends": backends(),
        "drafters": {name: _drafter(name) for name in methods()},
        "verifiers": {name: _verifier(rule) for name, rule in registered().items()},
    }


def _drafter(name: str) -> dict[str, Any]:
    from outrider.cli.method_options import options_of, spellings
    from outrider.drafters import config_class

    config = config_class(name)
    text = (config.__doc__ or "").strip().splitlines()
    return {
        "summary": text[0] if text else "",
        "options": [
            {
                "flag": each.shown,
                "spellings": list(spellings(each.flag)),
                "default": each.default,
                "low": each.low,
                "high": each.high,
                "help": each.help,
            }
            for each in options_of(config)
        ],
    }


def _verifier(rule: Any) -> dict[str, Any]:
    return {
        "lossless": rule.lossless,
        "drafts_are": rule.draws.value,
        "exact_for_trees": rule.trees,
        "exact_for_merged_trees": rule.merged,
        "exact_for_deterministic_drafts": rule.deterministic,
    }


def _show_methods(gathered: dict[str, Any], console: Console) -> None:
    from outrider.cli.method_options import all_options, options_of, spellings
    from outrider.drafters import config_class
    from outrider.verify import rule_label

    drafters = Table("method", "flag", "default", "bounds", "meaning", title="Drafting methods", box=SIMPLE_HEAD)
    for name in gathered["drafters"]:
        options = options_of(config_class(name))
        for place, each in enumerate(options):
            drafters.add_row("" if place else name, each.shown, each.shown_default, each.bounds, each.help)
        if not options:
            drafters.add_row(name, "–", "", "", gathered["drafters"][name]["summary"])
    console.print(drafters)
    rules = Table(
        "rule", "lossless", "trees", "merged", "deterministic", "drafts are", title="Acceptance rules", box=SIMPLE_HEAD
    )
    for name, rule in gathered["verifiers"].items():
        ticks = ("lossless", "exact_for_trees", "exact_for_merged_trees", "exact_for_deterministic_drafts")
        rules.add_row(
            rule_label(name, lossless=rule["lossless"]),
            *("yes" if rule[key] else "no" for key in ticks),
            rule["drafts_are"],
        )
    console.print(rules)
    longer = Table("flag", "also spelt", title="Other spellings", box=SIMPLE_HEAD)
    for flag in ("speculative-algorithm", "speculative-draft-quantization", *all_options()):
        first, *others = spellings(flag)
        longer.add_row(first, ", ".join(others))
    console.print(longer)
