"""How many threads, which kernels: what may be asked of the compiled module, and what is said of a slow one."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from outrider.errors import ConfigError
from outrider.kernels import native
from outrider.kernels.native import cpu, kernel_names, most_threads, set_threads, use_kernels, warn_of_slow_kernels


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(native.KERNELS_VARIABLE, "")
    threads = cpu.threads() if cpu else 1
    yield
    set_threads(threads)
    use_kernels(None)


@pytest.mark.parametrize("count", [0, -1, most_threads() + 1, 1025, 100_000])
def test_threads_past_the_bounds_are_refused(count: int) -> None:
    before = cpu.threads() if cpu else None
    with pytest.raises(ConfigError, match=f"threads must be from 1 to {most_threads()} on this machine, not {count}"):
        set_threads(count)
    assert before == (cpu.threads() if cpu else None)


@pytest.mark.skipif(cpu is None, reason="there are no kernels")
def test_the_bounds_are_served() -> None:
    for count in (most_threads(), 1):
        set_threads(count)
        assert cpu.threads() == count


@pytest.mark.skipif(cpu is None, reason="there are no kernels")
def test_kernels_are_chosen_by_name_here_and_in_processes_to_come() -> None:
    ask = "from outrider.kernels.native import cpu; print(cpu.kernel_name())"
    for name in kernel_names():
        use_kernels(name)
        assert cpu.kernel_name() == name
        done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == name
    use_kernels(None)
    assert cpu.kernel_name() == kernel_names()[0]
    assert native.KERNELS_VARIABLE not in os.environ


def test_kernels_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="abacus" if cpu else "not built"):
        use_kernels("abacus")


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.KERNELS_VARIABLE, "abacus")
    words = [sys.executable, "-c", "import sys; from outrider.cli import main; sys.exit(main(['info']))"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("outrider: the environment variable OUTRIDER_KERNELS cannot be followed: ")
    assert done.stderr.count("\n") == 1


def test_slow_kernels_are_told_once_and_only_where_there_are_no_better(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    native._warn.cache_clear()
    with caplog.at_level(logging.WARNING, "outrider"):
        monkeypatch.setattr(native, "kernel_names", lambda: ["avx2", "portable"])
        warn_of_slow_kernels()
        assert caplog.messages == []
        monkeypatch.setattr(native, "kernel_names", lambda: ["portable"])
        warn_of_slow_kernels()
        warn_of_slow_kernels()
    native._warn.cache_clear()
    assert len(caplog.messages) == 1
    assert "no AVX2" in caplog.messages[0]
