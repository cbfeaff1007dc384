"""``outrider chat``: a conversation through a pipe, and what a terminal adds."""

from __future__ import annotations

import io
import random
import re
import sys
from pathlib import Path

import pytest
from command_line import completed, run
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from outrider import LLM, Speculation
from outrider.cli import terminal
from outrider.cli.chat import COMMANDS, ENDS, Conversation, banner
from outrider.completion import Chunk


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
        from outrider.engine.engine import Engine

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

    def test_an_answer_has_no_end_of_its_own_unless_one_is_given(
        self, capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.lines(monkeypatch, "hello", "/set max-tokens 5", "/reset", "hello")
        code, _, err = run(capsys, "chat", "-m", folder, "--context-length", 300, "--ignore-eos")
        assert code == 0
        assert "the context of 300 tokens is full" in err
        assert "cut at 5 tokens; /set max-tokens N raises it" in err

    def test_commands(self, capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        lines = ["/help", "/set", "/set temprature 1", "/set top-p 7", "/set seed", "/set temperature 0.5", "/set"]
        self.lines(monkeypatch, *lines, "/quit", "never read")
        code, out, err = run(capsys, "chat", "-m", folder)
        assert (code, out) == (0, "")
        for name in (*COMMANDS, *ENDS[:1]):
            assert f"{name} " in err
        assert "there is no option --temprature; did you mean --temperature?" in err
        assert "top_p must be" in err
        assert "--seed needs a value" in err
        first, second = re.findall(r"^temperature +(\S+)$", err, re.M)
        assert (float(first), float(second)) == (0.0, 0.5)
        shown = dict(line.split() for line in err.splitlines() if re.fullmatch(r"[a-z-]+ {2,}\S+", line))
        assert (shown["seed"], shown["stop"], shown["ignore-eos"]) == ("none", "none", "no")

    def test_what_is_set_may_be_a_word(
        self, capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.lines(monkeypatch, "hello", "/set bad_words ZZ", "/set", "/reset", "hello")
        letter = completed(capsys, "hello", "--model", folder, "--max-tokens", 8)["text"].strip()[0]
        monkeypatch.setattr(sys, "stdin", io.StringIO(sys.stdin.read().replace("ZZ", letter)))
        code, out, err = run(capsys, "chat", "-m", folder, "--max-tokens", 8)
        assert code == 0, err
        assert re.search(rf"^bad-words +{re.escape(letter)}$", err, re.M)
        first, second = out.splitlines()
        assert letter in first
        assert letter not in second

    def test_a_narrow_terminal_breaks_lines_between_words(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "60")
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        conversation = Conversation.__new__(Conversation)
        conversation.help("")
        told = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().err)
        words = {word for text, _ in COMMANDS.values() for word in text.split()}
        assert words <= set(told.split())
        assert max(map(len, told.splitlines())) <= 60
        assert all(line[:9].strip() in {"", *COMMANDS, ENDS[0], '"""', "ctrl-C"} for line in told.splitlines())

    def test_the_system_message_and_long_messages_reach_the_model(
        self, capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked, encode = [], LLM.encode_chat
        monkeypatch.setattr(LLM, "encode_chat", lambda llm, told: (asked.append(list(told)), encode(llm, told))[1])
        self.lines(monkeypatch, '"""', "one", "two", '"""', "/system Be brief.", "hi", "/system", "hi")
        code, _, err = run(capsys, "chat", "-m", folder, "--max-tokens", 2, "--system", "Be kind.")
        assert code == 0, err
        told = [[(message["role"], message["content"]) for message in messages] for messages in asked[1:]]
        assert told == [
            [("system", "Be kind."), ("user", "one\ntwo")],
            [("system", "Be brief."), ("user", "hi")],
            [("user", "hi")],
        ]

    def test_input_that_is_no_text_is_one_sentence(
        self, capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8"))
        code, _, err = run(capsys, "chat", "-m", folder)
        assert code == 2
        assert "standard input cannot be read" in err

    def test_the_banner_names_model_drafter_and_backend(self, folder: Path) -> None:
        assert re.fullmatch(
            r"tiny · ngram · (native \(.+ threads\)|hf on cpu)", banner(LLM(folder, speculation="ngram"), "tiny")
        )
        model = str(folder)
        assert f"draft_model with {model} · hf on cpu" in banner(
            LLM(folder, backend="hf", speculation=Speculation("draft_model", options={"model": model})), "tiny"
        )


class TestEditor:
    """The line editor on a terminal of its own: keys in, messages out."""

    def typed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *keys: str) -> list[str | None]:
        monkeypatch.setenv("HOME", str(tmp_path))
        with create_pipe_input() as keyboard, create_app_session(input=keyboard, output=DummyOutput()):
            editor, found = terminal.Editor(), []
            for text in keys:
                keyboard.send_text(text)
                found.append(editor.read())
        return found

    def test_keys(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        pasted, up, ctrl_c, ctrl_d, alt_enter = "\x1b[200~a\nb\x1b[201~", "\x1b[A", "\x03", "\x04", "\x1b\r"
        block = '"""\rone\rtwo"""\r'
        lines = self.typed(
            monkeypatch, tmp_path, "hello\r", f"{up}!\r", f"{pasted}\r", f"x{alt_enter}y\r", block, f"z{ctrl_c}", ctrl_d
        )
        assert lines == ["hello", "hello!", "a\nb", "x\ny", "one\ntwo", "", None]
        history = tmp_path / ".cache" / "outrider" / "chat_history"
        assert "hello!" in history.read_text()
        assert history.stat().st_mode & 0o077 == 0, "others may read what was typed"

    def test_a_history_that_cannot_be_kept_is_no_error(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / ".cache").write_text("in the way")
        assert self.typed(monkeypatch, tmp_path, "hello\r", "\x1b[A\r") == ["hello", "hello"]


class TestWrap:
    WIDTH = 20

    def shown(self, text: str, cuts: random.Random) -> str:
        wrap, found = terminal.Wrap(lambda: self.WIDTH), []
        while text:
            size = cuts.randrange(1, 9)
            found += [piece for piece, _ in wrap.feed(text[:size], cuts.random() < 0.5)]
            text = text[size:]
        return "".join([*found, *(piece for piece, _ in wrap.flush())])

    def test_no_word_is_lost_or_broken_and_no_line_too_long(self) -> None:
        dice = random.Random(1)
        for _ in range(500):
            kinds = ["a", "bb", "c" * dice.randrange(1, self.WIDTH), " ", "\n", "é "]
            text = "".join(dice.choice(kinds) for _ in range(dice.randrange(80)))
            words = [word for word in text.split() if len(word) > self.WIDTH]
            shown = self.shown(text, dice)
            assert shown.split() == text.split()
            if not words:
                assert all(len(line.rstrip()) <= self.WIDTH or line.startswith(" ") for line in shown.split("\n"))

    def test_wide_characters_break_anywhere(self) -> None:
        shown = self.shown("字" * 25, random.Random(2))
        assert [len(line) for line in shown.split("\n")] == [10, 10, 5]

    def test_the_own_lines_of_a_text_stay(self) -> None:
        text = "def f(x):\n    return x\n\n- one\n- two"
        assert self.shown(text, random.Random(3)) == text


class Pieces:
    """A tokenizer whose tokens are letters."""

    def stream(self, skip_special_tokens: bool) -> Pieces:
        return self

    def push(self, token: int) -> str:
        return chr(token)


def test_shades_follow_the_text_that_is_shown() -> None:
    from outrider.cli.output import Shades

    shades = Shades(Pieces())  # type: ignore[arg-type]
    first = list(shades.split(Chunk(0, "ab", tuple(map(ord, "abc")), 2)))
    assert first == [("a", True), ("b", True)]
    assert list(shades.split(Chunk(0, "cd", tuple(map(ord, "d!")), 1))) == [("c", False), ("d", True)]
