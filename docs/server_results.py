"""Tables of what servers did, from the files that ``benchmarks/serve`` writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def throughput(bench: dict[str, Any]) -> list[str]:
    """A file of ``throughput.py``."""
    asked, rounds = bench["prompts"], 1 + max(sample["round"] for sample in bench["samples"])
    head = (
        f"**Throughput**, {bench['model']}, prompts of {asked['tokens']['least']} to {asked['tokens']['most']} tokens "
        f"from `{asked['file']}`, {bench['max_tokens']} output tokens at most, greedy, {machine(bench)}. Tokens per "
        f"second of the whole server, prompts included, are medians of {rounds} interleaved rounds. "
        "So are the ratios, each of one round's own figures:"
    )
    lines = ["| clients | server | tokens/s | ÷ `llama-server` | first token |", "|---:|---|---:|---:|---:|"]
    for row in bench["medians"]:
        ratio = f"{row['ratio_to_llama']:.2f}×" if row["ratio_to_llama"] else "–"
        figures = f"{row['tokens_per_s']:.1f} | {ratio} | {row['first_token_ms'] / 1e3:.1f} s"
        lines.append(f"| {row['clients']} | {row['arm']} | {figures} |")
    return [head, "\n".join(lines), "\n".join(arms(bench))]


def latency(bench: dict[str, Any]) -> list[str]:
    """A file of ``latency.py``."""
    head = (
        f"**Latency**, {bench['model']}, {machine(bench)}. *Gaps*: 99th percentile between two texts of a stream, "
        "alone and while long prompts arrive. *First token*: a prompt of 2,000 tokens that is new, and one that shares "
        "1,900 tokens with it. *÷ library*: one client's speed over the same prompts in the library, in turns:"
    )
    lines = [
        "| server | gaps alone | with long prompts | first token, new | 1,900 cached | ÷ library |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for arm, gaps in bench["gaps"].items():
        first, beside = bench["first_token"][arm], bench["library"].get(arm)
        idle, busy = (gaps[key]["p99"] for key in ("idle_ms", "busy_ms"))
        cold, cached = first["cold_ms"], first["cached_ms"]
        lines.append(
            f"| {arm} | {idle:.0f} ms | {busy:.0f} ms ({busy / idle:.1f}×) | {cold / 1e3:.2f} s "
            f"| {cached / 1e3:.2f} s ({cached / cold:.0%}) "
            f"| {'–' if beside is None else format(beside['server_over_library'], '.3f')} |"
        )
    return [head, "\n".join(lines), "\n".join(arms(bench))]


def hits(bench: dict[str, Any]) -> list[str]:
    """A file of ``prefix_hits.py``."""
    trace, total = bench["trace"], bench["prompt_tokens"]["total"]
    rates = ", ".join(f"{row['arm']} {row['hit_rate']:.1%}" for row in bench["rows"])
    return [
        f"**Prefix cache**, {bench['model']}: {trace['requests']} requests of `{trace['file']}`, one token for "
        f"{trace['scale']} recorded ones, {total:,} prompt tokens. Share of them that was cached: {rates}. A cache "
        f"without limits could have held {bench['possible']:.1%}."
    ]


def front_end(bench: dict[str, Any]) -> list[str]:
    """A file of ``front_end.py``."""
    head = (
        f"**Front end and scheduler**, {bench['model']}, {bench['streams']} streams at once, {machine(bench)}, shares "
        "of the time between two rounds:"
    )
    lines = ["| decoding | round | front end | scheduler |", "|---|---:|---:|---:|"]
    for name in ("plain", "speculative"):
        row = bench[name]
        lines.append(f"| {name} | {row['round_ms']:.0f} ms | {row['front_end']:.1%} | {row['scheduler']:.1%} |")
    return [head, "\n".join(lines)]


def soak(bench: dict[str, Any]) -> list[str]:
    """A file of ``soak.py``."""
    counts, memory = bench["counts"], bench["memory"]
    failed = sum(count for name, count in counts.items() if name.startswith("failed"))
    return [
        f"**Soak**, {bench['server']['command'].split('--model ')[1].split()[0]}: {counts['ended']:,} random requests "
        f"in {bench['seconds'] / 60:.0f} minutes. {counts['kept']:,} answers were compared with the library's, bit for "
        f"bit; {counts['cancelled']:,} clients hung up or were about to, and {counts['malformed']:,} requests were "
        f"malformed. {failed} failures. Memory grew by {memory['grown_mib']:.0f} MiB in the second half; the server "
        f"ended with code {bench['exit_code']}."
    ]


def arms(bench: dict[str, Any]) -> Iterator[str]:
    """What each server ran."""
    for name, arm in bench["arms"].items():
        yield f"- {name} ({arm['version']}): `{arm['command']}`"


def machine(bench: dict[str, Any]) -> str:
    """The CPU."""
    return f"{bench['machine']['cpu']}, {bench['machine']['threads']} threads"
