"""The command line, in process: what it prints, and one sentence with exit code 2 for every bad input."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_folder import make_folder
from tiny_heads import tiny_head

from outrider.cli import COMMANDS, main
from outrider.cli.options import METHOD, MethodFlags, SpeculationFlags, all_options, options_of
from outrider.completion import Chunk
from outrider.drafters._trained import head_config
from outrider.drafters.base import config_class, methods
from outrider.errors import ConfigError, OutriderError
from outrider.heads.checkpoint import write_head
from outrider.target.backends import load_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("models") / "other", seed=1)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def completed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    code, out, err = run(capsys, "generate", *arguments, "--json")
    assert code == 0, err
    return json.loads(out.splitlines()[-1])


def test_help_needs_no_torch() -> None:
    check = "import sys; from outrider.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for name in COMMANDS:
        assert name in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert COMMANDS[command].split(";")[0].split(",")[0].rstrip(".") in " ".join(out.split())


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
    (named,) = [option.field for option in options_of(config_class(method)) if "draft-model-path" in option.flag] or [
        ""
    ]
    if named == "head":
        write_head(place / method, tiny_head(method, load_model(model)[0]))
        draft = place / method
    return ["--speculative-draft-model-path", draft] if named else []


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
    code, out, err = run(capsys, "generate", "hello", "--model", folder, "--max-tokens", 6)
    text = completed(capsys, "hello", "--model", folder, "--max-tokens", 6)["text"]
    assert code == 0
    assert out == text + "\n"
    assert "tokens/s" in err
    assert "τ" in err


def test_prompt_from_file_and_standard_input(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt.txt").write_text("salut ça va")
    common = ("--model", folder, "--max-tokens", 4)
    direct = completed(capsys, "salut ça va", *common)
    assert completed(capsys, "--prompt-file", tmp_path / "prompt.txt", *common)["token_ids"] == direct["token_ids"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("salut ça va"))
    assert completed(capsys, "-", *common)["token_ids"] == direct["token_ids"]


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


def asked(line: str) -> list[str]:
    """Arguments of ``generate`` with a prompt, and a line of flags after them."""
    return ["generate", "hi", "--model", *line.split()]


BAD: dict[str, tuple[list[str], str]] = {
    "unknown command": (["frobnicate"], "frobnicate"),
    "no model": (["generate", "hi"], "--model"),
    "unknown model": (asked("nope"), "nope"),
    "unknown flag": (asked("FOLDER --frob 1"), "--frob"),
    "flag without value": (asked(""), "--model"),
    "not a number": (asked("FOLDER --temperature warm"), "--temperature"),
    "temperature": (asked("FOLDER --temperature -1"), "temperature"),
    "top-p": (asked("FOLDER --top-p 1.5"), "top_p"),
    "max-tokens": (asked("FOLDER --max-tokens -1"), "max_tokens"),
    "dtype": (asked("FOLDER --dtype int3"), "int3"),
    "device": (asked("FOLDER --device abacus"), "abacus"),
    "device without kernels": (asked("FOLDER --device meta"), "models cannot run on device 'meta'"),
    "device that is not there": (asked("FOLDER --device cuda:99"), "device cuda:99 was asked for"),
    "not unicode": (["generate", "\udcff", "--model", "FOLDER"], "not valid Unicode"),
    "name too long": (asked("x" * 5000), "cannot be a model's path"),
    "backend": (asked("FOLDER --backend steam"), "steam"),
    "threads": (asked("FOLDER --threads 0"), "--threads"),
    "algorithm": (asked("FOLDER --speculative-algorithm oracle"), "oracle"),
    "verifier": (asked("FOLDER --verifier hope"), "hope"),
    "foreign flag": (
        asked("FOLDER --speculative-algorithm ngram --speculative-num-steps 2"),
        "--speculative-num-steps is not an option of ngram",
    ),
    "k too large": (
        asked("FOLDER --speculative-algorithm ngram --speculative-num-draft-tokens 5000"),
        "num_draft_tokens must be at least 0 and at most 1024, not 5000",
    ),
    "k negative": (
        asked("FOLDER --speculative-algorithm suffix --speculative-num-draft-tokens -1"),
        "num_draft_tokens",
    ),
    "no draft model": (asked("FOLDER --speculative-algorithm draft_model"), "--speculative-draft-model-path"),
    "two draft models": (
        asked(
            "FOLDER --speculative-algorithm draft-model "
            "--speculative-draft-model-path a --speculative-draft-model-path b"
        ),
        "takes one --speculative-draft-model-path, but 2 were given",
    ),
    "rule not exact": (
        asked(
            "FOLDER --speculative-algorithm DRAFT_MODEL --verifier rejection "
            "--speculative-draft-model-path OTHER --speculative-eagle-topk 2"
        ),
        "not exact for trees that branch",
    ),
    "foreign vocabulary": (
        asked("FOLDER --speculative-algorithm DRAFT_MODEL --speculative-draft-model-path FOREIGN"),
        "cannot draft for this target",
    ),
    "empty prompt": (["generate", "", "--model", "FOLDER"], "prompt is empty"),
    "no prompt": (["generate", "--model", "FOLDER"], "give one prompt"),
    "no prompt file": (["generate", "--model", "FOLDER", "--prompt-file", "nowhere.txt"], "nowhere.txt"),
    "two prompts": (asked("FOLDER --prompt-file x.txt"), "give one prompt"),
    "too long": (["generate", "z " * 600, "--model", "FOLDER"], "the context holds"),
    "empty stop": (["generate", "hi", "--model", "FOLDER", "--stop", ""], "stop"),
    "NaN": (asked("NAN"), "NaN"),
    "corrupt gguf": (asked("CORRUPT"), "corrupt.gguf"),
    "no weights": (asked("EMPTY"), "config.json"),
    "bench prompts": (["bench", "--model", "FOLDER", "--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
}


@pytest.fixture(scope="module")
def places(folder: Path, other: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("bad")
    (base / "corrupt.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 64)
    (base / "empty").mkdir()
    return {
        "FOLDER": str(folder),
        "OTHER": str(other),
        "FOREIGN": str(make_folder(base / "foreign", vocabulary=300)),
        "NAN": str(make_folder(base / "nan", spoil="model.norm.weight")),
        "CORRUPT": str(base / "corrupt.gguf"),
        "EMPTY": str(base / "empty"),
    }


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
    places: dict[str, str],
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OUTRIDER_MODELS", str(tmp_path))
    arguments, named = BAD[case]
    code, out, err = run(capsys, *(places.get(argument, argument) for argument in arguments))
    assert code == 2, err
    assert named in err
    assert err.startswith("outrider: ")
    assert err.count("\n") == 1
    assert not out.strip()


def test_stopping_strings_may_be_several(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    whole = completed(capsys, "hello", "--model", folder, "--max-tokens", 12)["text"]
    letter = next(character for character in whole[2:] if whole.index(character) >= 2)
    cut = completed(capsys, "hello", "--model", folder, "--max-tokens", 12, "--stop", letter, "--stop", "§§")
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == whole[: whole.index(letter)]


class TestFlags:
    def test_every_option_of_every_method_has_a_flag(self) -> None:
        for name in methods():
            for option in options_of(config_class(name)):
                assert option in all_options()[option.flag]
                assert hasattr(METHOD, option.flag.replace("-", "_"))

    def test_default_is_the_methods_own(self) -> None:
        for name in methods():
            assert MethodFlags().plan(name).config == config_class(name)()

    def test_names_do_not_mind_case_and_dashes(self) -> None:
        plan = SpeculationFlags(speculative_algorithm="Draft-Model", verifier="MULTI_STEP").chosen()
        assert plan.names == {"algorithm": "draft_model", "verifier": "multi-step"}

    def test_auto_takes_a_given_draft_model(self) -> None:
        flags = {"speculative_draft_model_path": ["small"], "speculative_num_steps": 3}
        config = SpeculationFlags(**flags).chosen().config
        assert (config.model, config.num_steps) == ("small", 3)

    def test_auto_without_one_refuses_its_options(self) -> None:
        with pytest.raises(ConfigError, match="--speculative-num-steps is not an option of"):
            SpeculationFlags(speculative_num_steps=3).chosen()

    def test_foreign_options_are_ignored_where_several_methods_run(self) -> None:
        flags = MethodFlags(speculative_num_steps=3, speculative_num_draft_tokens=5)
        assert flags.plan("ngram", ignore_foreign=True).config.num_draft_tokens == 5

    def test_several_models_reach_the_method_that_merges(self) -> None:
        flags = MethodFlags(speculative_draft_model_path=["a", "b"])
        assert flags.plan("specinfer").config.models == ("a", "b")


class TestChat:
    def lines(self, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))

    def test_answers_forgets_and_ends(
        self, capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.lines(monkeypatch, "hello", "/what", "/reset", "hello", "/exit", "never read")
        code, out, err = run(capsys, "chat", "--model", folder, "--max-tokens", 8)
        expected = completed(capsys, "hello", "--model", folder, "--max-tokens", 8)["text"]
        assert code == 0
        assert out == (expected + "\n") * 2
        assert "there is no command /what" in err
        assert err.count("tokens/s") == 2

    @pytest.mark.parametrize("flags", [["--prefix-cache"], ["--no-prefix-cache"], []])
    def test_the_next_turn_takes_over_the_conversation(
        self, capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
    ) -> None:
        from outrider.completion import Choice

        choices, of = [], Choice.of
        monkeypatch.setattr(Choice, "of", lambda *given: (choices.append(of(*given)), choices[-1])[1])
        self.lines(monkeypatch, "ab " * 30, "and on", "/exit")
        code, _, err = run(capsys, "chat", "--model", folder, "--max-tokens", 8, "--backend", "hf", *flags)
        assert code == 0, err
        first, second = (choice.cached_tokens for choice in choices)
        assert first == 0
        assert (second >= 80) == (flags == ["--prefix-cache"]), "on hf it is off unless asked for"

    def test_interrupt_stops_the_answer_only(
        self, capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from outrider.engine import Engine

        plain_step, calls = Engine.step, []

        def step(engine: Engine) -> list:
            calls.append(engine)
            if len(calls) == 4:
                raise KeyboardInterrupt
            return plain_step(engine)

        monkeypatch.setattr(Engine, "step", step)
        self.lines(monkeypatch, "hello", "again")
        code, _, err = run(capsys, "chat", "--model", folder, "--max-tokens", 8, "--speculative-algorithm", "none")
        assert code == 0
        assert "stopped" in err
        assert err.count("tokens/s") == 1
        assert calls[0].idle
        calls[0].pool.check()

    def test_a_question_past_the_context_is_refused_and_forgotten(
        self, capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.lines(monkeypatch, "z " * 600, "hello")
        code, out, err = run(capsys, "chat", "--model", folder, "--max-tokens", 4)
        assert code == 0
        assert "the context holds" in err
        assert out == completed(capsys, "hello", "--model", folder, "--max-tokens", 4)["text"] + "\n"


class Pieces:
    """A tokenizer whose tokens are letters."""

    def stream(self) -> Pieces:
        return self

    def push(self, token: int) -> str:
        return chr(token)


def test_shades_follow_the_text_that_is_shown() -> None:
    from outrider.cli.output import Shades

    shades = Shades(Pieces())  # type: ignore[arg-type]
    first = list(shades.split(Chunk(0, "ab", tuple(map(ord, "abc")), 2)))
    assert first == [("a", True), ("b", True)]
    assert list(shades.split(Chunk(0, "cd", tuple(map(ord, "d!")), 1))) == [("c", False), ("d", True)]


def test_an_interrupt_ends_quietly(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outrider import llm

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.LLM, "stream", interrupt)
    code, _, err = run(capsys, "generate", "hi", "--model", folder)
    assert (code, err.strip()) == (130, "")


def test_broken_pipe_is_silent() -> None:
    script = "import sys; from outrider.cli import main; sys.exit(main(['info', '--json']))"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        err = child.stderr.read().decode()
    assert (child.returncode, err) == (141, "")


def test_models_lists_good_and_bad(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_MODELS", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert "no models yet" in run(capsys, "models")[1]
    make_folder(tmp_path / "tiny")
    (tmp_path / "bad.gguf").write_bytes(b"GGUFnot")
    code, out, _ = run(capsys, "models", "--json")
    found = {entry["name"]: entry for entry in json.loads(out)["models"]}
    assert code == 0
    assert found["tiny"]["architecture"] == "llama"
    assert found["tiny"]["file_bytes"] > 0
    assert "bad.gguf" in found["bad"]["problem"]
    assert "tiny" in run(capsys, "models")[1]


def test_info_names_every_method_and_rule(capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(run(capsys, "info", "--json")[1])
    assert set(facts["drafters"]) == set(methods())
    assert facts["verifiers"]["coupled"]["exact_for_trees"]
    assert facts["machine"]["versions"]["torch"]
    text = run(capsys, "info")[1]
    for flag in all_options():
        assert f"--{flag}" in text


def test_every_error_of_ours_is_bad_input() -> None:
    from outrider import errors

    for name in ("ConfigError", "ModelError", "RequestError", "NumericsError"):
        assert issubclass(getattr(errors, name), OutriderError)


@pytest.mark.parametrize("wish", [0, 10_000_000])
def test_a_context_longer_than_the_models_is_refused(
    folder: Path, wish: int, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["generate", "--model", str(folder), "--context-length", str(wish), "hello"])
    assert code == 2
    assert "context_length" in capsys.readouterr().err
