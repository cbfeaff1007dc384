"""Install the wheels into fresh environments and use them there, on the oldest and the newest Python of this machine.

python scripts/check_installed.py
python scripts/check_installed.py --oldest   # prints the oldest Python that serves, and nothing else

A wheel is built for each of the two, installed beside that of the heads, and used (`smoke.py`); the compiled kernels
must compute the same bits on both (`kernel_bits.py`).  Where pip would install a CUDA build of torch, several gigabytes
big, torch is left out, and a line says so.  What is proved then: the wheel builds, every dependency has a release for
that Python, all modules compile without a warning, the kernels compute, and the heads are found.  No model is run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
FIRST: Final = (3, 11)
CONSTRAINTS: Final = ("-c", str(ROOT / "constraints.txt"))
QUIET: Final = ("--quiet", "--disable-pip-version-check")
TELL: Final = """
import ensurepip, sys, sysconfig, venv
from pathlib import Path
assert sys.implementation.name == "cpython" and sys.version_info.releaselevel == "final"
assert (Path(sysconfig.get_path("include")) / "Python.h").is_file()
print(*sys.version_info[:3])
"""
"""Fails where no environment can be made, or nothing compiled for it."""
_TORCH: Final = re.compile(r"torch\b")


class Python(NamedTuple):
    """An interpreter that environments can be made with."""

    version: tuple[int, int, int]
    path: Path

    @property
    def name(self) -> str:
        """Its version in words."""
        return f"Python {'.'.join(map(str, self.version))}"


def pythons() -> list[Python]:
    """A Python of each minor version that serves, the oldest first; of several the first on the path."""
    found: dict[tuple[int, int], Python] = {}
    for path in _candidates():
        told = subprocess.run([path, "-I", "-c", TELL], capture_output=True, text=True, check=False, cwd="/")
        if told.returncode == 0:
            major, minor, micro = map(int, told.stdout.split())
            version = (major, minor, micro)
            if version >= FIRST:
                found.setdefault(version[:2], Python(version, path))
    return [found[version] for version in sorted(found)]


def _candidates() -> Iterator[Path]:
    """Interpreters on the path by name, then pyenv's."""
    name = re.compile(r"python3(\.\d+)?")
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if Path(folder).is_dir():
            yield from sorted(path for path in Path(folder).iterdir() if name.fullmatch(path.name))
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from sorted(versions.glob("3.*/bin/python3"))


def pip(python: Path, *arguments: str | Path) -> None:
    """Run pip of an environment."""
    subprocess.run([python, "-m", "pip", *arguments, *QUIET], check=True)


def checked(python: Python, folder: Path) -> str:
    """Build, install and use the wheels; returns the digest of what the kernels compute."""
    subprocess.run([python.path, "-m", "venv", folder / "venv"], check=True)
    inside, wheels = folder / "venv" / "bin" / "python", folder / "wheels"
    for project in (ROOT, ROOT / "assets" / "heads"):
        pip(inside, "wheel", "--no-deps", "--wheel-dir", wheels, project)
    (ours,), built = wheels.glob("outrider-*.whl"), sorted(wheels.glob("*.whl"))
    needed = resolved(inside, ours, folder / "report.json")
    if any(name.startswith("nvidia-") for name in needed):
        say(f"{python.name}: pip would install a CUDA build of torch, so torch is left out and no model is run")
        pip(inside, "install", *CONSTRAINTS, *(need for need in requirements(inside, ours) if not _TORCH.match(need)))
        pip(inside, "install", "--no-deps", *built)
    else:
        pip(inside, "install", *CONSTRAINTS, *built)
    modules = subprocess.run(
        [inside, "-c", "import outrider; print(outrider.__path__[0])"],
        check=True,
        capture_output=True,
        text=True,
        cwd="/",
    ).stdout.strip()
    subprocess.run([inside, "-W", "error", "-m", "compileall", "-q", "-f", modules], check=True)
    subprocess.run([inside, "-I", ROOT / "scripts" / "smoke.py"], check=True, cwd=folder)
    bits = [inside, "-I", ROOT / "scripts" / "kernel_bits.py"]
    return subprocess.run(bits, check=True, capture_output=True, text=True, cwd=folder).stdout.strip()


def resolved(inside: Path, wheel: Path, report: Path) -> set[str]:
    """Names of all that the wheel would bring along; fails where something has no release for this Python."""
    pip(inside, "install", "--dry-run", "--only-binary", ":all:", "--report", report, *CONSTRAINTS, wheel)
    told = json.loads(report.read_text(encoding="utf-8"))
    return {item["metadata"]["name"].lower() for item in told["install"]}


def requirements(inside: Path, wheel: Path) -> list[str]:
    """What the wheel itself asks for, extras left out; versions are those of the constraints."""
    code = (
        "import sys; from importlib.metadata import PathDistribution as D; from zipfile import Path as Z; "
        "(info,) = (p for p in Z(sys.argv[1]).iterdir() if p.name.endswith('.dist-info')); "
        "print(*(r for r in D(info).requires if 'extra ==' not in r), sep='\\n')"
    )
    told = subprocess.run([inside, "-c", code, wheel], check=True, capture_output=True, text=True).stdout
    return told.splitlines()


def say(line: str) -> None:
    """Print a line now, since other processes print too."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Check the oldest and the newest."""
    found = pythons()
    if sys.argv[1:] == ["--oldest"]:
        say(str(found[0].path if found else sys.executable))
        return 0
    if not found:
        say("no Python of this machine can make environments and compile for itself: nothing is checked")
        return 0
    if len(found) == 1:
        say(f"{found[0].name} is the only one on this machine: no newer one is checked")
    digests = {}
    for python in dict.fromkeys((found[0], found[-1])):
        with tempfile.TemporaryDirectory() as folder:
            digests[python.name] = checked(python, Path(folder))
    same = len(set(digests.values())) == 1
    say(f"the kernels compute {'the same bits' if same else f'different bits: {digests}'}")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
