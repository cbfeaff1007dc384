"""Comparisons with other engines, from ``benchmarks/peers/compare.py``: tables, the README's parts, and a picture."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from outrider.bench.svg import Drawing, Scale, nice_end

STYLE: Final = """<style>
svg { font: 12px system-ui, sans-serif; background: #fcfcfb; }
.label { fill: #1c1c1a; } .title { fill: #1c1c1a; font-weight: 600; } .soft { fill: #62615c; font-size: 11px; }
.ours { fill: #2a78d6; } .theirs { fill: #b9b8b1; } .drafted { stroke: #1c1c1a; stroke-width: 1.5; }
</style>"""
OURS: Final = "outrider"
_NAMES: Final = {OURS: "Outrider", "openvino": "OpenVINO GenAI"}
"""How engines spell their own names."""


def end_to_end(bench: dict[str, Any], arm: dict[str, Any]) -> float:
    """Tokens per second of an arm, prefill included."""
    of_arm = (s for s in bench["samples"] if (s["engine"], s["arm"]) == (arm["engine"], arm["arm"]))
    mine = [sample for sample in of_arm if "error" not in sample]
    seconds = sum(sample["prefill_s"] + sample["decode_s"] for sample in mine)
    return sum(sample["tokens"] for sample in mine) / seconds if seconds else 0.0


def drafts(arm: dict[str, Any]) -> bool:
    """Whether an arm used the draft model, by its name."""
    return "draft" in arm["arm"]


def peers(bench: dict[str, Any]) -> list[str]:
    """A comparison as tables, with its conditions."""
    machine, prompts = bench["machine"], bench["prompts"]
    versions = ", ".join(bench["versions"].values())
    head = (
        f"**Against other engines**, {bench['target']}, {prompts['count']} prompts of `{prompts['file']}`, greedy, "
        f"{bench['max_tokens']} tokens, {machine['cpu']}, {bench['threads']} threads, "
        f"interleaved in one run ({versions}):"
    )
    lines = [
        "| engine | arm | draft model | tokens/s decoding | end to end | texts equal to its plain ones |",
        "|---|---|---|---:|---:|---:|",
    ]
    for arm in sorted(bench["arms"], key=lambda arm: -(arm["tokens_per_s"] or 0)):
        speeds = f"{arm['tokens_per_s'] or 0:.1f} | {end_to_end(bench, arm):.1f}"
        model = "yes" if drafts(arm) else "no"
        same = f"{arm['same_as_plain']} of {arm['texts']}"
        lines.append(f"| {_NAMES.get(arm['engine'], arm['engine'])} | {arm['arm']} | {model} | {speeds} | {same} |")
    pairs = "\n".join(["| | Outrider | against | decoding | end to end |", "|---|---|---|---:|---:|", *against(bench)])
    return [head, "\n".join(lines), pairs, " ".join([*conditions(bench), absent(bench)]).strip()]


class Fairness(NamedTuple):
    """Which arms of two engines are compared."""

    name: str
    """Empty if it depends on which engine had the draft model."""
    admits: Callable[[dict[str, Any]], bool]

    def told(self, ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]], engine: str, draft: str) -> str:
        """The name of the comparison; if it admits every arm, which engine had the draft model."""
        if self.name:
            return self.name
        had = {
            name: "with" if any(map(drafts, arms)) else "without"
            for name, arms in (("Outrider", ours), (engine, theirs))
        }
        if len(set(had.values())) == 1:
            return f"both had {draft}" if had[engine] == "with" else "neither had a draft model"
        return ", ".join(f"{name} {word} {draft if word == 'with' else 'one'}" for name, word in had.items())


FAIRNESS = (
    Fairness("plain decoding", lambda arm: arm["arm"] == "plain"),
    Fairness("no draft model", lambda arm: not drafts(arm)),
    Fairness("", lambda arm: True),
)


def against(bench: dict[str, Any], only: str | None = None) -> Iterator[str]:
    """Table rows: Outrider's best arm against the best arm of each other engine, like for like."""
    others = dict.fromkeys(arm["engine"] for arm in bench["arms"] if arm["engine"] != OURS)
    for engine in others if only is None else (only,):
        for fairness in FAIRNESS:
            ours, theirs = (
                [arm for arm in bench["arms"] if arm["engine"] == name and fairness.admits(arm) and arm["tokens_per_s"]]
                for name in (OURS, engine)
            )
            best, its_best = (max(arms, key=lambda arm: arm["tokens_per_s"]) for arms in (ours, theirs))
            whole, its_whole = (max(end_to_end(bench, arm) for arm in arms) for arms in (ours, theirs))
            decoding = best["tokens_per_s"] / its_best["tokens_per_s"]
            cells = (
                told(best, ""),
                told(its_best, f"{_NAMES.get(engine, engine)} "),
                f"{decoding:.2f}×",
                f"{whole / its_whole:.2f}×",
            )
            name = fairness.told(ours, theirs, _NAMES.get(engine, engine), size(bench))
            yield f"| {name} | {' | '.join(cells)} |"


def size(bench: dict[str, Any]) -> str:
    """The draft model by its size, from its file name."""
    found = re.search(r"\d+(\.\d+)?[BM]\b", bench["draft"])
    return f"a {found[0]} draft model" if found else "a draft model"


def told(arm: dict[str, Any], engine: str) -> str:
    """An arm and its speed."""
    return f"{engine}`{arm['arm']}` {arm['tokens_per_s']:.1f}"


def absent(bench: dict[str, Any]) -> str:
    """Says that llama.cpp's own n-gram speculation was not measured; empty if it was."""
    ran = any(arm["arm"].startswith("ngram") for arm in bench["arms"] if arm["engine"] == "llama.cpp")
    own = "llama.cpp's own n-gram speculation (`llama-server --spec-type ngram-simple`)"
    return "" if ran else f"{own} was not part of this run."


def conditions(bench: dict[str, Any]) -> Iterator[str]:
    """What each engine ran, in sentences."""
    for engine in sorted({arm["engine"] for arm in bench["arms"]}, key=lambda name: (name != OURS, name)):
        arms = sorted(arm["arm"] for arm in bench["arms"] if arm["engine"] == engine)
        mine = any(drafts(arm) for arm in bench["arms"] if arm["engine"] == engine)
        model = f"with {bench['draft'].removesuffix('.gguf')} as draft model" if mine else "without a draft model"
        version = bench["versions"].get(engine, "") if engine != OURS else ""
        name = f"{_NAMES.get(engine, engine)}{f' ({version})' * bool(version)}"
        yield f"{name} ran {', '.join(f'`{arm}`' for arm in arms)}, {model}."


def machine(bench: dict[str, Any]) -> str:
    """The CPU a comparison ran on."""
    return f"{bench['threads']} threads of an {bench['machine']['cpu']} ({bench['machine']['kernels']})"


def setting(found: Sequence[dict[str, Any]]) -> str:
    """What the comparisons share: model, sampling, length and CPU."""
    asked = found[0]
    return (
        f"{asked['target'].removesuffix('.gguf')}, greedy, {asked['max_tokens']} tokens, "
        f"{' and '.join(dict.fromkeys(map(machine, found)))}"
    )


def gains(found: Sequence[dict[str, Any]], picture: str) -> str:
    """Outrider's own gain from speculation in a table, and a picture with other engines."""
    lines = [
        f"| tokens/s, decoding only | plain | no second model | with {size(found[0])}, best method |",
        "|---|---:|---:|---:|",
    ]
    for bench in found:
        ours = [arm for arm in bench["arms"] if arm["engine"] == OURS]
        (plain,) = (arm for arm in ours if arm["arm"] == "plain")
        cells = [f"{plain['tokens_per_s']:.1f}"]
        for model in (False, True):
            arms = [arm for arm in ours if drafts(arm) is model and arm is not plain]
            best = max(arms, key=lambda arm: arm["tokens_per_s"])
            cells.append(f"{told(best, '')} ({best['tokens_per_s'] / plain['tokens_per_s']:.2f}×)")
        lines.append(f"| {bench['prompts']['count']} of `{bench['prompts']['file']}` | {' | '.join(cells)} |")
    shown = f"![Tokens per second of Outrider and other engines]({picture})"
    return "\n\n".join([f"{setting(found)}:", "\n".join(lines), shown])


def summary(found: Sequence[dict[str, Any]]) -> str:
    """The comparison with other engines: like for like in a table, and its conditions."""
    head = f"{setting(found)}. Every engine ran the same file; engines took turns on each prompt in one run."
    shared = set.intersection(*({arm["engine"] for arm in bench["arms"]} for bench in found)) - {OURS}
    lines = ["| prompts | what ran | Outrider, tokens/s | other, tokens/s | decoding | end to end |"]
    lines.append("|---|---|---|---|---:|---:|")
    for bench in found:
        asked_of = f"{bench['prompts']['count']} of `{bench['prompts']['file']}`"
        lines += [f"| {asked_of} {row}" for engine in sorted(shared) for row in against(bench, engine)]
    columns = (
        "*decoding*: tokens over the time after prefill, with each side's best arm; *end to end*: prefill included. "
        "These are CPU figures; no GPU has been measured yet."
    )
    given = [f"- `{bench['prompts']['file']}`: {' '.join(conditions(bench))}" for bench in found]
    given += [f"- {note}" for note in dict.fromkeys(map(absent, found)) if note]
    return "\n\n".join([head, "\n".join(lines), columns, "\n".join(given)])


def speeds_picture(found: Sequence[dict[str, Any]]) -> str:
    """Bars of tokens per second, one panel for each comparison with other engines."""
    asked = found[0]
    most = max(arm["tokens_per_s"] or 0 for bench in found for arm in bench["arms"])
    scale = Scale(nice_end(most), 200, 590)
    drawing = Drawing(640, 72 + sum(78 + 22 * len(bench["arms"]) for bench in found), "tokens per second by engine")
    drawing.text(16, 26, "Tokens per second while decoding, without prefill", "title")
    target, draft = (asked[key].removesuffix(".gguf") for key in ("target", "draft"))
    drawing.text(16, 46, f"{target}, greedy, {asked['max_tokens']} tokens", "soft")
    drawing.bar(16, 53, 10, 10, "ours drafted", "with a draft model")
    drawing.text(32, 62, f"framed: with {draft} as draft model; the others without", "soft")
    y = 72.0
    for bench in found:
        drawing.text(16, y + 22, f"{bench['prompts']['count']} prompts of {bench['prompts']['file']}", "title")
        had = dict.fromkeys(_NAMES.get(arm["engine"], arm["engine"]) for arm in bench["arms"] if drafts(arm))
        drawing.text(16, y + 39, f"{machine(bench)}; had a draft model: {', '.join(had) or 'none'}", "soft")
        y += 52
        for arm in sorted(bench["arms"], key=lambda arm: -(arm["tokens_per_s"] or 0)):
            speed, name = arm["tokens_per_s"] or 0, f"{_NAMES.get(arm['engine'], arm['engine'])} · {arm['arm']}"
            drawing.text(scale(0) - 8, y + 12, name, "label", "end")
            style = ("ours" if arm["engine"] == OURS else "theirs") + (" drafted" if drafts(arm) else "")
            drawing.bar(scale(0), y, scale(speed) - scale(0), 16, style, f"{name}: {speed:.1f} tokens/s")
            drawing.text(scale(speed) + 6, y + 12, f"{speed:.1f}", "soft")
            y += 22
        y += 26
    return drawing.file(STYLE)
