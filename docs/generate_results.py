"""Write the tables of results on the pages from the files under ``results/``; run it after a new benchmark.

python docs/generate_results.py
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))  # a test loads this file by its path

import server_results
from peer_results import gains, peers, speeds_picture, summary

from outrider.bench.figures import times
from outrider.study.table import Cells, correlations, drafters, notes

ROOT = Path(__file__).resolve().parents[1]
SPEEDS = ROOT / "docs" / "speeds.svg"


def caption(bench: dict[str, Any]) -> str:
    """The model, the prompts and the machine of a bench."""
    work, machine = bench["workload"], bench["machine"]
    return (
        f"**{bench['model']['name']}** on {work['prompts']} prompts of `{work['file']}`, "
        f"at most {work['max_tokens']} tokens, "
        f"{bench['model']['dtype']}, batch 1, {machine['cpu']} ({machine['threads']} threads):"
    )


def speedup(entry: dict[str, Any]) -> str:
    """A speedup with its interval; a dash if nothing was drafted."""
    low, high = entry["speedup_interval"] or (None, None)
    span = "" if low is None or low == high else f" ({low:.2f}–{high:.2f})"
    return f"{times(entry['speedup'])}{span}"


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


def methods(bench: dict[str, Any]) -> list[str]:
    """A file of ``outrider bench``."""
    return [caption(bench), table(bench)]


def heads(bench: dict[str, Any]) -> list[str]:
    """A file of ``benchmarks/head_cost.py``."""
    head = (
        f"**The cost of drafting with a head** for {bench['model']}, untrained: draft vocabulary "
        f"{bench['vocabulary']}, feed-forward width {bench['inner'] or 'as training chooses it'}, "
        f"{bench['machine']['cpu']}, {bench['machine']['usable_cores']} cores, medians of interleaved rounds:"
    )
    lines = [
        "| method | draft tokens | ms/round | ms/step | verify pass, ms |",
        "|---|---:|---:|---:|---:|",
    ]
    for each in bench["heads"]:
        figures = " | ".join(f"{each[key]:.1f}" for key in ("round_ms", "step_ms", "verify_ms"))
        lines.append(f"| `{each['method']}` | {each['drafted']:g} | {figures} |")
    return [head, "\n".join(lines)]


def trees(bench: dict[str, Any]) -> list[str]:
    """A file of ``benchmarks/trees.py``."""
    head = (
        f"**Dynamic and static trees**, {bench['model']}, one EAGLE head ({bench['trained_on_tokens']:,} tokens), "
        f"{bench['num_draft_tokens']} nodes on {bench['num_steps']} levels each, greedy:"
    )
    lines = ["| prompts | static τ (`eagle`) | dynamic τ (`eagle2`) |", "|---|---:|---:|"]
    for each in bench["trees"]:
        lengths = " | ".join(f"{each[kind]['mean_accepted_length']:.3f}" for kind in ("static", "dynamic"))
        lines.append(f"| {each['prompts']} of `{each['file']}` | {lengths} |")
    return [head, "\n".join(lines)]


def passes(bench: dict[str, Any]) -> list[str]:
    """A file of ``outrider bench kernels``."""
    model = bench["model"]
    rows = list(model["ms_by_rows"])
    made = {"none": "as stored"}.get(model["quantization"], model["quantization"])
    head = (
        f"**The cost of a pass**: {model['path']} ({made}), {bench['instruction_set']}, {bench['threads']} threads, "
        f"{bench['machine']['cpu']}, memory bandwidth {bench['read_bandwidth_gbs']:.1f} GB/s; one row reaches "
        f"{model['share_of_bandwidth']:.0%} of it, prefill runs at {model['prefill_tokens_per_s']:.0f} tokens/s:"
    )
    lines = ["| rows | " + " | ".join(rows) + " |", "|---|" + "---:|" * len(rows)]
    for what, key, digits in (("ms", "ms_by_rows", 1), ("relative to one row", "verify_curve", 2)):
        lines.append(f"| {what} | " + " | ".join(f"{model[key][n]:.{digits}f}" for n in rows) + " |")
    return [head, "\n".join(lines)]


def memory(bench: dict[str, Any]) -> list[str]:
    """A file of ``benchmarks/memory.py``."""
    head = f"**Memory** on top of the imports, {bench['model']} with {bench['draft']}, context {bench['context']}:"
    lines = ["| GB | both loaded | context full | peak |", "|---|---:|---:|---:|"]
    for name, run in bench["runs"].items():
        above = run["above_imports_bytes"]
        figures = [f"{above[step] / 1e9:.2f}" if step in above else "–" for step in ("loaded", "prompted", "peak")]
        lines.append(f"| {name} | {' | '.join(figures)} |")
    return [head, "\n".join(lines)]


def busy_core(bench: dict[str, Any]) -> list[str]:
    """A file of ``benchmarks/busy_core.py``."""
    machine, sample = bench["machine"], bench["models"][0]
    head = (
        f"**Plain decoding while another process uses one of {machine['usable_cores']} cores**, {machine['cpu']}, "
        f"medians of {len(sample['tokens_per_s']['alone'])} windows each, interleaved in one run:"
    )
    lines = ["| model | alone, tokens/s | busy, tokens/s | loss |", "|---|---:|---:|---:|"]
    for each in bench["models"]:
        alone, busy = (f"{each['median_tokens_per_s'][arm]:.1f}" for arm in ("alone", "busy"))
        lines.append(f"| {each['model']} | {alone} | {busy} | {each['loss']:.0%} |")
    return [head, "\n".join(lines)]


def audit(bench: dict[str, Any]) -> list[str]:
    """A file of ``outrider audit --json``, with the prompts added."""
    asked = bench["prompts"]
    head = (
        f"**Bit-exact audit**, {bench['model']}, {asked['count']} prompts of `{asked['file']}`, "
        f"{asked['max_tokens']} tokens each; it planted {len(bench['faults'])} faults and caught "
        f"{sum(fault['caught'] for fault in bench['faults'])}:"
    )
    lines = ["| check | result |", "|---|---|"]
    lines += [f"| {check['name']} | {check['detail']} |" for check in bench["checks"]]
    return [head, "\n".join(lines)]


def prompts(bench: dict[str, Any]) -> list[str]:
    """A file of ``benchmarks/peers/prefill.py``."""
    speeds = ", ".join(f"{name} {speed:.0f} tokens/s" for name, speed in bench["tokens_per_s"].items())
    versions = ", ".join(bench["versions"].values())
    return [
        f"**Prefill of {bench['tokens']} tokens**, {bench['target']}, {bench['machine']['cpu']}, "
        f"{bench['threads']} threads, interleaved in one run ({versions}): {speeds}, {bench['ratio_of_prefill']:.2f}×."
    ]


def loads(bench: dict[str, Any]) -> list[str]:
    """A file of ``benchmarks/load_time.py``."""
    first, later = bench["median_seconds"].values()
    return [
        f"**Loading** {bench['model']}, medians of {len(bench['seconds']['first start'])} interleaved runs: "
        f"{first:.1f} s the first time, when weights are packed, {later:.1f} s from the packed cache."
    ]


class Kind(NamedTuple):
    """How one kind of file is shown."""

    heading: str
    key: str
    """A key that only files of this kind have."""
    tell: Callable[[dict[str, Any]], list[str]]


KINDS = (
    Kind("Against other engines", "ratio_of_best", peers),
    Kind("Prefill", "ratio_of_prefill", prompts),
    Kind("Drafters", "results", methods),
    Kind("Trees", "trees", trees),
    Kind("Cost of heads", "heads", heads),
    Kind("Cost of a pass", "kernels", passes),
    Kind("Audit", "faults", audit),
    Kind("Memory", "runs", memory),
    Kind("Loading", "median_seconds", loads),
    Kind("A busy core", "busy_core", busy_core),
    Kind("Throughput of a server", "medians", server_results.throughput),
    Kind("Latency of a server", "first_token", server_results.latency),
    Kind("Prefix hits of a server", "possible", server_results.hits),
    Kind("Cost of the front end", "streams", server_results.front_end),
    Kind("Soak", "exit_code", server_results.soak),
)
"""In the order of the page."""


def benches() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of every file under ``results/``, in order of name."""
    for file in sorted((ROOT / "results").glob("*.json")):
        yield file.name, json.loads(file.read_text(encoding="utf-8"))


