"""Build the CPU kernels with the address and undefined-behaviour sanitizers and run their parity tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
BUILD: Final = ROOT / "build" / "sanitize"
TESTS: Final = (
    "tests/unit/test_cpu_kernels.py",
    "tests/unit/test_best_scores.py",
    "tests/unit/test_packed_linear.py",
    "tests/parity/test_native_model.py",
    "tests/parity/test_native_heads.py",
)
RUN: Final = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("outrider.kernels._cpu", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["outrider.kernels._cpu"] = module
spec.loader.exec_module(module)
import pytest
raise SystemExit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def main() -> int:
    """Build, then test."""
    import nanobind

    options = ["-DCMAKE_BUILD_TYPE=Release", "-DOUTRIDER_SANITIZE=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    options.append(f"-Dnanobind_DIR={nanobind.cmake_dir()}")
    subprocess.run(["cmake", "-S", ROOT, "-B", BUILD, *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", BUILD, "--parallel", str(os.cpu_count() or 1)], check=True)
    (module,) = BUILD.glob("_cpu*.so")
    # The interpreter is not built with the sanitizers, so theirs must be the first library it loads.
    libraries = [
        subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so", "libstdc++.so")
    ]
    environment = os.environ | {
        "LD_PRELOAD": ":".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    return subprocess.run(
        [sys.executable, "-c", RUN, module, *TESTS], cwd=ROOT, env=environment, check=False
    ).returncode


if __name__ == "__main__":
    raise SystemExit(main())
