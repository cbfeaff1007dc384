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


def test_a_comparison_says_who_had_a_draft_model() -> None:
    peers = load("peer_results")
    bench = {"draft": "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf", "samples": []}
    arms = {
        name: [{"engine": name, "arm": arm, "tokens_per_s": 9.0} for arm in ("plain", *more)]
        for name, more in {"outrider": ("draft",), "llama.cpp": (), "drafting": ("draft-4",)}.items()
    }
    told = {}
    for ours, theirs in (("outrider", "llama.cpp"), ("outrider", "drafting"), ("llama.cpp", "llama.cpp")):
        told[ours, theirs] = peers.FAIRNESS[-1].told(arms[ours], arms[theirs], theirs, peers.size(bench))
    assert list(told.values()) == [
        "Outrider with a 0.5B draft model, llama.cpp without one",
        "both had a 0.5B draft model",
        "neither had a draft model",
    ]
    drawn = peers.speeds_picture(load("generate_results").comparisons())
    assert drawn.count("drafted") == 2 + sum(
        peers.drafts(arm) for each in load("generate_results").comparisons() for arm in each["arms"]
    )


def test_the_tables_of_results_are_fresh() -> None:
    module = load("generate_results")
    stale = [page.name for page in module.PAGES if page.read_text(encoding="utf-8") != module.render(page)]
    assert stale == [], "run docs/generate_results.py"


def test_what_pages_say_of_a_pass_over_several_rows_was_measured() -> None:
    curves = [bench["model"]["verify_curve"] for _, bench in load("generate_results").benches() if "kernels" in bench]
    assert len(curves) > 1
    said = []
    for page in (DOCS.parent / "README.md", DOCS / "concepts.md"):
        text = " ".join(page.read_text(encoding="utf-8").split())
        said += re.findall(r"(eight) rows costs about ([\d.]+) ×", text)
        said += re.findall(r"(sixteen) about ([\d.]+) ×", text)
    assert sorted(rows for rows, _ in said) == ["eight", "eight", "sixteen"]
    rows = {"eight": "8", "sixteen": "16"}
    drawn = re.findall(r"^ +(\d+)   █+ ([\d.]+)$", (DOCS / "concepts.md").read_text(encoding="utf-8"), re.M)
    large = next(
        bench for name, bench in load("generate_results").benches() if name == "kernels_qwen2.5_coder_1.5b.json"
    )
    assert drawn == [(rows, f"{large['model']['verify_curve'][rows]:.2f}") for rows in ("1", "4", "8", "16", "32")]
    wrong = [(what, figure) for what, figure in said for each in curves if abs(each[rows[what]] - float(figure)) > 0.1]
    assert wrong == []


def test_the_picture_of_speeds_is_fresh() -> None:
    module = load("generate_results")
    assert module.SPEEDS.read_text(encoding="utf-8") == module.speeds_picture(module.comparisons()), (
        "run docs/generate_results.py"
    )
