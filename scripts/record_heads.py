"""Write down beside each shipped head which model it is for and where it pays.

python scripts/record_heads.py            # measured.json, from the files under results/
python scripts/record_heads.py --targets  # target.safetensors as well, from the models in the models folder

After a new measurement (`outrider bench … --json results/NAME.json`) name the file in `SOURCES` and run this again.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from outrider.heads.checkpoint import CONFIG
from outrider.models.identity import identify
from outrider.models.loading import find
from outrider.models.shipped_heads import MEASURED, TARGET, Measurement

ROOT: Final = Path(__file__).resolve().parents[1]
HEADS: Final = ROOT / "assets" / "heads"
LOOKUPS: Final = ("ngram", "suffix")


class Source(NamedTuple):
    """Where a head was measured."""

    text: str
    """``code`` or ``chat``."""
    file: str
    """Under ``results/``."""
    arm: str
    """What the head is called in the file."""


SOURCES: Final = {
    "qwen2.5-coder-1.5b-eagle3": (
        Source("code", "eagle3_humaneval_qwen2.5_coder_1.5b.json", "lookup_model"),
        Source("chat", "eagle3_mt_bench_qwen2.5_coder_1.5b.json", "lookup_model"),
        Source("code", "study_humaneval_qwen2.5_coder_1.5b.json", "lookup_model:eagle3:topk=2"),
        Source("chat", "study_mt_bench_qwen2.5_coder_1.5b.json", "lookup_model:eagle3:topk=2"),
    ),
    "smollm2-135m-dspark": (
        Source("code", "study_humaneval_smollm2_135m.json", "lookup_model:dspark"),
        Source("chat", "study_mt_bench_smollm2_135m.json", "lookup_model:dspark"),
    ),
    "smollm2-135m-eagle3": (
        Source("code", "study_humaneval_smollm2_135m.json", "lookup_model:eagle3"),
        Source("chat", "study_mt_bench_smollm2_135m.json", "lookup_model:eagle3"),
    ),
}
"""By head; every source of one head has the same method and options."""


def record(head: str) -> dict[str, Any]:
    """What ``measured.json`` of a head holds."""
    read = [(source, json.loads((ROOT / "results" / source.file).read_text())) for source in SOURCES[head]]
    setups = [_setup(bench, source) for source, bench in read]
    if any(setup != setups[0] for setup in setups):
        raise SystemExit(f"{head}: its sources were measured with different options: {setups}")
    measurements = [asdict(each) for source, bench in read for each in _measurements(source, bench)]
    return {"target": read[0][1]["model"]["name"], **setups[0], "measurements": measurements}


def _setup(bench: dict[str, Any], source: Source) -> dict[str, Any]:
    """Method and options of an arm; the head itself is named by where it lay."""
    (arm,) = (arm for arm in bench["algorithms"] if arm["name"] == source.arm)
    options = {name: value for name, value in arm["options"].items() if not isinstance(value, str)}
    return {"method": arm["method"], "options": options}


def _measurements(source: Source, bench: dict[str, Any]) -> list[Measurement]:
    whole = [entry for entry in bench["results"] if entry["category"] == "all"]
    machine, work = bench["machine"], bench["workload"]
    found = []
    for entry in whole:
        if entry["algorithm"] != source.arm:
            continue
        beside = [e for e in whole if e["setting"] == entry["setting"] and e["algorithm"] in LOOKUPS]
        found.append(
            Measurement(
                text=source.text,
                temperature=entry["temperature"],
                prompts=f"{work['prompts']} of {work['file']}, at most {work['max_tokens']} tokens",
                speedup=round(entry["speedup"], 3),
                interval=tuple(round(end, 3) for end in entry["speedup_interval"]),
                lookup=max((round(e["speedup"], 3) for e in beside), default=None),
                machine=f"{machine['cpu']}, {machine['kernels']}, {machine['threads']} threads",
                date=bench["created"][:10],
                source=source.file,
            )
        )
    return found


def main(targets: bool) -> None:
    """Write the files of every head."""
    for head in sorted(SOURCES):
        folder = HEADS / head
        (folder / MEASURED).write_text(json.dumps(record(head), indent=1) + "\n", encoding="utf-8")
        if targets:
            name = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["target"]["name"]
            identify(find(name)[0]).write(folder / TARGET)


if __name__ == "__main__":
    main("--targets" in sys.argv[1:])
