"""The page and the dashboard of metrics name what the server exports, all of it and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from docs.test_reference import DOCS, load

PAGE, BOARD = load("generate_metrics"), load("generate_dashboard")
NAME = re.compile(r"\b(?:vllm|outrider):\w+")


def names() -> dict[str, str]:
    """The family of every sample that there can be."""
    return {name: family.name for family in PAGE.families() for name in PAGE.exported(family)}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "grafana_dashboard.json").read_text(encoding="utf-8"))
    return found


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (each["query"]["query"] for each in dashboard()["templating"]["list"] if each["type"] == "query")


def test_the_page_is_fresh() -> None:
    assert (DOCS / "metrics.md").read_text(encoding="utf-8") == PAGE.render(), "run docs/generate_metrics.py"


def test_the_page_has_every_metric_once() -> None:
    listed = [name for group in PAGE.GROUPS.values() for name in group]
    assert sorted(listed) == sorted(family.name for family in PAGE.families())


def test_the_pages_text_names_only_what_there_is() -> None:
    mentioned = set(NAME.findall((DOCS / "metrics.md").read_text(encoding="utf-8")))
    assert mentioned - names().keys() - set(names().values()) == set()


def test_the_dashboard_is_fresh() -> None:
    told = (DOCS / "grafana_dashboard.json").read_text(encoding="utf-8")
    assert told == BOARD.render(), "run docs/generate_dashboard.py"


def test_the_dashboard_asks_only_for_what_there_is() -> None:
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    assert len(asked) > 25
    assert asked - names().keys() == set()


def unknown_labels(expression: str) -> set[str]:
    """Labels that an expression groups by or matches, and its metrics lack."""
    families = {names()[name] for name in NAME.findall(expression)}
    known = set[str]().union(*(PAGE.labels().get(name, ()) for name in families)) | {"model_name", "le"}
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
    matched = {label for group in re.findall(r"\{([^}]*)\}", expression) for label in re.findall(r"(\w+)=", group)}
    return (grouped | matched) - known


def test_the_dashboard_asks_only_for_labels_that_there_are() -> None:
    assert {each: found for each in expressions() if (found := unknown_labels(each))} == {}


def test_a_label_that_there_is_not_is_seen() -> None:
    assert unknown_labels('sum by (kind) (rate(outrider:rows_total{sort="x"}[1m]))') == {"sort"}
    assert unknown_labels("sum by (position) (rate(outrider:rows_total[1m]))") == {"position"}


@pytest.mark.parametrize("pair", ["()", "[]", "{}"])
def test_expressions_are_closed(pair: str) -> None:
    for expression in expressions():
        assert expression.count(pair[0]) == expression.count(pair[1])


def test_grafana_can_lay_the_dashboard_out() -> None:
    """Unique numbers, a data source that the viewer chooses, and no panel on another."""
    board = dashboard()
    assert board["schemaVersion"] >= 38
    assert {each["name"] for each in board["templating"]["list"]} == {"datasource", "model"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) > 20
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["description"].endswith(".")
            assert panel["targets"]
