"""Every plot: nothing covers anything else, nothing is cut off, and each is legible on a telephone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from outrider.bench.page import page
from outrider.bench.svg import Box, Drawing, LogScale, Scale, lines_of, nice_end
from outrider.study.plot import picture as study_picture
from outrider.train.report.curve import fit
from outrider.train.report.plot import picture as training_picture

RESULTS = Path(__file__).parents[2] / "results"
DOCS = Path(__file__).parents[2] / "docs"
LETTERS = {"title": 7.6, "group": 7.6, "label": 6.4, "soft": 6.0}
"""Width of a letter by the class of a text, measured in a browser's default sans-serif font."""
TELEPHONE, PADDING, LEGIBLE = 390, 32, 9.0
"""Width of the screen, of what surrounds a plot there, and the smallest letters a person reads; in pixels."""


def read(name: str) -> dict[str, Any]:
    """A result of an earlier version, with the keys that have come since."""
    result: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    for entry in result["results"]:
        entry.setdefault("verifier", "coupled")
        entry.setdefault("lossless", True)
    return result


def page_plots(name: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", page(read(name)))


def training(points: int, rise: float) -> str:
    judged = [(1000 * 2**place, 1.2 + rise * place) for place in range(points)]
    losses = [(100 * step, 9.0 / step**0.3) for step in range(1, 10 * 2**points)]
    return training_picture(losses, judged, fit(judged), "eagle3 for Qwen2.5-Coder-1.5B-Instruct.Q4_K_M")


def of_lookups() -> dict[str, Any]:
    """A study none of whose drafters has a distribution."""
    result = read("study_mt_bench_smollm2_135m.json")
    drafters = [row | {"perplexity": None} for row in result["study"]["drafters"]]
    return result | {"study": result["study"] | {"drafters": drafters}}


def plots() -> dict[str, str]:
    found = {path.stem: study_picture(read(path.name)) for path in RESULTS.glob("study_*.json")}
    for path in RESULTS.glob("eagle3_*.json"):
        found |= {f"{path.stem} {place}": svg for place, svg in enumerate(page_plots(path.name))}
    found |= {"study without perplexity": study_picture(of_lookups())}
    return found | {f"training {points}": training(points, rise) for points, rise in ((1, 0.0), (5, 0.1), (9, 0.4))}


PLOTS = plots()


def marks(svg: str, kind: str) -> Iterator[ElementTree.Element]:
    yield from (mark for mark in ElementTree.fromstring(svg).iter() if mark.tag.rpartition("}")[2] == kind)


def box(text: ElementTree.Element) -> Box:
    """What a text covers."""
    x, y, words, style = float(text.get("x", 0)), float(text.get("y", 0)), text.text or "", text.get("class", "")
    width = LETTERS[style] * len(words)
    left = {"start": x, "middle": x - width / 2, "end": x - width}[text.get("text-anchor", "start")]
    return Box(left, y - 9, left + width, y + 1)


def test_there_are_plots_of_every_kind() -> None:
    assert len([name for name in PLOTS if name.startswith("study")]) >= 4
    assert len([name for name in PLOTS if name.startswith("eagle3")]) >= 12


@pytest.mark.parametrize("name", PLOTS)
class TestEveryPlot:
    def test_no_text_covers_another(self, name: str) -> None:
        texts = [(text.text, box(text)) for text in marks(PLOTS[name], "text")]
        assert len(texts) > 4
        assert [(one, other) for (one, a), (other, b) in combinations(texts, 2) if a.meets(b)] == []

    def test_no_text_lies_on_a_line_of_the_grid(self, name: str) -> None:
        lines = [
            [float(mark.get(key, 0)) for key in ("x1", "y1", "x2", "y2")]
            for mark in marks(PLOTS[name], "line")
            if mark.get("class") == "rule"
        ]
        level = [Box(x1, y1, x2, y2) for x1, y1, x2, y2 in lines if y1 == y2]
        captions = [text for text in marks(PLOTS[name], "text") if text.get("class") != "label"]
        assert [text.text for text in captions for line in level if box(text).meets(line)] == []

    def test_no_text_is_cut_off(self, name: str) -> None:
        width, height = map(float, ElementTree.fromstring(PLOTS[name]).get("viewBox", "").split()[2:])
        whole = Box(0, 0, width, height)
        assert [text.text for text in marks(PLOTS[name], "text") if not box(text).within(whole)] == []

    def test_a_telephone_shows_it_legibly(self, name: str) -> None:
        width = float(ElementTree.fromstring(PLOTS[name]).get("viewBox", "").split()[2])
        assert 12 * (TELEPHONE - PADDING) / width >= LEGIBLE


def test_points_labels_and_intervals_of_a_study_are_apart() -> None:
    for name, svg in PLOTS.items():
        if name.startswith("study"):
            dots = [Box(x - 4, y - 4, x + 4, y + 4) for x, y in places(svg, "circle", "cx", "cy")]
            bars = [
                Box(min(a, c), min(b, d), max(a, c), max(b, d))
                for a, b, c, d in places(svg, "line", "x1", "y1", "x2", "y2", style="s1")
            ]
            labels = [box(text) for text in marks(svg, "text") if text.get("text-anchor") == "middle"]
            assert not [label for label in labels for mark in (*dots, *bars) if label.meets(mark)], name
            spaced = [Box(each.left - 2, each.top, each.right + 2, each.bottom) for each in labels]
            assert not [pair for pair in combinations(spaced, 2) if pair[0].meets(pair[1])], name


@pytest.mark.parametrize("name", sorted(path.stem for path in DOCS.glob("study_*.svg")))
def test_the_pages_show_the_plots_of_their_results(name: str) -> None:
    assert (DOCS / f"{name}.svg").read_text(encoding="utf-8") == PLOTS[name], "draw it again from its result"


def places(svg: str, kind: str, *keys: str, style: str = "") -> list[list[float]]:
    found = (mark for mark in marks(svg, kind) if not style or mark.get("class") == style)
    return [[float(mark.get(key, 0)) for key in keys] for mark in found]


def test_a_caption_on_a_line_would_be_seen() -> None:
    drawing = Drawing(440, 100, "wrong")
    drawing.line(46, 40, 400, 40, "rule")
    drawing.text(100, 44, "on the line", "soft")
    svg = drawing.render()
    assert box(next(marks(svg, "text"))).meets(Box(46, 40, 400, 40))


@pytest.mark.parametrize("points", [1, 5, 9])
def test_the_axis_of_accepted_lengths_starts_at_plain_decodings(points: int) -> None:
    ticks = [text for text in marks(PLOTS[f"training {points}"], "text") if text.get("text-anchor") == "end"]
    lower = [text for text in ticks if float(text.get("y", 0)) > 240]
    assert lower[0].text == "1"
    assert all(float(text.text or 0) >= 1 for text in lower)


def words(svg: str) -> str:
    return " ".join(text.text or "" for text in marks(svg, "text"))


@pytest.mark.parametrize("name", [name for name in PLOTS if name.startswith("study_")])
def test_a_study_names_its_prompts_and_machine(name: str) -> None:
    result, told = read(f"{name}.json"), words(PLOTS[name])
    work, machine = result["workload"], result["machine"]
    assert f"{work['prompts']} prompts of {work['file']}" in told
    assert f"{machine['cpu']}, {machine['threads']} threads" in told


def test_a_study_of_lookups_draws_no_empty_panel() -> None:
    told = words(PLOTS["study without perplexity"])
    assert "No drafter here has a perplexity" in told
    assert told.count("speedup over plain decoding") == 1
    assert words(PLOTS["study_mt_bench_smollm2_135m"]).count("speedup over plain decoding") == 2


def test_a_curve_names_the_model_and_its_axes() -> None:
    for svg in (PLOTS["training 5"], *(path.read_text(encoding="utf-8") for path in DOCS.glob("*_curve.svg"))):
        told = words(svg)
        assert re.match(r"\w+ for (Qwen2.5-Coder-1.5B|SmolLM2-135M)-Instruct\.", told)
        assert "on a logarithmic axis" in told
        assert re.search(r"loss over tokens trained on, [\d,]+ in all", told)


def test_a_long_name_of_a_model_is_cut_where_the_picture_ends() -> None:
    svg = training_picture([(100, 2.0)], [], None, "eagle3 for " + "x" * 200)
    title = next(marks(svg, "text"))
    assert box(title).right <= 440
    assert (title.text or "").endswith("…")


def test_categories_of_the_page_show_their_counts() -> None:
    result = read("eagle3_mt_bench_smollm2_135m.json")
    category = next(entry["category"] for entry in result["results"] if entry["category"] != "all")
    for entry in result["results"]:
        entry["prompts"] = 1 if entry["category"] == category else entry["prompts"]
    text = page(result)
    assert f">{category} (1 prompt)<" in text
    assert ">all 20 prompts<" in text
    assert "fewer than 5 tests" in text


def test_counts_stand_beside_acceptance() -> None:
    result = read("eagle3_mt_bench_smollm2_135m.json")
    text = page(result)
    for entry in result["results"]:
        if entry["category"] == "all" and entry["tested"]:
            assert f"{entry['acceptance_rate']:.2f} ({entry['tested']})" in text
            assert f"{entry['acceptance_by_position'][1]:.2f} ({entry['tested_by_position'][1]})" in text


class TestScales:
    @pytest.mark.parametrize(("least", "most"), [(0.06, 50), (8.0, 9.0), (6.3, 10.7), (1, 1e9), (30, 50), (100, 1000)])
    def test_a_logarithmic_axis_has_a_few_marks(self, least: float, most: float) -> None:
        ticks = LogScale(least, most, 0, 380).ticks
        assert 2 <= len(ticks) <= 10
        assert all(least <= tick <= most for tick in ticks)
        assert ticks == sorted(set(ticks))

    def test_an_axis_may_start_elsewhere_than_at_zero(self) -> None:
        scale = Scale(1 + nice_end(0.7), 100, 0, least=1)
        assert scale(1) == 100
        assert scale(scale.most) == pytest.approx(0)
        assert scale.ticks[0] == 1

    def test_lines_fit_their_width(self) -> None:
        assert lines_of("a " * 40, 66) == ["a a a a a"] * 8
        assert max(map(len, lines_of("x" * 100, 66))) == 10
