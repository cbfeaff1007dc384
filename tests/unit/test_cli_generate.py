"""``outrider generate``: what it completes, prints and counts."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from command_line import completed, run
from tiny_folder import make_folder
from tiny_heads import tiny_head

from outrider import LLM, SamplingParams
from outrider.cli import figures
from outrider.drafters import config_class, methods
from outrider.drafters._trained import head_config
from outrider.heads.checkpoint import write_head
from outrider.kernels.native import cpu, kernel_names, use_kernels
from outrider.metrics import FEWEST_ONE_ROW_ROUNDS, RowCosts
from outrider.models.backends import load_model
from outrider.options import Role, drafter_option, roles_of


def test_json_has_what_it_promises(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    result = completed(capsys, "a b a b a b", "--model", folder, "--max-tokens", 12, "--speculative-algorithm", "NGRAM")
    assert len(result["token_ids"]) == result["usage"]["completion_tokens"] <= 12
    assert result["usage"]["total_tokens"] == result["usage"]["prompt_tokens"] + len(result["token_ids"])
    assert result["usage"]["cached_tokens"] == 0, "the first prompt of a process has nothing to take over"
    assert result["finish_reason"] in ("length", "stop")
    speculation = result["speculation"]
    assert (speculation["algorithm"], speculation["verifier"]) == ("ngram", "coupled")
    for key in ("rounds", "drafted", "tested", "accepted", "acceptance_rate", "mean_accepted_length"):
        assert speculation[key] >= 0
    assert len(speculation["acceptance_by_position"]) <= 8
    assert set(result["timing"]) >= {"prefill_s", "decode_s", "tokens_per_s", "draft_s", "verify_s"}
    assert isinstance(result["text"], str)
    assert isinstance(result["seed"], int)


def drafting_with(method: str, model: Path, draft: Path, place: Path) -> list[object]:
    """The flag that names a draft model or a head, for methods that have one."""
    roles = roles_of(config_class(method))
    if Role.HEAD in roles:
        write_head(place / method, tiny_head(method, load_model(model)[0]))
        draft = place / method
    return ["--speculative-draft-model-path", draft] if drafter_option(config_class(method)) else []


def test_a_head_is_found_to_be_one(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    for name in methods():
        flag = drafting_with(name, folder, folder, tmp_path)
        if (tmp_path / name).exists():
            result = completed(capsys, "to be", "--model", folder, "--max-tokens", 4, *flag)
            assert config_class(name).automatic([str(flag[1])]) is not None
            assert result["speculation"]["algorithm"] == "lookup_model"
            assert head_config(str(flag[1])) is not None, "a head was taken for a model"


def test_every_method_gives_the_same_text(
    capsys: pytest.CaptureFixture[str], folder: Path, other: Path, tmp_path: Path
) -> None:
    texts = set()
    for name in methods():
        path = drafting_with(name, folder, other, tmp_path)
        common = ("to be or not to be", "--model", folder, "--max-tokens", 16, "--temperature", 1, "--seed", 3)
        result = completed(capsys, *common, "--speculative-algorithm", name.upper(), *path)
        assert result["speculation"]["algorithm"] == name
        texts.add(tuple(result["token_ids"]))
    assert len(texts) == 1


def test_streams_text_and_keeps_figures_apart(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, out, err = run(capsys, "generate", "hello", "-m", folder, "--max-tokens", 6)
    text = completed(capsys, "hello", "-m", folder, "--max-tokens", 6)["text"]
    assert code == 0
    assert out == text + "\n"
    assert "tokens/s" in err
    assert not set("ατ") & set(err)
    told = run(capsys, "generate", "a b a b a b", "-m", folder, "--max-tokens", 40, "--verbose")[2]
    for letter in ("τ ", "α ", "c ", "t(rows) 1: "):
        assert f"\n{letter}" in told


def test_the_first_figure_is_the_gain(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    """Long enough a text tells it from its own rounds, a short one from a few plain rounds, the shortest not at all."""
    plain = ("generate", "a b a b a b", "-m", folder, "--ignore-eos", "--max-tokens", 40, "--algorithm", "none")
    asked = (*plain[:5], "--algorithm", "ngram", "--max-tokens")
    for tokens in (40, 160):
        line = run(capsys, *asked, tokens)[2].splitlines()[-1]
        gain = r"\d+\.\d\d × plain \(predicted from \d+ one-row rounds of \d+\.\d ms\)"
        assert re.match(rf"({gain}|speedup unknown \(the machine is busy\)) · ", line), line
    assert "× plain" not in run(capsys, *asked, 4)[2]
    assert "several texts at once" in run(capsys, *asked, 40, "--n", 2)[2]
    assert re.match(r"\d+\.\d tokens/s$", run(capsys, *plain)[2].splitlines()[-1])


def test_plain_rounds_repeat_the_end_of_the_text(folder: Path) -> None:
    llm = LLM(folder, speculation="ngram")
    prompt, params = llm.encode("a b a b a b"), SamplingParams(max_tokens=60, temperature=1.0, stop=("§",), seed=4)
    done = llm.generate(prompt, params)[0]
    again: list[tuple[int, ...]] = []
    llm.stream = lambda start, wish: again.append(tuple(start)) or LLM.stream(llm, start, wish)  # type: ignore[method-assign]
    before = llm.engine.seconds.copy()
    costs = figures.plain_costs(llm, prompt, done.choices[0], params)
    assert again == [(*prompt, *done.token_ids[: -FEWEST_ONE_ROW_ROUNDS - 1])]
    assert costs.rounds == {1: FEWEST_ONE_ROW_ROUNDS}
    assert llm.engine.seconds.minus(before).by_rows == costs
    short = llm.generate(prompt, SamplingParams(max_tokens=4))[0]
    assert figures.plain_costs(llm, prompt, short.choices[0], params) == RowCosts()


def test_says_where_it_was_cut(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    asked = ("generate", "hello", "-m", folder, "--ignore-eos")
    assert "cut at 3 tokens; --max-tokens N raises it" in run(capsys, *asked, "--max-tokens", 3)[2]
    several = run(capsys, *asked, "--max-tokens", 3, "--n", 2)[2]
    assert all(f"[{number}] cut at 3 tokens; " in several for number in (1, 2))
    whole = run(capsys, *asked, "--max-tokens", "none", "--context-length", 64)[2]
    assert re.search(r"cut at \d+ tokens: the context of 64 tokens is full", whole)
    letter = completed(capsys, "hello", "-m", folder, "--max-tokens", 3)["text"][0]
    assert "cut" not in run(capsys, *asked, "--max-tokens", 300, "--stop", letter)[2]


def test_several_completions_and_log_probabilities(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    asked = ("hello", "-m", folder, "--max-tokens", 3, "--temperature", 1, "--seed", 1, "--n", 2)
    result = completed(capsys, *asked, "--logprobs", 2, "--prompt-logprobs", 1)
    assert [choice["index"] for choice in result["choices"]] == [0, 1]
    assert result["choices"][0]["text"] == result["text"]
    assert len(result["prompt_logprobs"]) == result["usage"]["prompt_tokens"]
    for choice in result["choices"]:
        assert [token["token_id"] for token in choice["logprobs"]] == choice["token_ids"]
        assert all(len(token["top"]) == 2 and token["logprob"] < 0 for token in choice["logprobs"])
    code, out, err = run(capsys, "generate", *asked, "--logprobs", 2)
    assert code == 0
    assert out == "".join(f"[{choice['index'] + 1}] {choice['text']}\n" for choice in result["choices"])
    assert err.count("log-probability") == 2


def test_old_spellings_are_the_new_ones(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    common = ("a b a b a b", "-m", folder, "--max-tokens", 12)
    short = completed(capsys, *common, "--algorithm", "suffix", "--draft-tokens", 3, "--suffix-min-match", 1)
    long = ("--speculative-algorithm", "SUFFIX", "--speculative-num-draft-tokens", 3)
    same = completed(capsys, *common, *long, "--speculative-suffix-min-match", 1)
    for result in (short, same):
        del result["timing"], result["seed"], result["choices"], result["usage"]
        for figure in ("cost_coefficient", "one_row_s", "predicted_speedup"):
            del result["speculation"][figure]
    assert short == same


@pytest.mark.skipif(cpu is None, reason="there are no kernels to choose from")
def test_kernels_are_chosen_and_change_nothing(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_KERNELS", "")
    common = ("hello", "-m", folder, "--backend", "native", "--max-tokens", 6)
    try:
        texts = set()
        for name in kernel_names():
            texts.add(tuple(completed(capsys, *common, "--kernels", name)["token_ids"]))
            assert cpu.kernel_name() == name
        assert len(texts) == 1
    finally:
        use_kernels(None)


def test_prompt_from_file_and_standard_input(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt.txt").write_text("salut ça va")
    common = ("--model", folder, "--max-tokens", 4)
    direct = completed(capsys, "salut ça va", *common)
    assert completed(capsys, "--prompt-file", tmp_path / "prompt.txt", *common)["token_ids"] == direct["token_ids"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("salut ça va"))
    assert completed(capsys, "-", *common)["token_ids"] == direct["token_ids"]
    for words in ((), ("--prompt-file=-",)):
        monkeypatch.setattr(sys, "stdin", io.StringIO("salut ça va"))
        assert completed(capsys, *words, *common)["token_ids"] == direct["token_ids"]
    dash = json.loads(run(capsys, "generate", *common, "--json", "--", "--josn")[1])
    (tmp_path / "prompt.txt").write_text("--josn")
    assert completed(capsys, "--prompt-file", tmp_path / "prompt.txt", *common)["token_ids"] == dash["token_ids"]


def test_chat_template_is_the_default_where_there_is_one(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
) -> None:
    common = ("hello", "--max-tokens", 1)
    default = completed(capsys, *common, "--model", folder)["usage"]["prompt_tokens"]
    raw = completed(capsys, *common, "--model", folder, "--raw")["usage"]["prompt_tokens"]
    assert default == completed(capsys, *common, "--model", folder, "--chat")["usage"]["prompt_tokens"] == raw + 2
    bare = make_folder(tmp_path / "bare", template=None)
    assert completed(capsys, *common, "--model", bare)["usage"]["prompt_tokens"] == raw
    code, _, err = run(capsys, "generate", *common, "--model", bare, "--chat")
    assert code == 2
    assert "has no chat template" in err


def test_stopping_strings_may_be_several(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    whole = completed(capsys, "hello", "--model", folder, "--max-tokens", 12)["text"]
    letter = next(character for character in whole[2:] if whole.index(character) >= 2)
    cut = completed(capsys, "hello", "--model", folder, "--max-tokens", 12, "--stop", letter, "--stop", "§§")
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == whole[: whole.index(letter)]


def test_an_interrupt_ends_quietly(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outrider import llm

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.LLM, "stream", interrupt)
    code, _, err = run(capsys, "generate", "hi", "--model", folder)
    assert (code, err.strip()) == (130, "")
