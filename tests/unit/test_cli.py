"""The command line, in process: its help, and one sentence with exit code 2 for every bad input."""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from command_line import run
from tiny_folder import make_folder

from outrider.cli import _app, _prepared, failures, main
from outrider.cli.commands import COMMANDS, GROUPS, TAKES_DASH
from outrider.cli.method_options import spellings
from outrider.cli.options import METHOD, MethodFlags, ModelFlags, SpeculationFlags, all_options, options_of
from outrider.cli.sampling import CompletionFlags
from outrider.drafters import config_class, methods
from outrider.errors import ConfigError, OutriderError
from outrider.sampling.params import SamplingParams


class Terminal(io.StringIO):
    """Standard input at which somebody sits."""

    def isatty(self) -> bool:
        return True


EVERY = [[name] for name in COMMANDS] + [[name, below] for name in GROUPS for below in GROUPS[name]]


def json_options(words: list[str]) -> list[str]:
    """The words that ask a command for JSON; none where it has no such option."""
    module = __import__(f"outrider.cli.{words[-1]}", fromlist=["_"])
    text = inspect.getsource(module)
    if '"--json"' not in text and "output.AS_JSON" not in text:
        return []
    return ["--json", "-"] if re.search(r'Path \| None, Parameter\(name="--json"', text) else ["--json"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert COMMANDS[command].split(";")[0].split(",")[0].rstrip(".") in " ".join(out.split())


TITLE = re.compile(r"^([A-Z][a-z]+(?: [a-z]+)*)(?: \(.*\))?\s*$", re.M)
COMMON = ["Arguments", "Model", "Sampling", "Speculation", "Output"]


def shown(text: str) -> list[str]:
    """The options that a help lists."""
    return re.findall(r"^  (?:-\w, )?(--\S+)", text, re.M)


@pytest.mark.parametrize("columns", [80, 100])
def test_help_is_short(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = run(capsys, "generate", "--help")
    assert out.count("\n") <= 32
    assert TITLE.findall(out) == COMMON
    assert {"--model", "--max-tokens", "--temperature", "--draft-model", "--algorithm", "--json"} <= set(shown(out))
    assert out.rstrip().endswith("More options: --help all")


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_all_leaves_nothing_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(capsys, "generate", flag, "all")
    assert TITLE.findall(out) == [*COMMON, *(f"More {name.lower()} options" for name in COMMON[1:4])]
    names = shown(out)
    assert len(set(names)) == len(names) >= 35
    for option in ("--repetition-penalty", "--kernels", "--[no-]prefix-cache", "--verifier"):
        assert option in out
    assert "--help all" not in out


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_help_says_where_the_rest_is(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    short, whole = (run(capsys, *words, "--help", *more)[1] for more in ((), ("all",)))
    assert ("--help all" in short) == (set(shown(short)) < set(shown(whole)))
    assert set(shown(short)) <= set(shown(whole))


def test_words_behind_two_dashes_ask_for_no_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "generate", "-m", "nope", "--", "--help", "all")[0] == 2
    assert run(capsys, "generate", "-m", "nope", "all", "--help")[0] == 0


def whole_number_flags(words: list[str]) -> list[str]:
    """The options of a command that take a whole number."""
    command = _app(all_options=True)
    for word in words:
        command = command[word]
    found = command.assemble_argument_collection()
    return [each.name for each in found if each.parse and int in (each.hint, *get_args(each.hint))]


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
@pytest.mark.parametrize("value", ["1.5", "30.0", "1e3", "0x10", "many"])
def test_a_whole_number_is_never_rounded(capsys: pytest.CaptureFixture[str], words: list[str], value: str) -> None:
    flags = whole_number_flags(words)
    assert flags or words[0] in ("export", "models", "info")
    for flag in flags:
        code, _, err = run(capsys, *words, *NEEDED.get(words[-1], ()), f"{flag}={value}")
        assert (code, err) == (2, f"outrider: {flag} takes a whole number, not {value!r}\n")


NEEDED = {
    "generate": ("-m", "nope", "hi"),
    "chat": ("-m", "nope"),
    "serve": ("-m", "nope"),
    "bench": ("-m", "nope"),
    "study": ("-m", "nope"),
    "audit": ("-m", "nope"),
    "train": ("eagle3", "--model", "nope", "--output", "nope"),
}
"""What each command cannot do without."""


@pytest.mark.parametrize("command", ["bench", "study"])
@pytest.mark.parametrize(
    "words", [["--json", "--limit", "x"], ["--json=-", "--limit", "x"], ["--json", "-", "--limit", "x"]], ids=" ".join
)
def test_json_without_a_file_takes_no_option_for_one(
    capsys: pytest.CaptureFixture[str], command: str, words: list[str]
) -> None:
    code, out, err = run(capsys, command, "-m", "nope", *words)
    assert (code, err) == (2, "outrider: --limit takes a whole number, not 'x'\n")
    assert json.loads(out)["error"]["type"] == "UsageError"
    _, out, err = run(capsys, command, "-m", "nope", "--limit", "x", "--json")
    assert json.loads(out)["error"]["message"] == "--limit takes a whole number, not 'x'"


def test_a_dash_belongs_to_the_option_before_it() -> None:
    assert _prepared(["generate", "--stop", "-", "-", "-m", "x"]) == ["generate", "--stop=-", "-m", "x", "--", "-"]
    assert _prepared(["generate", "--prompt-file", "-", "-m", "x"]) == ["generate", "--prompt-file=-", "-m", "x"]
    assert _prepared(["generate", "--json", "-"]) == ["generate", "--json", "--", "-"]
    assert _prepared(["bench", "kernels", "--json", "--repeat", "1"]) == ["bench", "kernels", "--json", "--repeat", "1"]
    assert _prepared(["bench", "--json", "out.json", "--html", "x"]) == ["bench", "--json", "out.json", "--html", "x"]
    assert _prepared(["chat", "--", "--json", "-"]) == ["chat", "--", "--json", "-"]


@pytest.mark.parametrize(
    ("command", "flag"), [(command, flag) for command in TAKES_DASH for flag in TAKES_DASH[command]]
)
def test_options_that_take_a_dash_exist(capsys: pytest.CaptureFixture[str], command: str, flag: str) -> None:
    _, _, err = run(capsys, command, *NEEDED[command], flag, "-", "--frobnicate")
    assert "there is no option --frobnicate" in err


def test_every_sampling_parameter_has_a_flag() -> None:
    flags = {item.name for item in dataclasses.fields(CompletionFlags)}
    wanted = {item.name for item in dataclasses.fields(SamplingParams)}
    assert wanted - flags == {
        *("processors", "skip_special_tokens", "cache_salt", "priority", "tenant"),
        *(
            "speculate",
            "algorithm",
            "max_draft_tokens",
            "prediction",
        ),  # the commands speculate one way for all requests
    }
    assert flags - wanted == {"show_special_tokens", "json_schema", "regex"}
    assert CompletionFlags().params() == SamplingParams()


def test_sampling_flags_are_read() -> None:
    flags = CompletionFlags(
        logit_bias=["3=-1.5", "4=2"],
        bad_words=["1,2", "3", "moon", "3, 2, 1 go"],
        allowed_token_ids="1, 2",
        stop_token_ids="7",
        stop=["."],
        show_special_tokens=True,
    )
    wanted = SamplingParams(
        logit_bias={3: -1.5, 4: 2.0},
        bad_words=((1, 2), (3,), "moon", "3, 2, 1 go"),
        allowed_token_ids=(1, 2),
        stop_token_ids=(7,),
        stop=(".",),
        skip_special_tokens=False,
    )
    assert flags.params() == wanted


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_an_unknown_option_is_named_in_every_command(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    code, out, err = run(capsys, *words, "--josn", "5")
    assert (code, out) == (2, "")
    assert err.startswith("outrider: there is no option --josn")
    assert ("did you mean --json?" in err) == bool(json_options(words))
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_errors_are_json_where_json_was_asked_for(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    if not (asked_for := json_options(words)):
        pytest.skip("it prints no JSON")
    code, out, err = run(capsys, *words, *asked_for, "--frobnicate")
    assert code == 2
    error = json.loads(out)["error"]
    assert error == {"message": err.removeprefix("outrider: ").rstrip("\n"), "type": "UsageError"}


def test_errors_in_json_go_by_their_class(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    common = ("generate", "hi", "--json", "--model")
    assert json.loads(run(capsys, *common, "nope")[1])["error"]["type"] == "ModelError"
    assert json.loads(run(capsys, *common, folder, "--top-p", 7)[1])["error"]["type"] == "ConfigError"
    assert json.loads(run(capsys, *common, folder, "--prompt-file", "x")[1])["error"]["type"] == "ConfigError"


def launched(*arguments: object, shell: str = "") -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, whose streams a shell redirects."""
    script = "import sys; from outrider.cli import main; sys.exit(main())"
    words = ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize(
    "line", ["--help", "--version", "info", "info --json", "models", "generate FOLDER", "GENERATE"]
)
def test_a_full_disk_is_one_sentence(folder: Path, line: str) -> None:
    words = {"GENERATE": f"generate -m {folder} --max-tokens 2 hi", "generate FOLDER": "generate --json -m nope hi"}
    done = launched(*words.get(line, line).split(), shell=">/dev/full")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert ("No space left" in done.stderr) == (line != "generate FOLDER")


@pytest.mark.parametrize(
    ("shell", "code", "told"),
    [(">&-", 2, "standard output is closed"), ("<&-", 2, "give a prompt"), ("2>&-", 2, ""), ("2>/dev/full", 2, "")],
)
def test_closed_streams_are_no_traceback(folder: Path, shell: str, code: int, told: str) -> None:
    done = launched("generate", "-m", folder, "--max-tokens", 2, shell=shell)
    assert done.returncode == code
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_characters_a_terminal_lacks_are_spelt_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = launched("generate", "-m", "\u00fc", "--json", "hi")
    assert done.returncode == 2
    assert "\u00fc" in json.loads(done.stdout)["error"]["message"]


def test_an_import_that_an_interrupt_ended_is_an_interrupt() -> None:
    def cut_short(_: object) -> int:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ModuleNotFoundError("late") from error

    def missing(_: object) -> int:
        raise ModuleNotFoundError("late")

    assert failures.guarded(cut_short, []) == 130
    with pytest.raises(ModuleNotFoundError):
        failures.guarded(missing, [])


def test_results_have_a_place_before_the_work(tmp_path: Path) -> None:
    from outrider.cli.output import check_writable

    check_writable(None, Path("-"), tmp_path / "new.json")
    for wrong in (tmp_path, Path("--html"), tmp_path / "none" / "x.json"):
        with pytest.raises(ConfigError, match=re.escape(str(wrong))):
            check_writable(wrong)


def asked(line: str) -> list[str]:
    """Arguments of ``generate`` with a prompt, and a line of flags after them."""
    return ["generate", "hi", "--model", *line.split()]


BAD: dict[str, tuple[list[str], str]] = {
    "unknown command": (["frobnicate"], "frobnicate"),
    "no model": (["generate", "hi"], "--model"),
    "unknown model": (asked("nope"), "nope"),
    "unknown flag": (asked("FOLDER --frob 1"), "there is no option --frob"),
    "misspelt flag for a prompt": (["generate", "--model", "FOLDER", "--josn"], "--josn; did you mean --json?"),
    "misspelt flag and a value": (["generate", "--model", "FOLDER", "--josn", "5"], "--josn; did you mean --json?"),
    "misspelt flag that is needed": (["generate", "hi", "--modle", "FOLDER"], "--modle; did you mean --model?"),
    "misspelt command": (["generat"], "did you mean generate?"),
    "several words": (["generate", "--model", "FOLDER", "to", "be"], "unexpected argument 'be'"),
    "flag without value": (asked(""), "--model"),
    "not a number": (asked("FOLDER --temperature warm"), ": --temperature takes a number, not 'warm'\n"),
    "not a whole number": (asked("FOLDER --top-k x"), ": --top-k takes a whole number, not 'x'\n"),
    "neither yes nor no": (asked("FOLDER --ignore-eos=so"), ": --ignore-eos takes yes or no, not 'so'\n"),
    "none of the choices": (
        ["audit", "-m", "FOLDER", "--scope", "x"],
        ": --scope takes all, texts or greedy, not 'x'\n",
    ),
    "twice": (asked("FOLDER --draft-tokens 1 --draft-tokens 2"), ": --draft-tokens may be given only once\n"),
    "option behind --": (
        ["generate", "-m", "FOLDER", "--", "-hello", "--max-tokens", "4"],
        ": --max-tokens comes after --, where everything is an argument; put options before --\n",
    ),
    "no model to look up with": (
        asked("FOLDER --algorithm lookup_model"),
        ": lookup_model needs a draft model or head; name it with --draft-model",
    ),
    "foreign flag for auto": (
        asked("FOLDER --algorithm auto --num-steps 2"),
        "--num-steps is not an option of suffix, which auto chose here; it has: ",
    ),
    "misspelt algorithm": (asked("FOLDER --algorithm sufix"), "(did you mean suffix?); there are: auto, "),
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
    "no thread": (asked("FOLDER --threads 0"), "threads must be from 1 to"),
    "threads": (asked("FOLDER --threads 1025"), "threads must be from 1 to"),
    "far too many threads": (asked("FOLDER --threads 100000"), "threads must be from 1 to"),
    "kernels": (asked("FOLDER --kernels abacus"), "there are no kernels 'abacus'"),
    "logit bias": (asked("FOLDER --logit-bias 3"), "--logit-bias takes a token id and a number"),
    "token ids": (asked("FOLDER --stop-token-ids 3,x"), "--stop-token-ids takes token ids"),
    "algorithm": (asked("FOLDER --speculative-algorithm oracle"), "oracle"),
    "verifier": (asked("FOLDER --verifier hope"), "hope"),
    "foreign flag": (
        asked("FOLDER --speculative-algorithm ngram --speculative-num-steps 2"),
        "--num-steps is not an option of ngram",
    ),
    "k too large": (
        asked("FOLDER --speculative-algorithm ngram --speculative-num-draft-tokens 5000"),
        "num_draft_tokens must be at least 0 and at most 1024, not 5000",
    ),
    "k negative": (
        asked("FOLDER --speculative-algorithm suffix --speculative-num-draft-tokens -1"),
        "num_draft_tokens",
    ),
    "no draft model": (
        asked("FOLDER --speculative-algorithm draft_model"),
        "needs a draft model or head; name it with --draft-model",
    ),
    "no head": (asked("FOLDER --algorithm eagle3"), "eagle3 needs a draft model or head; name it with --draft-model"),
    "two draft models": (
        asked(
            "FOLDER --speculative-algorithm draft-model "
            "--speculative-draft-model-path a --speculative-draft-model-path b"
        ),
        "takes one --draft-model, but 2 were given",
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
    "no prompt": (["generate", "--model", "FOLDER"], "give a prompt"),
    "no prompt file": (
        ["generate", "--model", "FOLDER", "--prompt-file", "nowhere.txt"],
        "nowhere.txt cannot be read: No such file or directory\n",
    ),
    "two prompts": (asked("FOLDER --prompt-file x.txt"), "give one prompt"),
    "too long": (["generate", "z " * 600, "--model", "FOLDER"], "the context holds"),
    "empty stop": (["generate", "hi", "--model", "FOLDER", "--stop", ""], "stop"),
    "NaN": (asked("NAN"), "NaN"),
    "corrupt gguf": (asked("CORRUPT"), "corrupt.gguf"),
    "no weights": (asked("EMPTY"), "config.json"),
    "prompt file of bytes": (["generate", "--model", "FOLDER", "--prompt-file", "BYTES"], "cannot be read"),
    "prompt file is a folder": (["generate", "--model", "FOLDER", "--prompt-file", "EMPTY"], "cannot be read"),
    "bench prompts": (
        ["bench", "--model", "FOLDER", "--prompts", "nowhere.jsonl"],
        "nowhere.jsonl cannot be read: No such",
    ),
}


@pytest.fixture(scope="module")
def places(folder: Path, other: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("bad")
    (base / "corrupt.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 64)
    (base / "empty").mkdir()
    (base / "bytes.txt").write_bytes(b"caf\xe9")
    return {
        "FOLDER": str(folder),
        "OTHER": str(other),
        "FOREIGN": str(make_folder(base / "foreign", vocabulary=300)),
        "NAN": str(make_folder(base / "nan", spoil="model.norm.weight")),
        "CORRUPT": str(base / "corrupt.gguf"),
        "EMPTY": str(base / "empty"),
        "BYTES": str(base / "bytes.txt"),
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
    monkeypatch.setattr(sys, "stdin", Terminal())
    arguments, named = BAD[case]
    code, out, err = run(capsys, *(places.get(argument, argument) for argument in arguments))
    assert code == 2, err
    assert named in err
    assert err.startswith("outrider: ")
    assert err.count("\n") == 1
    assert not out.strip()


class TestFlags:
    def test_every_option_of_every_method_has_a_flag(self) -> None:
        for name in methods():
            for option in options_of(config_class(name)):
                assert option in all_options()[option.flag]
                assert hasattr(METHOD, option.flag.replace("-", "_"))

    def test_short_spellings_are_apart_and_stand_for_the_long_ones(self) -> None:
        every = [name for flag in (*all_options(), "speculative-algorithm") for name in spellings(flag)]
        assert len(set(every)) == len(every)
        others = {f"--{item.name.replace('_', '-')}" for item in dataclasses.fields(CompletionFlags)}
        others |= {f"--{item.name}" for item in dataclasses.fields(ModelFlags)}
        assert not others & set(every)
        assert spellings("speculative-draft-model-path") == ("--draft-model", "--speculative-draft-model-path")
        assert spellings("speculative-num-draft-tokens")[0] == "--draft-tokens"

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
        with pytest.raises(ConfigError, match="--num-steps is not an option of"):
            SpeculationFlags(speculative_num_steps=3).chosen()

    def test_foreign_options_are_ignored_where_several_methods_run(self) -> None:
        flags = MethodFlags(speculative_num_steps=3, speculative_num_draft_tokens=5)
        assert flags.plan("ngram", ignore_foreign=True).config.num_draft_tokens == 5

    def test_several_models_reach_the_method_that_merges(self) -> None:
        flags = MethodFlags(speculative_draft_model_path=["a", "b"])
        assert flags.plan("specinfer").config.models == ("a", "b")


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
