"""The quality benchmark's own parts: divergences, their figures, and the choice of texts."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from scipy.special import rel_entr, softmax

from outrider.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "benchmarks" / "quality"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"quality_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # data classes look their module up
    spec.loader.exec_module(module)
    return module


divergence, texts = load("divergence"), load("texts")
POSITIONS, VOCABULARY = 75, 50
"""More positions than are worked on at a time, and no multiple of it."""


def some_logits(seed: int) -> torch.Tensor:
    return 3 * torch.randn(POSITIONS, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def flat_scores(*values: float) -> object:
    numbers = np.array(values)
    return divergence.Scores(numbers, numbers < 1, numbers)


class TestScore:
    def setup_method(self) -> None:
        self.reference, self.engine = some_logits(1), some_logits(2)
        self.following = [row % VOCABULARY for row in range(POSITIONS)]
        self.scores = divergence.score(self.reference, {"engine": self.engine}, self.following)["engine"]

    def test_the_divergence_is_scipys(self) -> None:
        p, q = (softmax(logits.double().numpy(), axis=1) for logits in (self.reference, self.engine))
        np.testing.assert_allclose(self.scores.divergence, rel_entr(p, q).sum(axis=1), rtol=1e-10)

    def test_it_is_taken_from_the_reference_to_the_engine(self) -> None:
        turned = divergence.score(self.engine, {"reference": self.reference}, self.following)["reference"]
        assert not np.allclose(turned.divergence, self.scores.divergence, rtol=1e-2)

    def test_a_known_divergence(self) -> None:
        reference, engine = torch.tensor([[0.0, 0.0]]), torch.tensor([[math.log(3), 0.0]])
        found = divergence.score(reference, {"engine": engine}, [1])["engine"]
        assert found.divergence == pytest.approx([0.5 * math.log(2 / 3) + 0.5 * math.log(2)])
        assert found.surprise == pytest.approx([math.log(4)])

    def test_the_reference_is_no_distance_from_itself(self) -> None:
        same = divergence.score(self.reference, {"same": self.reference + 100.0}, self.following)["same"]
        assert np.abs(same.divergence).max() < 1e-6
        assert same.agrees.all()

    def test_agreement_and_surprise(self) -> None:
        agrees = (self.reference.argmax(dim=1) == self.engine.argmax(dim=1)).numpy()
        assert 0 < agrees.sum() < POSITIONS
        np.testing.assert_array_equal(self.scores.agrees, agrees)
        loss = torch.nn.functional.cross_entropy(
            self.engine.double(), torch.tensor(self.following), reduction="none"
        ).numpy()
        np.testing.assert_allclose(self.scores.surprise, loss, rtol=1e-12)

    def test_logits_that_do_not_fit_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"engine: logits \(75, 49\)"):
            divergence.score(self.reference, {"engine": self.engine[:, 1:]}, self.following)
        with pytest.raises(ValueError, match="74 next tokens"):
            divergence.score(self.reference, {"engine": self.engine}, self.following[1:])


class TestFigures:
    def test_every_position_counts_once(self) -> None:
        found = divergence.summarise([flat_scores(0.0, 1.0), flat_scores(2.0, 3.0, 4.0)])
        assert found["mean_kl"] == pytest.approx(2.0)
        assert found["median_kl"] == pytest.approx(2.0)
        assert found["p99_kl"] == pytest.approx(3.96)
        assert found["max_kl"] == pytest.approx(4.0)
        assert found["agreement"] == pytest.approx(0.2)
        assert found["perplexity"] == pytest.approx(math.exp(2.0))

    def test_positions_can_be_told_apart(self) -> None:
        whole = flat_scores(9.0, 1.0, 2.0)
        first, rest = whole.at(slice(1)), whole.at(slice(1, None))  # type: ignore[attr-defined]
        assert [*first.divergence, *rest.divergence] == [9.0, 1.0, 2.0]
        assert (len(rest.agrees), len(rest.surprise)) == (2, 2)

    def test_the_ratio_is_of_means_over_all_positions(self) -> None:
        ours = [flat_scores(1.0), flat_scores(1.0, 2.0, 3.0), flat_scores(5.0)]
        theirs = [flat_scores(2.0), flat_scores(4.0, 4.0, 4.0), flat_scores(1.0)]
        found = divergence.ratio_of_means(ours, theirs)
        assert found["ratio"] == pytest.approx(12 / 15)
        low, high = found["interval"]
        assert 0.5 <= low < 0.8 < high <= 5.0

    def test_a_constant_ratio_has_no_spread(self) -> None:
        theirs = [flat_scores(*np.arange(1.0, 2.0 + length)) for length in range(5)]
        ours = [flat_scores(*(1.5 * text.divergence)) for text in theirs]  # type: ignore[attr-defined]
        found = divergence.ratio_of_means(ours, theirs)
        assert found["interval"] == pytest.approx((1.5, 1.5))

    def test_one_text_has_no_interval(self) -> None:
        assert divergence.ratio_of_means([flat_scores(1.0)], [flat_scores(2.0)])["interval"] is None


class TestTexts:
    @pytest.fixture
    def files(self, tmp_path: Path) -> list[Path]:
        rows = {
            "long": [{"id": f"l{i}", "turns": [f"ask {i}", "again"], "reference": ["say", ""]} for i in range(10)],
            "short": [{"id": f"s{i}", "turns": [f"only {i}"]} for i in range(3)],
        }
        for name, each in rows.items():
            (tmp_path / f"{name}.jsonl").write_text("\n\n".join(map(json.dumps, each)), encoding="utf-8")
        return [tmp_path / f"{name}.jsonl" for name in rows]

    def test_each_file_gives_its_share_evenly_spread(self, files: list[Path]) -> None:
        found = texts.read_texts(files, ["turns"], None, 5)
        assert [text.id for text in found] == ["l0", "l3", "l6", "s0", "s1"]
        assert found[0].file == "long.jsonl"

    def test_turns_and_answers_alternate(self, files: list[Path]) -> None:
        found = texts.read_texts(files, ["turns", "reference"], None, 2)
        assert [text.text for text in found] == ["ask 0\n\nsay\n\nagain", "only 0"]

    def test_select_chooses_rows_of_every_file(self, files: list[Path]) -> None:
        assert [text.id for text in texts.read_texts(files, ["turns"], "i%2", 2)] == ["l1", "s1"]

    def test_too_few_rows(self, files: list[Path]) -> None:
        with pytest.raises(ConfigError, match=r"4 texts are wanted of short\.jsonl, but 3 rows"):
            texts.read_texts(files, ["turns"], None, 8)

    def test_a_row_without_the_fields(self, files: list[Path]) -> None:
        with pytest.raises(ConfigError, match="'l0' has none of the fields nothing"):
            texts.read_texts(files, ["nothing"], None, 1)


def test_contexts_that_texts_share_are_found() -> None:
    ids = [[1, 2, 3], [1, 2, 4, 5], [2, 2], [1, 2, 4, 6], [1, 2], [7]]
    assert texts.shared_starts(ids) == [0, 2, 0, 3, 2, 0]
