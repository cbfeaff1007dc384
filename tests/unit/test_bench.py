"""The bench: prompts, pairing and order, the tie rule, and what the result file holds."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_folder import make_folder

from outrider.audit import tie_rule
from outrider.bench import runner
from outrider.bench.equality import first_difference
from outrider.bench.machine import commit, facts
from outrider.bench.page import page
from outrider.bench.prompts import COMPLETE_CODE, selected_prompts
from outrider.bench.report import SCHEMA_VERSION
from outrider.bench.runner import Setting, grid
from outrider.bench.verdict import verdicts
from outrider.cli import main
from outrider.cli.bench import method_arms
from outrider.cli.options import MethodFlags
from outrider.errors import ConfigError
from outrider.kernels.native import cpu
from outrider.models.hf.model import weight_bytes
from outrider.models.native.model import NativeModel
from outrider.tree import TokenTree
from outrider.verify import registered
from outrider.verify.base import Rows, Verdict

ROWS = [
    {"id": f"row-{i}", "category": "letters" if i % 2 else "words", "turns": [f"{'ab ' * (3 + i)}", "never asked"]}
    for i in range(5)
] + [{"id": "humaneval-7", "category": "code_completion", "turns": ["def f(x):\n"]}]
ENDLESS = {"id": "endless", "category": "words", "turns": ["z " * 600]}


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("models") / "drafter", seed=1)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (*ROWS, ENDLESS)) + "\n")
    return path


@pytest.fixture(autouse=True)
def _small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.bench.machine._BUFFER_BYTES", 2**20)


Bench = Callable[..., dict[str, Any]]


@pytest.fixture
def bench(folder: Path, prompts: Path, tmp_path: Path) -> Bench:
    def run(*flags: object, model: Path = folder) -> dict[str, Any]:
        out = tmp_path / "out.json"
        fixed = (
            "bench",
            "--model",
            model,
            "--prompts",
            prompts,
            "--select",
            f"i<{len(ROWS)}",
            "--max-tokens",
            12,
            "--json",
            out,
        )
        assert main([str(part) for part in (*fixed, *flags)]) == 0
        return json.loads(out.read_text())

    return run


class TestPrompts:
    def test_rows_and_form(self, prompts: Path) -> None:
        rows = selected_prompts(prompts, "6>i>=4", None)
        assert [row.number for row in rows] == [4, 5]
        assert rows[0].messages == (("user", ROWS[4]["turns"][0]),)
        assert rows[1].messages == (("user", COMPLETE_CODE + "def f(x):\n"),)
        assert COMPLETE_CODE == "Complete this Python function, answer with code only:\n"
        assert [row.id for row in selected_prompts(prompts, None, 2)] == ["row-0", "row-1"]

    @pytest.mark.parametrize("line", ["{", "[]", '{"id": 1}', '{"id": 1, "category": "x", "turns": [""]}', "3"])
    def test_a_bad_row_is_named(self, tmp_path: Path, line: str) -> None:
        path = tmp_path / "bad.jsonl"
        path.write_text(json.dumps(ROWS[0]) + "\n" + line)
        with pytest.raises(ConfigError, match="line 2"):
            selected_prompts(path, None, None)

    def test_nothing_left_is_told(self, prompts: Path) -> None:
        with pytest.raises(ConfigError, match="no prompt is left of the 7"):
            selected_prompts(prompts, "i>99", None)


def test_grid_has_greedy_once() -> None:
    assert grid([0, 1], [1, 0.9]) == [Setting(0, 1.0), Setting(1, 1), Setting(1, 0.9)]
    assert [setting.label for setting in grid([0, 0.7], [0.9])] == ["greedy", "T=0.7 p=0.9"]


@pytest.mark.parametrize(("a", "b", "place"), [("ab", "ab", None), ("ab", "ac", 1), ("ab", "abc", 2), ("", "a", 0)])
def test_first_difference(a: str, b: str, place: int | None) -> None:
    assert first_difference([ord(c) for c in a], [ord(c) for c in b]) == place


def test_bytes_per_token_leaves_out_a_table_that_is_only_looked_up_in() -> None:
    table, head = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10, bias=False)
    assert weight_bytes(torch.nn.Sequential(table, head)) == (320, 160)
    head.weight = table.weight
    assert weight_bytes(torch.nn.Sequential(table, head)) == (160, 160)


def test_machine_facts() -> None:
    machine = facts()
    assert abs(datetime.now(UTC) - datetime.fromisoformat(machine["date"])) < timedelta(minutes=1)
    assert machine["commit"] is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", machine["commit"])
    assert machine["cpu"]
    assert machine["threads"] >= 1
    assert machine["versions"]["torch"] == torch.__version__.split("+")[0] or machine["versions"]["torch"]


def test_a_commit_is_told_of_files_that_are_checked_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")

    def git(*words: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        command = ("git", "-C", str(tmp_path), *who, *words)
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    file, other = tmp_path / "file.py", tmp_path / "installed.py"
    for each in (file, other):
        each.write_text("one")
    assert commit(file) is None, "no checkout"
    git("init")
    git("add", file.name)
    git("commit", "-m", "one")
    assert commit(file) == git("rev-parse", "HEAD")
    assert commit(other) is None, "it lies inside of a checkout that knows nothing of it"
    git("tag", "-a", "v1", "-m", "one")
    file.write_text("two")
    assert commit(file) == git("rev-parse", "HEAD") + "-dirty"
    monkeypatch.setenv("PATH", "")
    assert commit(file) is None, "no git"


@pytest.mark.skipif(cpu is None, reason="this installation has no kernels")
def test_the_cost_of_kernels_tells_where_and_when(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.bench.kernels._READ_BYTES", 2**16)
    assert main(["bench", "kernels", "--skip-kernels", "--repeat", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"date", "commit", "cpu", "versions"} <= set(result["machine"])


def accept_everything(self: object, tree: TokenTree, rows: Rows) -> Verdict:
    """A rule that keeps nothing of the target's law."""
    path, node = [], 0
    while tree.children[node]:
        node = tree.children[node][0]
        path.append(node)
    return Verdict.of(tree, path, rows.tokens[node])


