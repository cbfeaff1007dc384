"""Write the README's tables of results from the files under ``results/``: run it after a new bench.

python docs/generate_results.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


def caption(bench: dict[str, Any]) -> str:
    """What was measured, where."""
    work, machine = bench["workload"], bench["machine"]
    return (
        f"**{bench['model']['name']}** on {work['prompts']} prompts of `{work['file']}`, "
        f"at most {work['max_tokens']} tokens, "
        f"{bench['model']['dtype']}, batch 1, {machine['cpu']} ({machine['cores']} cores):"
    )


def speedup(entry: dict[str, Any]) -> str:
    """A speedup with its interval."""
    low, high = entry["speedup_interval"] or (None, None)
    span = "" if low is None or low == high else f" ({low:.2f}–{high:.2f})"
    return f"{entry['speedup']:.2f}×{span}"


def table(bench: dict[str, Any]) -> str:
    """One row per method and setting, over all prompts."""
    lines = [
        "| method | setting | tokens/s | speedup (95 %) | α by position | τ | identical texts |",
        "|---|---|---:|---:|---|---:|---|",
    ]
    for entry in bench["results"]:
        if entry["category"] != "all":
            continue
        rates = " ".join(f"{rate:.2f}" for rate in entry["acceptance_by_position"][:4])
        same = entry["identical"]
        ties = f", {same['within_tie_rule']} more by the tie rule" if same["within_tie_rule"] else ""
        identical = f"{same['same']} of {same['texts']}{ties}" if same["promised"] else "in distribution"
        figures = f"{entry['tokens_per_s']:.1f} | {speedup(entry)} | {rates} | {entry['mean_accepted_length']:.2f}"
        lines.append(f"| `{entry['algorithm']}` | {entry['setting']} | {figures} | {identical} |")
    return "\n".join(lines)


def section() -> str:
    """Every bench under ``results/``, in order of name."""
    parts = []
    for file in sorted((ROOT / "results").glob("*.json")):
        bench = json.loads(file.read_text(encoding="utf-8"))
        if "results" in bench:
            parts += [caption(bench), table(bench), f"Whole figures: `results/{file.name}`."]
    return "\n\n".join(parts)


def render(text: str) -> str:
    """The README with its tables replaced."""
    return re.sub(rf"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n\n{section()}\n\n{END}", text, flags=re.S)


if __name__ == "__main__":
    README.write_text(render(README.read_text(encoding="utf-8")), encoding="utf-8")
