"""``outrider info``: versions, hardware, drafting methods with their options, acceptance rules."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from outrider.bench.machine import facts
from outrider.cli import output
from outrider.cli.options import options_of
from outrider.drafters.base import config_class, methods
from outrider.target.backends import backends
from outrider.target.loading import models_folder
from outrider.verify import registered, rule_label


def info(*, as_json: Annotated[bool, Parameter(name="--json", negative="")] = False) -> int:
    """Show versions, hardware, drafting methods with their options, and what each acceptance rule is exact for.

    Args:
        as_json: print one JSON object instead of tables.
    """
    gathered = {
        "machine": facts(),
        "models_folder": str(models_folder()),
        "backends": backends(),
        "drafters": {name: _drafter(name) for name in methods()},
        "verifiers": {name: _verifier(rule) for name, rule in registered().items()},
    }
    if as_json:
        output.write_json(gathered)
    else:
        _show(gathered, output.screen())
    return 0


def _drafter(name: str) -> dict[str, Any]:
    config = config_class(name)
    text = (config.__doc__ or "").strip().splitlines()
    return {
        "summary": text[0] if text else "",
        "options": [
            {"flag": f"--{each.flag}", "default": each.default, "low": each.low, "high": each.high, "help": each.help}
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


def _show(gathered: dict[str, Any], console: Console) -> None:
    machine = gathered["machine"]
    gpus = ", ".join(machine["gpus"]) or "none"
    for name, value in (
        ("versions", ", ".join(f"{package} {version}" for package, version in machine["versions"].items())),
        ("python", f"{machine['python']} on {machine['system']}"),
        ("cpu", f"{machine['cpu']}, {machine['usable_cores']} cores, {machine['threads']} threads in use"),
        ("kernels", machine["kernels"]),
        ("gpu", gpus),
        ("memory", "unknown" if machine["memory_bytes"] is None else f"{machine['memory_bytes'] / 2**30:.1f} GiB"),
        ("backends", ", ".join(gathered["backends"])),
        ("models in", gathered["models_folder"]),
    ):
        console.print(f"{name:<10} {value}")
    drafters = Table("method", "flag", "default", "bounds", "meaning", title="Drafting methods", box=SIMPLE_HEAD)
    for name in gathered["drafters"]:
        for place, each in enumerate(options_of(config_class(name))):
            drafters.add_row("" if place else name, f"--{each.flag}", each.shown_default, each.bounds, each.help)
        if not options_of(config_class(name)):
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
