"""What the lookup drafters propose, on texts one can read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny import tiny_model
from tiny_heads import tiny_head

from outrider import LLM, SamplingParams
from outrider.drafters import _trained, automatic_config
from outrider.drafters._trained import head_config
from outrider.drafters.base import DraftContext, DraftSequence
from outrider.drafters.lookup_model import LookupModel
from outrider.drafters.ngram import Ngram, NgramDrafter, NgramIndex, copied
from outrider.drafters.suffix import Suffix, SuffixDrafter
from outrider.errors import ConfigError
from outrider.heads import loading
from outrider.heads.checkpoint import write_head
from outrider.heads.formats.base import export
from outrider.heads.loading import kind_of, read_head


def sequence(tokens: list[int], nodes: int = 32, depth: int = 32, key: str = "r", prompt: int = 0) -> DraftSequence:
    return DraftSequence(key, tokens, prompt, nodes, depth)


def propose(drafter, tokens: list[int], **options: int):  # type: ignore[no-untyped-def]
    (tree,) = drafter.propose(DraftContext((sequence(tokens, **options),), SimpleNamespace(), causal=False))
    return tree


def test_the_longest_match_wins_and_the_latest_of_equals() -> None:
    drafter = NgramDrafter(Ngram(num_draft_tokens=3, max_match=3, min_match=1))
    assert propose(drafter, [1, 2, 3, 9, 9, 2, 3, 7, 7, 1, 2, 3]).tokens == (3, 9, 9, 2)
    fresh = NgramDrafter(Ngram(num_draft_tokens=2, max_match=2, min_match=1))
    assert propose(fresh, [5, 1, 5, 2, 5]).tokens == (5, 2, 5)


def test_a_match_shorter_than_asked_drafts_nothing() -> None:
    assert len(propose(NgramDrafter(Ngram(min_match=2)), [5, 1, 5, 2, 5])) == 1
    assert len(propose(SuffixDrafter(Suffix(min_match=2)), [5, 1, 5, 2, 5])) == 1


def test_a_loop_is_drafted_past_the_end_of_the_text() -> None:
    assert copied([1, 2, 3], 1, 5) == [2, 3, 2, 3, 2]
    assert propose(NgramDrafter(Ngram(num_draft_tokens=6)), [7, 8] * 3).tokens == (8, 7, 8, 7, 8, 7, 8)
    tree = propose(SuffixDrafter(Suffix(num_draft_tokens=6, length_factor=8, min_survival=0)), [7, 8] * 6)
    assert tree.tokens == (8, 7, 8, 7, 8, 7, 8)


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_budgets_are_kept(nodes: int, depth: int) -> None:
    for drafter in (NgramDrafter(Ngram()), SuffixDrafter(Suffix(topk=3, min_survival=0))):
        tree = propose(drafter, [7, 8, 9] * 5, nodes=nodes, depth=depth)
        assert len(tree) <= nodes
        assert max(tree.depths) <= depth


def test_the_index_grows_with_what_was_appended_only() -> None:
    index, tokens = NgramIndex(Ngram(max_match=2, min_match=1)), [1, 2, 3]
    index.match(tokens)
    for token in (1, 2, 4, 1):
        tokens.append(token)
        index.match(tokens)
        assert index._indexed == len(tokens) - 1
    assert index.match(tokens) == (index.match(list(tokens))[0], 1)
    assert tokens[index.match(tokens)[0]] == 2


def test_suffix_follows_what_came_most_often() -> None:
    text = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3, 5, 1, 2, 3]
    tree = propose(SuffixDrafter(Suffix(num_draft_tokens=1)), text)
    assert tree.tokens == (3, 5)
    wide = propose(SuffixDrafter(Suffix(num_draft_tokens=2, topk=2, min_survival=0)), text)
    assert set(wide.tokens[1:]) >= {5}
    assert wide.survival[1] >= wide.survival[2]


def test_suffix_believes_a_long_match_more_than_a_short_one() -> None:
    short = propose(SuffixDrafter(Suffix(min_match=1, min_survival=0)), [1, 9, 1])
    long = propose(SuffixDrafter(Suffix(min_match=1, min_survival=0)), [1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4, 5, 6])
    assert long.survival[1] > short.survival[1]


def test_the_corpus_drafts_for_later_requests_and_only_where_asked() -> None:
    for megabytes, drafted in ((1, True), (0, False)):
        drafter = SuffixDrafter(Suffix(corpus_megabytes=megabytes, num_draft_tokens=3))
        propose(drafter, [10, 11, 12, 13, 14, 15], key="first")
        drafter.close("first")
        tree = propose(drafter, [90, 11, 12, 13], key="second")
        assert (tree.tokens[1:3] == (14, 15)) is drafted


@pytest.mark.parametrize("salts", [("a", "a"), (None, None), ("a", "b"), ("a", None), (None, "a")], ids=repr)
def test_the_corpus_of_one_salt_never_drafts_for_another(salts: tuple[str | None, str | None]) -> None:
    drafter = SuffixDrafter(Suffix(corpus_megabytes=1, num_draft_tokens=3))
    texts = ("first", [10, 11, 12, 13, 14, 15]), ("second", [90, 11, 12, 13])
    trees = []
    for (key, tokens), salt in zip(texts, salts, strict=True):
        one = DraftSequence(key, tokens, 0, 8, 8, salt=salt)
        trees += drafter.propose(DraftContext((one,), SimpleNamespace(), causal=False))  # type: ignore[arg-type]
        drafter.close(key)
    assert (trees[1].tokens == (13, 14, 15)) is (salts[0] == salts[1])


@pytest.mark.parametrize("salt", ["a", "b", None])
def test_an_engine_tells_its_drafters_whose_text_it_is(salt: str | None) -> None:
    options = {"corpus_megabytes": 1, "min_survival": 0.0}
    llm = LLM.from_model(tiny_model(0), speculation={"method": "suffix", "options": options})
    wish = SamplingParams(max_tokens=40, temperature=1.0, seed=3, ignore_eos=True)
    (first,) = llm.generate([[1, 2, 3]], wish, cache_salt="a")
    (second,) = llm.generate([[1, 2, 3]], wish, cache_salt=salt)
    assert first.token_ids == second.token_ids
    known = second.speculation.rounds < first.speculation.rounds / 2
    assert known is (salt == "a")


class TestTheModelAfterALookup:
    def test_without_a_name_no_folder_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_head(tmp_path, tiny_head("medusa", tiny_model(0)))
        monkeypatch.chdir(tmp_path)
        assert head_config("") is None
        assert head_config(".") is not None
        with pytest.raises(ConfigError, match="lookup_model needs a draft model"):
            LLM.from_model(tiny_model(0), speculation=LookupModel())

    def test_a_folder_is_looked_into_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_head(tmp_path, tiny_head("eagle", tiny_model(0)))
        reads: list[object] = []
        monkeypatch.setattr(_trained, "kind_of", lambda path: (reads.append(path), kind_of(path))[1])
        assert head_config(str(tmp_path)).method in ("eagle", "eagle2")
        assert reads == [str(tmp_path)]

    def test_a_head_of_another_project_is_read_once_to_choose_a_method(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        export(tiny_head("eagle", tiny_model(0)), "eagle", tmp_path)
        reads: list[object] = []
        monkeypatch.setattr(loading, "read_head", lambda path: (reads.append(path), read_head(path))[1])
        assert automatic_config([str(tmp_path)]) == LookupModel(model=str(tmp_path))
        assert head_config(str(tmp_path)) is not None
        assert reads == [str(tmp_path)], "its weights were read more than once"

    @pytest.mark.parametrize("method", ["eagle3", "dspark", "medusa"])
    def test_a_head_in_memory_drafts(self, method: str) -> None:
        heads, params = {"h": tiny_head(method, tiny_model(0))}, SamplingParams(max_tokens=8, temperature=0.0)
        llm = LLM.from_model(tiny_model(0), speculation=LookupModel(model="h"), heads=heads)
        drafted = llm.generate([[1, 2, 3, 4]], params)[0]
        plain = LLM.from_model(tiny_model(0), speculation="none").generate([[1, 2, 3, 4]], params)[0]
        assert drafted.token_ids == plain.token_ids
        assert llm.engine.drafting.hidden_layers, "another drafter was built"

    def test_what_is_neither_in_memory_nor_on_the_disk_is_named(self) -> None:
        with pytest.raises(ConfigError, match="nowhere"):
            LLM.from_model(tiny_model(0), speculation=LookupModel(model="nowhere"))
