"""Build ``llama-server`` from the llama.cpp that lies in llama-cpp-python's source distribution.

    python benchmarks/peers/build_llama_server.py [--version 0.3.36] [--folder ~/.cache/outrider/peers] [--jobs 2]

The package index is the only source; cmake, a C++ compiler and a Python with pip are needed.  The binary is built for
this CPU (``GGML_NATIVE``), in release mode, without what a server on this machine does not use: HTTPS and the web page,
whose files the source distribution lacks.  The last line on standard output is the path of the binary.  Beside it lies
``build.json``, which says what was built and how.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

PACKAGE: Final = "llama-cpp-python"
VERSION: Final = "0.3.36"
FOLDER: Final = Path.home() / ".cache" / "outrider" / "peers"
SWITCHES: Final = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "ON",
    "LLAMA_BUILD_COMMON": "ON",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
}


def main() -> int:
    """Download, unpack, build, and print the path of the binary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default=VERSION, help=f"version of {PACKAGE}")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where everything goes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    parser.add_argument("--python", default=sys.executable, help="a Python that has pip, for the download")
    wishes = parser.parse_args()
    home = wishes.folder.expanduser() / f"llama-server-{wishes.version}"
    binary = home / "llama-server"
    if not binary.exists():
        home.mkdir(parents=True, exist_ok=True)
        archive = download(wishes.python, wishes.version, home)
        built = build(unpack(archive, home) / "vendor" / "llama.cpp", home / "build", wishes.jobs)
        facts = {
            "package": f"{PACKAGE}=={wishes.version}",
            "sdist_sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
            "switches": SWITCHES,
            "compiler": said(["c++", "--version"]).splitlines()[0],
        }
        (home / "build.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        shutil.copy2(built, binary)  # last: a binary that is there is whole
    sys.stdout.write(f"{binary}\n")
    return 0


def download(python: str, version: str, folder: Path) -> Path:
    """Fetch the source distribution."""
    name = f"{PACKAGE}=={version}"
    pip = [python, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--no-binary", PACKAGE]
    run([*pip, "--dest", str(folder), name])
    return next(folder.glob("*.tar.gz"))


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack an archive and return the folder that it holds."""
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
        return folder / files.getnames()[0].split("/")[0]


def build(source: Path, folder: Path, jobs: int) -> Path:
    """Configure and build the server, and return its binary."""
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    flags = [f"-D{name}={value}" for name, value in SWITCHES.items()]
    run(["cmake", "-S", str(source), "-B", str(folder), *generator, *flags])
    run(["cmake", "--build", str(folder), "--target", "llama-server", "-j", str(jobs)])
    return folder / "bin" / "llama-server"


def run(command: list[str]) -> None:
    """Run a command; what it prints goes to standard error."""
    subprocess.run(command, check=True, stdout=sys.stderr)


def said(command: list[str]) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    raise SystemExit(main())
