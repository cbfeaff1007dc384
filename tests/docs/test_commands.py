"""Every command and every snippet of the README and the how-tos runs as written."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_model

from outrider import LLM, SamplingParams
from outrider.drafters.base import REGISTRY

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / page for page in ("howto.md", "study.md", "coming_from.md")),
]
COMING_FROM = ROOT / "docs" / "coming_from.md"
LARGE = "Qwen2.5-Coder"
INTERACTIVE = {"chat": "/exit\n"}
SHORTER = {
    "audit": {"--scope": "greedy"},
    "bench": {"--limit": "2", "--max-tokens": "24"},
    "study": {"--max-tokens": "24"},
}
"""What commands do here that do not say it: less than for a user.  ``tests/real`` runs a whole audit."""
EXAMPLE_IMPORTS = """
from __future__ import annotations
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar
from outrider.drafters.base import DraftContext, Drafter, Needs, Workbench, register
from outrider.options import Role, option
from outrider.tree import TokenTree
"""
"""What the example leaves to its reader."""
LONG = {"make", "pip"}
"""They install; continuous integration runs ``make test`` itself, and the demo's script is tested below."""

SERVER = ["outrider", "serve"]
"""It runs until it is stopped; ``test_serving.py`` starts it."""


def blocks(language: str) -> list[tuple[str, str]]:
    """(place, text) of each code block of a language."""
    found = []
    for page in PAGES:
        if page.exists():
            for match in re.finditer(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
                line = page.read_text(encoding="utf-8")[: match.start()].count("\n") + 1
                found.append((f"{page.name}:{line}", match.group(1)))
    return found


def commands() -> list[tuple[str, list[str]]]:
    """Each command line of the shell blocks, comments and continuations taken care of."""
    found = []
    for place, text in blocks("sh"):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] not in LONG and words[:2] != SERVER:
                found.append((place, words))
    return found


def shortened(words: list[str]) -> list[str]:
    """A command that takes less time."""
    name = " ".join(itertools.takewhile(lambda word: not word.startswith("-"), words[1:]))
    return [
        *words,
        *(part for option, value in SHORTER.get(name, {}).items() if option not in words for part in (option, value)),
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where commands run: the files that pages speak of are there."""
    rows = [
        {"id": f"p{i}", "category": "count", "turns": [f"Count from {i} to {i + 5}, then do it again."]}
        for i in range(2)
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return tmp_path


def run(words: list[str], folder: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        words, cwd=folder, input=text, capture_output=True, text=True, timeout=900, env=os.environ | {"PATH": search}
    )


def mark(words: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.real, pytest.mark.pair] if LARGE in words else [pytest.mark.real]


@pytest.mark.parametrize(
    ("place", "words"),
    [pytest.param(place, words, marks=mark(" ".join(words)), id=f"{place} {words[1]}") for place, words in commands()],
)
def test_command(place: str, words: list[str], folder: Path) -> None:
    done = run(shortened(words), folder, INTERACTIVE.get(words[1], ""))
    assert done.returncode == 0, f"{place}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


@pytest.mark.parametrize(
    ("place", "code"), [pytest.param(place, code, marks=mark(code), id=place) for place, code in blocks("python")]
)
def test_snippet(place: str, code: str, folder: Path) -> None:
    done = run([sys.executable, "-c", code], folder)
    assert done.returncode == 0, f"{place}: {done.stderr[-2000:]}"


def columns() -> list[str]:
    """The code in the right-hand columns of the page for those who come from elsewhere."""
    rows = [line for line in COMING_FROM.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [match.group(1) for row in rows if (match := re.search(r"\| `([^`]+)` \|$", row))]


@pytest.mark.real
def test_what_is_written_here_instead() -> None:
    """One process runs the page's code and then every right-hand column, so that the model is loaded once."""
    (setup,) = [code for place, code in blocks("python") if place.startswith(COMING_FROM.name)]
    names: dict[str, Any] = {}
    exec(setup, names)
    for code in columns():
        print(code)  # shown beside whatever it raises
        found = eval(code, names)
        assert found or isinstance(found, LLM) or code.endswith(".close()"), f"{code} gives nothing"


@pytest.mark.real
def test_the_demo_keeps_its_word(folder: Path) -> None:
    done = run([sys.executable, str(ROOT / "scripts" / "demo.py")], folder)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "identical: yes" in done.stdout


def test_pages_have_commands_and_snippets() -> None:
    """Were the pages read wrongly, the tests above would pass by running nothing."""
    assert len(commands()) >= 6
    assert len(blocks("python")) >= 5
    rows = [line for line in COMING_FROM.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert len(columns()) == len([row for row in rows if not row.endswith("| Outrider |")]) >= 30


def test_the_method_in_one_file_drafts() -> None:
    """The example of the contributors' page: registered as it stands there, it drafts and changes no text."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = re.search(r"## A new method in one file.*?```python\n(.*?)```", page, re.S)
    assert code is not None
    names: dict[str, Any] = {}
    exec(f"{EXAMPLE_IMPORTS}\n{code.group(1)}", names)
    prompt, params = [7] * 6, SamplingParams(max_tokens=24)
    try:
        found = LLM.from_model(tiny_model(0), speculation=names["Echo"]()).generate(prompt, params)[0]
    finally:
        REGISTRY.pop("echo", None)
    assert found.token_ids == LLM.from_model(tiny_model(0), speculation="none").generate(prompt, params)[0].token_ids
    assert sum(found.speculation.drafted) > 0, "it never drafted"


def anchors(page: Path) -> set[str]:
    """What a page's headings are called in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not leads_somewhere(page, target)
    ]
    assert broken == []


def leads_somewhere(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    place = page.parent / name if name else page
    return place.exists() and (not anchor or anchor in anchors(place))
