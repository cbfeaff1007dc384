"""Generated pages equal what the code says now."""

from __future__ import annotations

import importlib.util
import re
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


def test_the_page_of_the_library_is_fresh() -> None:
    module = load("generate_api")
    assert (DOCS / "api.md").read_text(encoding="utf-8") == module.render(), "run docs/generate_api.py"


def test_the_page_of_the_library_leaves_nothing_out() -> None:
    """Every public name is there, and every method, property, argument and field has a sentence."""
    import outrider

    page = (DOCS / "api.md").read_text(encoding="utf-8")
    assert [name for name in outrider.__all__ if f"`{name}`" not in page] == []
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert [row for row in rows if re.search(r"\| *\|$", row)] == []


def test_the_tables_of_results_are_fresh() -> None:
    module = load("generate_results")
    stale = [page.name for page in module.PAGES if page.read_text(encoding="utf-8") != module.render(page)]
    assert stale == [], "run docs/generate_results.py"


def test_the_picture_of_speeds_is_fresh() -> None:
    module = load("generate_results")
    assert module.SPEEDS.read_text(encoding="utf-8") == module.speeds_picture(module.comparisons()), (
        "run docs/generate_results.py"
    )
