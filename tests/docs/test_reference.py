"""Generated pages equal what the code says now."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[2] / "docs"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_fresh() -> None:
    module = load("generate_reference")
    assert (DOCS / "reference.md").read_text(encoding="utf-8") == module.render(), "run docs/generate_reference.py"


def test_the_tables_of_results_are_fresh() -> None:
    module = load("generate_results")
    stale = [page.name for page in module.PAGES if page.read_text(encoding="utf-8") != module.render(page)]
    assert stale == [], "run docs/generate_results.py"


def test_the_picture_of_speeds_is_fresh() -> None:
    module = load("generate_results")
    assert module.SPEEDS.read_text(encoding="utf-8") == module.speeds_picture(module.comparisons()), (
        "run docs/generate_results.py"
    )
