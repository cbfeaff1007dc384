"""The servers that the scripts measure: how each is started, watched and stopped."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from outrider import __version__
from outrider.models.loading import find

LLAMA_SERVER: Final = Path.home() / ".cache" / "outrider" / "peers" / "llama-server-0.3.36" / "llama-server"
START_S: Final = 300
STOP_S: Final = 60
_ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:(\d+)")
_LOG_END: Final = 2000
"""Characters of a log in a message."""


def ready_address(log: str) -> str | None:
    """The address in what a server printed so far; None if it has not said it yet."""
    found = _ADDRESS.search(log)
    return found.group() if found else None


@dataclass(frozen=True)
class Arm:
    """A server with its settings."""

    name: str
    command: tuple[str, ...]
    """The command that starts it; empty for a server that runs already."""
    version: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields that its requests get."""
    unshared: Mapping[str, Any] = field(default_factory=dict)
    """Fields that keep a request from reusing the rows of others; ``{}`` in a text stands for the request's name."""
    base: str = ""
    """The address of a server that runs already."""

    def alone(self, name: str) -> dict[str, Any]:
        """The fields that keep the request of this name from reusing the rows of others."""
        return {key: name if value == "{}" else value for key, value in self.unshared.items()}

    def facts(self) -> dict[str, Any]:
        """What ran, for results; folders are left out."""
        shown = [Path(part).name if part.startswith("/") else part for part in self.command]
        return {
            "command": shlex.join(shown) or self.base,
            "version": self.version,
            "extra": dict(self.extra),
        }