def overall(result: dict[str, Any], algorithm: str) -> list[dict[str, Any]]:
    """The entries of a method over all prompts."""
    found = [entry for entry in result["results"] if entry["algorithm"] == algorithm and entry["category"] == "all"]
    assert found
    return found


class TestBench:
    def test_result_has_everything(self, bench: Bench) -> None:
        result = bench("--algorithms", "ngram,suffix", "--temperature", "0,1", "--top-p", "1,0.9")
        assert result["schema_version"] == SCHEMA_VERSION
        assert [arm["method"] for arm in result["algorithms"]] == ["none", "ngram", "suffix"]
        assert result["algorithms"][1]["options"]["num_draft_tokens"] == 8
        settings = {(entry["temperature"], entry["top_p"]) for entry in result["results"]}
        assert settings == {(0, 1), (1, 1), (1, 0.9)}
        assert {entry["category"] for entry in result["results"]} == {"all", "words", "letters", "code_completion"}
        assert len(result["samples"]) == len(ROWS) * 3 * 3
        form = result["workload"]["form"]
        assert (form["chat_template"], form["turn"], form["prompts_with_code_prefix"]) == (True, "first", 1)
        assert result["ceiling"]["read_bytes_per_s"] > 0
        assert result["ceiling"]["share_reached"] > 0
        assert result["model"]["dtype"] == NativeModel.precision
        assert result["model"]["file_bytes"] > 0
        assert {"date", "commit", "cpu", "versions"} <= set(result["machine"])
        for entry in result["results"]:
            self.check_entry(entry)

    def test_what_auto_stands_for_is_run_once(self, bench: Bench) -> None:
        result = bench("--limit", 2)
        assert [arm["name"] for arm in result["algorithms"]] == ["none", "ngram", "suffix"]
        assert [arm["name"] for arm in result["algorithms"] if arm["automatic"]] == ["suffix"]
        assert "auto is suffix here" in page(result)
        told = bench("--algorithms", "ngram", "--limit", 2)
        assert not any(arm["automatic"] for arm in told["algorithms"])
        for twice in ("suffix,suffix", "auto,auto"):
            with pytest.raises(ConfigError, match=f"names {twice.partition(',')[0]} twice"):
                method_arms(MethodFlags(), twice.split(","), "tiny")
        for both in ("suffix,auto", "AUTO,suffix"):
            arms = method_arms(MethodFlags(), both.split(","), "tiny")
            assert [(arm.name, arm.automatic) for arm in arms] == [("none", False), ("suffix", True)]

    def test_a_method_that_drafted_nothing_shows_no_speedup(self, bench: Bench) -> None:
        result = bench("--algorithms", "ngram", "--ngram-max-match", 64, "--ngram-min-match", 64)
        found = overall(result, "ngram")[0]
        assert found["drafted"] == 0
        keys = ("speedup", "speedup_interval", "end_to_end_speedup", "end_to_end_interval")
        assert [found[key] for key in keys] == [None] * 4
        assert overall(result, "none")[0]["speedup"] == pytest.approx(1.0)
        assert verdicts(result["results"]) == ["no method pays: nothing was drafted"]

    def check_entry(self, entry: dict[str, Any]) -> None:
        assert entry["verifier"] == "coupled"
        facts = entry["identical"]
        assert facts["promised"]
        assert facts["same"] + facts["within_tie_rule"] == facts["texts"]
        assert entry["mean_accepted_length"] >= 1
        assert entry["decode_tokens"] <= entry["tokens"]
        assert 0 < entry["other_share"] < 1
        assert len(entry["acceptance_by_position"]) == len(entry["tested_by_position"])
        if entry["algorithm"] == "none":
            assert entry["speedup"] == pytest.approx(1.0)
            assert entry["cost_coefficient"] is None
        if entry["drafted"]:
            assert entry["cost_coefficient"] >= 0
            assert entry["predicted_speedup"] > 0
            assert entry["predicted_with_verify_cost"] > 0
        assert (entry["speedup"] is None) == (entry["algorithm"] != "none" and not entry["drafted"])
        if entry["prompts"] > 1 and entry["speedup"] is not None:
            low, high = entry["speedup_interval"]
            assert low <= entry["speedup"] <= high or entry["prompts"] < 4

    @pytest.mark.parametrize("command", [("bench",), ("study", "--draft", "ngram")])
    def test_without_a_file_it_asks_the_built_in_prompts(
        self, command: tuple[str, ...], folder: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "out.json"
        short = ("--model", str(folder), "--select", "i%6==1", "--limit", "2", "--max-tokens", "4", "--json", str(out))
        assert main([*command, *short]) == 0
        result = json.loads(out.read_text())
        assert (result["workload"]["file"], result["workload"]["prompts"]) == ("built-in prompts", 2)
        assert {sample["id"] for sample in result["samples"]} == {"chat-1", "chat-2"}

    def test_runs_are_paired_interleaved_and_shuffled(self, bench: Bench) -> None:
        samples = bench("--algorithms", "ngram,suffix", "--temperature", "1", "--repeat", 2)["samples"]
        orders = set()
        for start in range(0, len(samples), 3):
            block = samples[start : start + 3]
            assert len({(sample["id"], sample["repeat"]) for sample in block}) == 1
            assert [sample["order"] for sample in block] == [0, 1, 2]
            assert {sample["algorithm"] for sample in block} == {"none", "ngram", "suffix"}
            assert len({tuple(sample["token_ids"]) for sample in block}) == 1
            orders.add(tuple(sample["algorithm"] for sample in block))
        assert len(orders) > 1
        first, second = ([s["token_ids"] for s in samples if s["repeat"] == repeat] for repeat in (0, 1))
        assert first != second

    def test_seed_reproduces_texts_and_order(self, bench: Bench) -> None:
        keys = ("id", "algorithm", "order", "token_ids")
        runs = [bench("--temperature", 1, "--seed", seed)["samples"] for seed in (4, 4, 5)]
        one, same, other = ([[sample[key] for key in keys] for sample in run] for run in runs)
        assert one == same != other

    def test_every_run_has_a_fresh_engine(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        engines = []
        plain_measure = runner.measure

        def measure(llm: Any, *rest: Any) -> runner.Sample:
            assert llm.engine.idle
            assert llm.engine.seconds.rounds == 0
            engines.append(llm.engine)
            return plain_measure(llm, *rest)

        monkeypatch.setattr(runner, "measure", measure)
        corpus = ("--algorithms", "suffix", "--speculative-suffix-corpus-megabytes", 1)
        bench(*corpus)
        assert len(set(map(id, engines))) == len(engines) == len(ROWS) * 2
        caches = [cache for engine in engines for cache in engine.pool._caches.values()]
        assert not any(cache.shares for cache in caches), "a run may find its prompt computed by another"

    def test_draft_models_are_loaded_once_and_cost_their_reading(
        self, bench: Bench, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from outrider.bench import session

        loaded: list[str] = []
        plain_load = session.load_model

        def load(model: str | Path, options: Any) -> Any:
            loaded.append(str(model))
            return plain_load(model, options)

        monkeypatch.setattr(session, "load_model", load)
        flags: tuple[Any, ...] = ("--speculative-draft-model-path", folder, "--speculative-num-steps", 3)
        flags += ("--speculative-draft-quantization", "none")
        result = bench("--algorithms", "none,draft_model,specinfer", *flags, "--limit", 4)
        assert loaded == [str(folder)] * 2
        bench("--algorithms", "auto", "--speculative-draft-model-path", folder, "--limit", 1)
        assert len(loaded) == 4
        perfect = next(entry for entry in result["results"] if entry["algorithm"] == "draft_model")
        assert perfect["acceptance_rate"] > 0.95
        assert perfect["draft_steps_per_round"] > 1
        for sample in result["samples"]:  # the whole time has the prompt's in it
            parts = sum(sample[f"{part}_s"] for part in ("prefill", "draft", "verify", "other"))
            assert sample["prefill_s"] > 0
            assert sample["wall_s"] >= parts
        options = next(arm for arm in result["algorithms"] if arm["name"] == "draft_model")["options"]
        assert options["num_steps"] == 3
        assert options["model"] == folder.name

    def test_a_rule_that_changes_texts_is_caught(
        self, bench: Bench, drafter: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(registered()["coupled"], "accept", accept_everything)
        flags = ("--algorithms", "draft_model", "--speculative-draft-model-path", drafter, "--temperature", "0,1")
        for entry in overall(bench(*flags), "draft_model"):
            differences = entry["identical"]["differences"]
            assert len(differences) > 1
            assert entry["identical"]["within_tie_rule"] == 0
            assert entry["identical"]["same"] + len(differences) == entry["identical"]["texts"]
            for difference in differences:
                assert difference["plain_token"] != difference["token"]
                assert difference["worst_gap"] > 1e-3
                assert difference["worst_gap"] >= difference["gap"] >= difference["best_two_gap"] - 1e-6

    def test_a_tie_is_excused_and_counted(self, bench: Bench, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registered()["coupled"], "accept", accept_everything)
        monkeypatch.setattr(tie_rule, "SCORE", 1e9)
        flags = ("--backend", "hf", "--algorithms", "draft_model", "--speculative-draft-model-path", drafter)
        for entry in overall(bench(*flags), "draft_model"):
            facts = entry["identical"]
            assert facts["differences"]
            assert facts["same"] + facts["within_tie_rule"] == facts["texts"]

    def test_ratio_rules_promise_the_law_and_not_the_text(self, bench: Bench) -> None:
        result = bench("--algorithms", "ngram", "--temperature", "0,1", "--verifier", "rejection")
        promised = {entry["setting"]: entry["identical"]["promised"] for entry in result["results"]}
        assert promised == {"greedy": True, "T=1": False}

    def test_the_page_is_whole_and_loads_nothing(self, bench: Bench) -> None:
        result = bench("--algorithms", "ngram", "--temperature", "0,1")
        text = page(result)
        assert text.count("<svg") == text.count("</svg>") == 6
        for outside in ("http", "src=", "@import", "url("):
            assert outside not in text
        assert "nan" not in text.lower().replace("finance", "")

    def test_last_line_is_json_where_asked(
        self, capsys: pytest.CaptureFixture[str], folder: Path, prompts: Path, tmp_path: Path
    ) -> None:
        flags = ("--model", folder, "--prompts", prompts, "--limit", 2, "--max-tokens", 4, "--json", "-")
        page_file = tmp_path / "page.html"
        assert main([str(part) for part in ("bench", *flags, "--html", page_file)]) == 0
        captured = capsys.readouterr()
        assert json.loads(captured.out.splitlines()[-1])["schema_version"] == SCHEMA_VERSION
        assert "Speed, rule: coupled" in captured.err
        assert page_file.read_text().startswith("<!doctype html>")

    @pytest.mark.parametrize(
        ("flags", "named"),
        [
            ("--algorithms ngram,oracle", "oracle"),
            ("--algorithms ngram,NGRAM", "twice"),
            ("--temperature warm", "--temperature"),
            ("--temperature -1", "temperature"),
            ("--top-p 0,1", "top_p"),
            ("--max-tokens 0", "max_tokens"),
            ("--repeat 0", "repeat"),
            ("--limit 0", "limit"),
            ("--select import", "--select"),
            ("--json nowhere/out.json", "nowhere"),
            ("--algorithms draft_model --limit 2", "--draft-model"),
            ("--select i==6", "context"),
            ("--algorithms ngram --speculative-num-steps 2", "--num-steps is not an option of any method here"),
        ],
    )
    def test_bad_input(
        self, capsys: pytest.CaptureFixture[str], folder: Path, prompts: Path, flags: str, named: str
    ) -> None:
        code = main(["bench", "--model", str(folder), "--prompts", str(prompts), *flags.split()])
        captured = capsys.readouterr()
        assert code == 2
        assert named in captured.err
        assert captured.err.count("\n") == 1
        assert not captured.out
