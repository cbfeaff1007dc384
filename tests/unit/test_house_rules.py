"""Rules of the house that a machine can check: capabilities not names, sizes, layers, what the text may speak of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.drafters.base import methods
from outrider.verify import registered

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "outrider"
FILES = sorted(SOURCE.rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION = 400, 60

LAYERS = {
    "errors": set(),
    "law": set(),
    "prompts": {"errors", "prompts"},
    "sampling": {"errors", "kernels", "law", "sampling"},
    "tree": {"law"},
    "kernels": {"errors", "kernels"},
    "kv": {"errors", "kv"},
    "verify": {"errors", "law", "sampling", "tree", "verify"},
    "target": {"errors", "kernels", "kv", "target", "tree"},
    "heads": {"errors", "heads", "kernels", "kv", "target", "tree"},
    "drafters": {"drafters", "errors", "heads", "kv", "law", "sampling", "target", "tree", "verify"},
}
"""What each part may import of ours; the engine imports protocols, and nothing imports the engine but its users."""


WORDS_OF_OTHERS = {("target/gguf_config.py", "none")}
"""A file and a word that names a method there only by chance: a file format's kind of rope scaling."""


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def name_questions(text: str, names: set[str]) -> Iterator[str]:
    """Places that compare with, match on, or key a dict by one of the names."""
    for node in ast.walk(ast.parse(text)):
        suspects: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            suspects = [node.left, *node.comparators]
            suspects += [
                item for part in suspects if isinstance(part, (ast.Tuple, ast.Set, ast.List)) for item in part.elts
            ]
        elif isinstance(node, ast.Dict):
            suspects = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.MatchValue):
            suspects = [node.value]
        for suspect in suspects:
            value = suspect.value if isinstance(suspect, ast.Constant) else None
            if isinstance(value, str) and value.lower().replace("-", "_") in names:
                yield f"line {suspect.lineno} asks for {value!r}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nobody_asks_a_method_for_its_name(path: Path) -> None:
    here = path.relative_to(SOURCE).as_posix()
    names = {name for name in methods() if name != path.stem and (here, name) not in WORDS_OF_OTHERS}
    names |= {rule.replace("-", "_") for rule in registered()}
    assert list(name_questions(path.read_text(), names)) == []


def test_the_name_check_sees_a_question() -> None:
    text = 'def f(name):\n    if name == "NGRAM":\n        return {"block": 1}\n    return name in ("suffix",)\n'
    found = name_questions(text, {"ngram", "suffix", "block"})
    assert sorted(found) == ["line 2 asks for 'NGRAM'", "line 3 asks for 'block'", "line 4 asks for 'suffix'"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= LONGEST_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
            assert node.end_lineno - node.lineno + 1 <= LONGEST_FUNCTION, f"{node.name} is too long to read at once"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    allowed = LAYERS.get(part_of(path))
    if allowed is None:
        return
    for node in ast.walk(_without_type_checking(ast.parse(path.read_text()))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            if name.startswith("outrider."):
                assert name.split(".")[1] in allowed, f"{path.name} imports {name}"


def _without_type_checking(tree: ast.Module) -> ast.Module:
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")
    ]
    return tree


def tracked_texts() -> list[Path]:
    kinds = {".py", ".md", ".toml", ".txt", ".json", ".html", ""}
    folders = ("src", "tests", "docs", "scripts", "benchmarks", "results", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file()]
    return [path for path in files if path.suffix in kinds and "__pycache__" not in path.parts]


def test_the_project_speaks_of_itself_alone() -> None:
    foreign = re.compile(r"/work/|/root/|/home/\w|\.\./shared|/opt/pypi|issue #?\d+ asks|\bhelper-\d")
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in tracked_texts()
        if path != Path(__file__)
        for match in foreign.finditer(path.read_text(errors="ignore"))
    ]
    assert found == []