def speeds() -> str:
    """Every benchmark, by kind; studies have their own page."""
    parts = []
    for kind in KINDS:
        found = {name: bench for name, bench in benches() if is_a(kind, bench)}
        parts += [f"## {kind.heading}"] if found else []
        for name, bench in found.items():
            parts += [*kind.tell(bench), source(name, bench)]
    return "\n\n".join(parts)


def source(name: str, bench: dict[str, Any]) -> str:
    """The file with all figures, its date and commit, and which of these it does not record."""
    machine = bench.get("machine", {})
    date, commit = bench.get("created") or machine.get("date"), machine.get("commit")
    peer = "ratio_of_prefill" in bench or any("llama" in str(arm) for arm in bench.get("arms", ()))
    kept = {"date": date, "commit": commit, "machine": machine}
    kept |= {"build flags of the other engines": bench.get("builds")} if peer else {}
    made = f"commit {commit[:12]}{' with changes' * commit.endswith('-dirty')}" if commit else ""
    when = " of ".join(part for part in ((date or "")[:10], made) if part)
    lacking = ", ".join(what for what, value in kept.items() if not value)
    notes = [part for part in (when, f"not recorded: {lacking}" if lacking else "") if part]
    return f"All figures: `results/{name}`" + (f" ({'; '.join(notes)})" if notes else "") + "."