class Server:
    """A running server.

    Args:
        arm: the server and its settings.

    Raises:
        SystemExit: the server does not start; the message has the end of its log.
    """

    def __init__(self, arm: Arm) -> None:
        self.arm, self.base, self.process = arm, arm.base, None
        if arm.command:
            signal.signal(signal.SIGTERM, _end)  # a script that is ended leaves no server behind
            self._log = Path(tempfile.mkstemp(prefix=f"{re.sub(r'[^a-z0-9]+', '-', arm.name)}-", suffix=".log")[1])
            with self._log.open("wb") as log:
                self.process = subprocess.Popen(arm.command, stdout=log, stderr=subprocess.STDOUT)
            try:
                self.base = self._ready()
            except BaseException:
                self.process.kill()
                raise

    def _ready(self) -> str:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process is not None and self.process.poll() is None:
            address = ready_address(self.log())
            if address and _healthy(address):
                return address
            time.sleep(0.05)
        raise SystemExit(f"{self.arm.name} did not start: {shlex.join(self.arm.command)}\n{self.log()[-_LOG_END:]}")

    def log(self) -> str:
        """What the server has printed so far."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self.arm.command else ""

    @property
    def memory_bytes(self) -> int | None:
        """Resident memory; None for a server that the script did not start."""
        if self.process is None:
            return None
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found.group(1)) * 1024 if found else None

    @property
    def cpu_s(self) -> float | None:
        """CPU seconds since its start; None for a server that the script did not start."""
        if self.process is None:
            return None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def terminate(self) -> None:
        """Ask the server to finish what it has begun, and to end."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int | None:
        """End the server and return its exit code; one that does not end by itself is killed."""
        if self.process is None:
            return None
        self.terminate()
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        if self.arm.command:
            self._log.unlink(missing_ok=True)


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _healthy(base: str) -> bool:
    try:
        with urllib.request.urlopen(f"{base}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def running(arms: Sequence[Arm]) -> Iterator[list[Server]]:
    """Start servers one after the other, and stop them all at the end."""
    servers: list[Server] = []
    try:
        servers.extend(Server(arm) for arm in arms)  # keeps those that have started if a later one fails
        yield servers
    finally:
        for server in servers:
            server.__exit__()


def idle_cpu(servers: Sequence[Server], seconds: float = 1.0) -> dict[str, float]:
    """Cores that idle servers use; it must be next to none, because all of them run while one is measured."""
    before = {server.arm.name: server.cpu_s for server in servers}
    time.sleep(seconds)
    after = {server.arm.name: server.cpu_s for server in servers}
    return {name: (after[name] - begun) / seconds for name, begun in before.items() if begun is not None}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which servers to measure."""
    parser.add_argument("--model", required=True, help="a .gguf file, or a name in the models folder")
    parser.add_argument("--servers", default="plain,speculative,llama", help="which of plain, speculative and llama")
    parser.add_argument("--context", type=int, default=2048, help="tokens of each of llama-server's slots")
    parser.add_argument("--threads", type=int, default=2, help="of each server; set it to the physical cores")
    parser.add_argument("--algorithm", default="auto", help="drafting method of the speculative server")
    parser.add_argument("--outrider-args", type=shlex.split, default=[], help="more options of outrider serve")
    parser.add_argument("--llama-server", type=Path, default=LLAMA_SERVER, help="see build_llama_server.py")
    parser.add_argument("--llama-args", type=shlex.split, default=[], help="more options of llama-server")
    parser.add_argument("--url", action="append", default=[], help="also a server that runs already: NAME=http://…")


def chosen_arms(wishes: argparse.Namespace, clients: int) -> list[Arm]:
    """The servers that the options ask for, each with room for so many clients."""
    makers = {
        "plain": lambda: outrider_arm(wishes, "outrider plain", "none"),
        "speculative": lambda: outrider_arm(wishes, "outrider speculative", wishes.algorithm),
        "llama": lambda: llama_arm(wishes, clients),
    }
    names = [name for name in wishes.servers.split(",") if name]
    if unknown := set(names) - set(makers):
        raise SystemExit(f"--servers takes {', '.join(makers)}, not {', '.join(sorted(unknown))}")
    urls = (url.partition("=")[::2] for url in wishes.url)
    return [makers[name]() for name in names] + [Arm(name, (), base=base) for name, base in urls]


def outrider_arm(wishes: argparse.Namespace, name: str, algorithm: str) -> Arm:
    """``outrider serve`` with a drafting method."""
    options = [
        "--model",
        wishes.model,
        "--port",
        "0",
        "--algorithm",
        algorithm,
        "--context-length",
        str(wishes.context),
        "--threads",
        str(wishes.threads),
    ]
    command = [sys.executable, "-m", "outrider", "serve", *options, *wishes.outrider_args]
    return Arm(name, tuple(command), f"outrider {__version__}", unshared={"cache_salt": "{}"})


def llama_arm(wishes: argparse.Namespace, clients: int) -> Arm:
    """``llama-server`` with a slot for every client, at its best settings for a few CPU cores."""
    options = {
        "-m": str(find(wishes.model)[0]),
        "--host": "127.0.0.1",
        "--port": str(free_port()),
        "-np": str(clients),
        "-c": str(clients * wishes.context),  # shared out among the slots
        "-t": str(wishes.threads),
        "-tb": str(wishes.threads),
        "-b": "2048",
        "-ub": "512",
        "-fa": "on",
        "--cache-reuse": "256",
    }
    flags = [part for pair in options.items() for part in pair]
    binary = str(wishes.llama_server.expanduser())
    command = (binary, *flags, *wishes.llama_args)
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    version = (said.stdout + said.stderr).strip().splitlines()
    known = ", ".join(part for part in (_build(binary).get("package", ""), version[0] if version else "") if part)
    return Arm(f"llama-server -np {clients}", command, known, unshared={"cache_prompt": False})


def builds(wishes: argparse.Namespace) -> dict[str, Any]:
    """How the programs of other projects were built, by name."""
    return {"llama-server": _build(str(wishes.llama_server.expanduser()))} if "llama" in wishes.servers else {}


def _build(binary: str) -> dict[str, Any]:
    """What ``build_llama_server.py`` wrote beside its binary; nothing for another one."""
    file = Path(binary).parent / "build.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found


def free_port() -> int:
    """A port of this machine that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
