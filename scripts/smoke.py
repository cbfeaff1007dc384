"""Use an installed Outrider as its user would: python -I scripts/smoke.py, with an interpreter that has it installed.

With torch a model answers, plain and speculative; without it everything that needs none is used.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import outrider
from outrider.kernels.native import cpu, missing
from outrider.models.shipped_heads import shipped_heads

ROOT: Final = Path(__file__).resolve().parents[1]
COMMANDS: Final = (["--help"], ["info"])
"""Those that need no torch."""
NAMED: Final = "smollm2-135m-eagle3"


def main() -> None:
    """Raise at the first thing that is not as it should be."""
    packages = Path(sysconfig.get_path("purelib")).resolve()
    check(Path(outrider.__file__).resolve().is_relative_to(packages), f"{outrider.__file__} is not what was installed")
    check(version("outrider") == outrider.__version__, f"the metadata says {version('outrider')}")
    check(cpu is not None, str(missing))
    heads = {head.name: head.folder for head in shipped_heads()}
    due = {config.parent.name for config in (ROOT / "assets" / "heads").glob("*/config.json")}
    check(heads.keys() == due, f"the heads {sorted(heads)} were found, {sorted(due)} were installed")
    check(all(folder.is_relative_to(packages) for folder in heads.values()), f"heads elsewhere: {heads}")
    check(len(entry_points(group="outrider.heads")) == 1, "the heads are announced more than once")
    commands()
    if find_spec("torch") is not None:
        answers()
    sys.stdout.write(f"Python {sys.version.split()[0]}: installed, {cpu.kernel_name()}, {len(heads)} heads\n")


def commands() -> None:
    """The command line, as its own script."""
    script = Path(sysconfig.get_path("scripts")) / "outrider"
    for arguments in COMMANDS:
        subprocess.run([script, *arguments], check=True, stdout=subprocess.DEVNULL)


def answers() -> None:
    """A model's text, plain and speculative: the demo's with a head that came along, or a tiny one."""
    from outrider import LLM, SamplingParams, Speculation
    from outrider.heads.loading import read_head
    from outrider.models.loading import named_models

    check(read_head(NAMED).kind == "eagle3", f"{NAMED} is not read by its name")
    params = SamplingParams(max_tokens=24, temperature=0.7, seed=3)
    with tempfile.TemporaryDirectory() as folder:
        there = next((str(path) for name, path in named_models().items() if name.startswith("SmolLM2-135M")), None)
        drafts = Speculation("auto", options={"model": NAMED} if there else {})
        model = there or _tiny(Path(folder))
        plain, fast = (
            LLM(model, speculation=plan).generate("One, two, three, one, two, three,", params)[0]
            for plan in ("none", drafts)
        )
    check(plain.token_ids == fast.token_ids, f"{plain.text!r} became {fast.text!r}")
    check(len(plain.token_ids) > 0, "nothing was answered")
    sys.stdout.write(f"{Path(model).name}: {fast.text!r}\n")


def _tiny(folder: Path) -> str:
    sys.path.insert(0, str(ROOT / "tests"))
    from tiny_folder import make_folder

    return str(make_folder(folder / "tiny"))


def check(sound: bool, problem: str) -> None:
    """Raise where something is not sound."""
    if not sound:
        raise SystemExit(problem)


if __name__ == "__main__":
    main()
