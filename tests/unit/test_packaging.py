"""What the distributions say of themselves agrees wherever it is said."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import outrider

ROOT = Path(__file__).parents[2]


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


OURS, HEADS = project(ROOT), project(ROOT / "assets" / "heads")


def index_page() -> str:
    """The README as the package index shows it."""
    hook = OURS["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for each in hook["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    return text


def test_the_oldest_python_is_the_same_everywhere() -> None:
    oldest = OURS["project"]["requires-python"].removeprefix(">=")
    major, minor = oldest.split(".")
    classified = [
        line.rpartition(" ")[2] for line in OURS["project"]["classifiers"] if re.search(r"Python :: 3\.", line)
    ]
    said = {
        "heads": HEADS["project"]["requires-python"] == f">={oldest}",
        "ruff": OURS["tool"]["ruff"]["target-version"] == f"py{major}{minor}",
        "mypy": OURS["tool"]["mypy"]["python_version"] == oldest,
        "classifiers": min(classified, key=lambda version: int(version.partition(".")[2])) == oldest,
        "CMake": f"find_package(Python {oldest} " in (ROOT / "CMakeLists.txt").read_text(),
        "README": f"Python ≥ {oldest}" in (ROOT / "README.md").read_text(),
        "CI": f"FIRST: Final = ({major}, {minor})" in (ROOT / "scripts" / "check_installed.py").read_text(),
    }
    assert [where for where, agrees in said.items() if not agrees] == []


def test_versions_agree() -> None:
    assert OURS["project"]["version"] == outrider.__version__
    (asked,) = OURS["project"]["optional-dependencies"]["heads"]
    low, high = re.fullmatch(r"outrider-heads>=([\d.]+),<([\d.]+)", asked).groups()  # type: ignore[union-attr]
    numbers = [tuple(map(int, version.split("."))) for version in (low, HEADS["project"]["version"], high)]
    assert numbers[0] <= numbers[1] < numbers[2]


def test_the_heads_carry_the_licence_of_the_project() -> None:
    assert (ROOT / "assets" / "heads" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    for told in (OURS, HEADS):
        assert told["project"]["license"] == "Apache-2.0"
        assert all((ROOT / "assets" / "heads" / file).is_file() for file in told["project"]["license-files"])


def test_no_link_leads_nowhere_on_the_package_index() -> None:
    pages = {"outrider": index_page(), "heads": (ROOT / "assets" / "heads" / "README.md").read_text(encoding="utf-8")}
    for name, page in pages.items():
        broken = [target for target in re.findall(r"\]\(([^)]*)\)", page) if not target.startswith("https://")]
        assert broken == [], name
    assert re.findall(r"^- ([^:\n]*)", index_page().partition("## More")[2], re.M)[0] == "How to", (
        "a link lost its text"
    )
    assert "speeds.svg" not in index_page(), "a picture that is not there"


def test_links_to_elsewhere_stay() -> None:
    (pictures, links) = (
        each["pattern"] for each in OURS["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    )
    assert re.sub(links, r"\1", "[a](https://a.example/x) [b](docs/b.md#c)") == "[a](https://a.example/x) b"
    assert (
        re.sub(pictures, "", "![a](https://a.example/x.svg)\n![b](docs/b.svg)\n") == "![a](https://a.example/x.svg)\n"
    )