def is_a(kind: Kind, bench: dict[str, Any]) -> bool:
    """Whether a file is of a kind; a study, which contains a bench, is of none."""
    return kind.key in bench and "study" not in bench


def comparisons() -> list[dict[str, Any]]:
    """The comparisons with other engines, one per set of prompts."""
    return [bench for _, bench in benches() if is_a(KINDS[0], bench)]


def quality() -> str:
    """The comparison with fp32, all models in one table."""
    lines = [
        "| model | engine | mean KL | median | p99 | same argmax | perplexity | mean KL, Outrider ÷ engine (95 %) |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    notes = []
    for name, bench in benches():
        if "kl_over" not in bench:
            continue
        texts, model = bench["texts"], bench["model"]["name"]
        for engine, row in bench["quality"].items():
            figures = " | ".join(f"{row[key]:.5f}" for key in ("mean_kl", "median_kl", "p99_kl"))
            figures = figures if row["max_kl"] else "– | – | –"
            same = f"{row['agreement']:.2%} | {row['perplexity']:.3f}"
            lines.append(f"| {model} | {engine} | {figures} | {same} | {over(bench, engine)} |")
        first = ", ".join(
            f"{engine} {row['mean_kl']:.3f}" for engine, row in bench["leading"].items() if row["mean_kl"]
        )
        notes.append(
            f"- {model}: {texts['count']} texts of at most {texts['most_tokens']} tokens, "
            f"{bench['positions']} positions; mean KL at the first position: {first}; all figures: `results/{name}`"
        )
    return "\n".join((*lines, "", *notes))


def over(bench: dict[str, Any], engine: str) -> str:
    """Ratio of the mean divergences with its interval; empty for Outrider and the reference."""
    if engine not in bench["kl_over"]:
        return ""
    found = bench["kl_over"][engine]
    low, high = found["interval"]
    return f"{found['ratio']:.2f} ({low:.2f}–{high:.2f})"


def studies() -> str:
    """The studies, with their pictures."""
    parts = []
    for name, bench in benches():
        if "study" not in bench:
            continue
        told = bench["study"]
        parts += [caption(bench), markdown(drafters(told["drafters"])), markdown(correlations(told["correlations"]))]
        parts.append("\n".join(f"- {line}" for line in notes(told)))
        picture = name.replace(".json", ".svg")
        if (ROOT / "docs" / picture).exists():
            parts.append(f"![Speedup against perplexity and against draft latency]({picture})")
        parts.append(source(name, bench))
    return "\n\n".join(parts)


def markdown(cells: Cells) -> str:
    """A table of a page."""
    marks = "|---|" + "---:|" * (len(cells.headings) - 1)
    return "\n".join([f"| {' | '.join(cells.headings)} |", marks, *(f"| {' | '.join(line)} |" for line in cells.lines)])


PAGES: dict[Path, dict[str, Callable[[], str]]] = {
    ROOT / "README.md": {
        "gains": lambda: gains(comparisons(), f"docs/{SPEEDS.name}"),
        "results": lambda: summary(comparisons()),
    },
    ROOT / "docs" / "results.md": {"results": speeds},
    ROOT / "docs" / "cpu.md": {"results": quality},
    ROOT / "docs" / "study.md": {"results": studies},
}
"""The generated parts of each page, by the name in their marks."""


def render(page: Path) -> str:
    """A page with its generated parts replaced."""
    text = page.read_text(encoding="utf-8")
    for name, part in PAGES[page].items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        whole = f"{begin}\n\n{part()}\n\n{end}"
        text = re.sub(rf"{begin}.*?{end}", lambda _, whole=whole: whole, text, flags=re.S)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(render(each), encoding="utf-8")
    SPEEDS.write_text(speeds_picture(comparisons()), encoding="utf-8")
