"""Run the same prompts through Outrider and other engines, interleaved, and tell the ratios.

See README.md in this folder for the set-up.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # the scripts' common part lies a folder up

from result import write_file

from outrider.bench.machine import facts
from outrider.bench.prompts import selected_prompts
from outrider.models.loading import find, open_model

HERE: Final = Path(__file__).parent
METHODS: Final = {
    "ngram": {"method": "ngram"},
    "suffix": {"method": "suffix"},
    "draft": {"method": "draft_model", "drafts": True},
    "lookup+draft": {"method": "lookup_model", "drafts": True, "num_steps": 6},
}


class Engine:
    """A worker process."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        hello = self._answer()
        self.version, self.build, self.arms = hello["version"], hello["build"], hello["arms"]

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> int:
    """Compare, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--select")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--llama", help="python of the environment that holds llama-cpp-python")
    parser.add_argument("--llama-draft", action="store_true", help="llama.cpp with the draft model as well")
    parser.add_argument("--openvino", help="python of the environment that holds openvino-genai")
    parser.add_argument("--methods", type=json.loads, default=METHODS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    wishes = parser.parse_args()
    engines = start(wishes)
    files = open_model(wishes.target)
    prompts = selected_prompts(wishes.prompts, wishes.select, wishes.limit)
    order = random.Random(wishes.seed)
    samples: list[dict[str, Any]] = []
    for prompt in track(prompts, description="comparing", console=Console(stderr=True)):
        text = files.tokenizer.apply_chat_template(prompt.turns)
        request = {
            "text": text,
            "token_ids": files.tokenizer.encode(text, add_special_tokens=False),
            "max_tokens": wishes.max_tokens,
        }
        arms = [(engine, arm) for engine in engines for arm in engine.arms]
        for engine, arm in order.sample(arms, len(arms)):
            answer = engine.ask(request | {"arm": arm})
            samples.append({"prompt": prompt.id, "engine": engine.name, "arm": arm, **answer})
    result = {
        "machine": facts(),
        "versions": {engine.name: engine.version for engine in engines},
        "builds": {engine.name: engine.build for engine in engines},
        "target": Path(wishes.target).name,
        "draft": Path(wishes.draft).name if wishes.draft else None,
        "prompts": {"file": wishes.prompts.name, "select": wishes.select, "count": len(prompts)},
        "max_tokens": wishes.max_tokens,
        "threads": wishes.threads,
        "arms": summarise(samples),
        "samples": samples,
    }
    result |= best(result["arms"])
    show(result)
    write_file(result, wishes.json)
    return 0


def start(wishes: argparse.Namespace) -> list[Engine]:
    """Start every engine that was given."""
    target = str(find(wishes.target)[0])
    draft = ["--draft", str(find(wishes.draft)[0])] if wishes.draft else []
    shared = ["--target", target, "--threads", str(wishes.threads)]
    methods = {arm: options for arm, options in wishes.methods.items() if draft or not options.get("drafts")}
    ours = [sys.executable, str(HERE / "outrider_worker.py"), *shared, *draft, "--methods", json.dumps(methods)]
    engines = [Engine("outrider", ours)]
    if wishes.llama:
        theirs = draft if wishes.llama_draft else []
        engines.append(Engine("llama.cpp", [wishes.llama, str(HERE / "llama_cpp_worker.py"), *shared, *theirs]))
    if wishes.openvino:
        engines.append(Engine("openvino", [wishes.openvino, str(HERE / "openvino_worker.py"), *shared]))
    return engines


def summarise(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tokens per second of every arm, and how many of its texts are its engine's plain ones."""
    plain = {(s["engine"], s["prompt"]): _text(s) for s in samples if s["arm"] == "plain"}
    arms = []
    for engine, arm in dict.fromkeys((s["engine"], s["arm"]) for s in samples):
        mine = [s for s in samples if (s["engine"], s["arm"]) == (engine, arm)]
        good = [s for s in mine if "error" not in s]
        tokens = sum(max(0, s["tokens"] - 1) for s in good)  # the first is the prompt's pass's
        seconds = sum(s["decode_s"] for s in good)
        whole = seconds + sum(s["prefill_s"] for s in good)
        arms.append(
            {
                "engine": engine,
                "arm": arm,
                "tokens_per_s": tokens / seconds if seconds else None,
                "end_to_end_tokens_per_s": sum(s["tokens"] for s in good) / whole if seconds else None,
                "texts": len(mine),
                "same_as_plain": sum(_text(s) == plain[engine, s["prompt"]] for s in good),
                "errors": sorted({s["error"] for s in mine if "error" in s}),
            }
        )
    return arms


def _text(sample: dict[str, Any]) -> Any:
    return sample.get("token_ids", sample.get("text"))


def best(arms: list[dict[str, Any]]) -> dict[str, Any]:
    """The best arm of each engine, and Outrider's over each of the others'."""
    ran = [arm for arm in arms if arm["tokens_per_s"]]
    winners = {arm["engine"]: arm for arm in sorted(ran, key=lambda arm: arm["tokens_per_s"])}
    ours = winners["outrider"]["tokens_per_s"]
    plain = next(arm["tokens_per_s"] for arm in ran if (arm["engine"], arm["arm"]) == ("outrider", "plain"))
    theirs = {arm["engine"]: arm["tokens_per_s"] for arm in ran if arm["arm"] == "plain"}
    return {
        "best": {engine: arm["arm"] for engine, arm in winners.items()},
        "ratio_of_best": {name: ours / arm["tokens_per_s"] for name, arm in winners.items() if name != "outrider"},
        "ratio_of_plain": {name: plain / speed for name, speed in theirs.items() if name != "outrider"},
    }


def show(result: dict[str, Any]) -> None:
    """Print a table."""
    table = Table("engine", "arm", "tokens/s", "end to end", "same as its plain", "errors")
    for arm in result["arms"]:
        speeds = [f"{arm[key]:.1f}" if arm[key] else "–" for key in ("tokens_per_s", "end_to_end_tokens_per_s")]
        same = f"{arm['same_as_plain']}/{arm['texts']}"
        table.add_row(arm["engine"], arm["arm"], *speeds, same, "; ".join(arm["errors"])[:60])
    console = Console()
    console.print(table)
    for what in ("ratio_of_best", "ratio_of_plain"):
        console.print(what, {name: round(value, 2) for name, value in result[what].items()})


if __name__ == "__main__":
    raise SystemExit(main())
