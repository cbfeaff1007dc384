"""``outrider chat``: chat with a model; accepted drafts are highlighted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console

from outrider.cli import figures, output
from outrider.cli.failures import sentence
from outrider.cli.help import OUTPUT
from outrider.cli.options import CACHE, SPECULATION, CacheFlags, ModelFlags, SpeculationFlags
from outrider.cli.sampling import SamplingFlags
from outrider.cli.terminal import Wrap, reader
from outrider.errors import ConfigError, NumericsError, RequestError
from outrider.kernels.native import cpu
from outrider.metrics import RowCosts
from outrider.options import drafters_named

if TYPE_CHECKING:
    from outrider.completion import Choice
    from outrider.llm import LLM

SAMPLING: Final = SamplingFlags()
"""Defaults of the signature."""
_COMMAND: Final = 9
_OPTION: Final = 22
"""Widths of the name columns in lists of commands and options."""


def chat(
    *,
    model: ModelFlags,
    sampling: SamplingFlags = SAMPLING,
    speculation: SpeculationFlags = SPECULATION,
    cache: CacheFlags = CACHE,
    system: Annotated[str | None, Parameter(metavar="TEXT", group=OUTPUT)] = None,
    verbose: Annotated[bool, Parameter(negative="", group=OUTPUT)] = False,
) -> int:
    """Chat with a model; accepted drafts are highlighted. Type /help for commands.

    Args:
        model: which model, and how to run it.
        sampling: how tokens are chosen.
        speculation: how to speculate.
        cache: options of the KV cache.
        system: System message of the conversation.
        verbose: Print acceptance rates and the cost of rounds too.
    """
    sampling.params()  # check it before the model is loaded
    lines, plan = reader(), speculation.chosen(model.model)
    llm = model.load(plan, cache.config)
    conversation = Conversation(llm, sampling, system, output.screen(), verbose=verbose)
    if output.side().is_terminal:
        from outrider.models.loading import find

        output.tell(banner(llm, find(model.model)[1]), style="bold")
        output.tell("/help lists commands · ctrl-C stops an answer · ctrl-D ends the chat", style="dim")
    while (line := lines.read()) is not None:
        if not conversation.take(line):
            break
    return 0


def banner(llm: LLM, name: str) -> str:
    """One line with model, drafter and backend."""
    config, target = llm.drafter_config, llm.engine.target
    drafts = " with ".join(filter(None, (config.method, ", ".join(drafters_named(config)))))
    where = f" ({cpu.kernel_name()}, {cpu.threads()} threads)" if target.own_threads else f" on {target.device}"
    runs = target.backend + where
    return f"{name} · {drafts} · {runs}"


class Conversation:
    """The messages so far, and the model that answers.

    Args:
        llm: the model.
        flags: how tokens are chosen.
        system: the system message, if any.
        console: where answers are printed.
        verbose: print acceptance rates and the cost of rounds too.

    Raises:
        ModelError: the model has no chat template.
    """

    def __init__(
        self, llm: LLM, flags: SamplingFlags, system: str | None, console: Console, *, verbose: bool = False
    ) -> None:
        self._llm, self._flags, self._system, self._console, self._verbose = llm, flags, system, console, verbose
        self._plain: RowCosts | None = None
        self._reset()
        llm.encode_chat([*self.messages, {"role": "user", "content": "?"}])

    def take(self, line: str) -> bool:
        """Handle one message or command.

        Returns:
            Whether the conversation continues.
        """
        line = line.strip()
        if not line.startswith("/") or "\n" in line:
            if line:
                self._answer(line)
            return True
        name, _, rest = line.partition(" ")
        if name in ENDS:
            return False
        if name in COMMANDS:
            COMMANDS[name][1](self, rest.strip())
        else:
            self._say(f"there is no command {name}; there are: {', '.join((*COMMANDS, *ENDS))}")
        return True

    def help(self, rest: str) -> None:
        """List the commands."""
        for name, (text, _) in COMMANDS.items():
            self._list(name, text, _COMMAND)
        self._list(ENDS[0], "end the chat, like ctrl-D", _COMMAND)
        self._list('"""', "start or end a message of several lines; alt-enter adds a line", _COMMAND)
        self._list("ctrl-C", "stop an answer", _COMMAND)

    def reset(self, rest: str) -> None:
        """Clear the conversation, but keep the system message."""
        self._reset()
        self._say("conversation cleared")

    def say_otherwise(self, rest: str) -> None:
        """Start over with another system message, or none."""
        self._system = rest or None
        self._reset()
        self._say(f"conversation cleared; {'new' if rest else 'no'} system message")

    def set(self, rest: str) -> None:
        """Change one sampling option, or list them all."""
        name, _, value = rest.partition(" ")
        if not name:
            for item in dataclasses.fields(self._flags):
                self._list(item.name.replace("_", "-"), _readable(getattr(self._flags, item.name)), _OPTION)
            return
        try:
            changed = _changed(self._flags, name, value.strip())
            changed.params()
        except (ConfigError, CycloptsError) as error:
            self._say(sentence(error) if isinstance(error, CycloptsError) else str(error))
        else:
            self._flags = changed

    def _reset(self) -> None:
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def _say(self, text: str) -> None:
        output.tell(text, style="dim")

    def _list(self, name: str, text: str, width: int) -> None:
        output.tell(f"{name:<{width}}{text}", style="dim", indent=width)

    def _answer(self, line: str) -> None:
        """Stream an answer and remember it; a refused message is forgotten, a stopped answer is kept."""
        self.messages.append({"role": "user", "content": line})
        before = self._llm.engine.seconds.copy()
        try:
            tokens = self._llm.encode_chat(self.messages)
            said, choice = self._stream(tokens)
        except RequestError as error:
            self.messages.pop()
            self._say(f"{error}; /reset clears the conversation")
            return
        self.messages.append({"role": "assistant", "content": said})
        if choice is None:
            self._say("stopped")
        elif choice.error is not None:
            raise NumericsError(choice.error)
        else:
            spent = self._llm.engine.seconds.minus(before)
            params = self._flags.params()
            context = self._llm.engine.target.context_length
            if (cut := figures.cut_notice(choice, params, context, "/set max-tokens N")) is not None:
                self._say(cut)
            if self._plain is None and figures.wants_plain_rounds(choice.speculation, spent):
                with suppress(KeyboardInterrupt):  # the answer is complete; only the speedup would be missing
                    self._plain = figures.plain_costs(self._llm, tokens, choice, params)
            for told in figures.lines(self._llm, choice.speculation, spent, self._plain, verbose=self._verbose):
                self._say(told)

    def _stream(self, tokens: list[int]) -> tuple[str, Choice | None]:
        """Stream the answer; the choice is None if the user stopped it."""
        assert self._llm.tokenizer is not None
        said, choice, params = "", None, self._flags.params()
        shades = output.Shades(self._llm.tokenizer, skip_special_tokens=params.skip_special_tokens)
        wrap = Wrap(lambda: self._console.width) if self._console.is_terminal else None
        with closing(self._llm.stream(tokens, params)) as chunks:
            try:
                for chunk in chunks:
                    said, choice = said + chunk.text, chunk.choice
                    for text, drafted in shades.split(chunk):
                        self._print(wrap.feed(text, drafted) if wrap else [(text, drafted)])
            except KeyboardInterrupt:
                choice = None
        self._print([*(wrap.flush() if wrap else ()), ("\n", False)])
        return said, choice

    def _print(self, pieces: Iterable[tuple[str, bool]]) -> None:
        """Print pieces of an answer; accepted drafts are highlighted."""
        for drafted, alike in groupby(pieces, key=itemgetter(1)):
            text = "".join(piece for piece, _ in alike)
            self._console.print(text, end="", style=output.ACCEPTED_STYLE if drafted else None)
        self._console.file.flush()


def _readable(value: Any) -> str:
    """A flag's value as text."""
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str("none" if value in (None, "") else value)


def _changed(flags: SamplingFlags, name: str, value: str) -> SamplingFlags:
    """The flags with one of them changed; the command line's parser reads the value.

    Raises:
        CycloptsError: an unknown option, or a bad value.
    """
    parser = App(help_flags=[], version_flags=[])

    @parser.default
    def read(*, flags: SamplingFlags = SAMPLING) -> SamplingFlags:
        return flags

    field = name.removeprefix("--").replace("-", "_")
    option = f"--{field.replace('_', '-')}"
    words = [f"{option}={value}" if value else option]
    given = parser(words, result_action="return_value", exit_on_error=False, print_error=False)
    return dataclasses.replace(flags, **{field: getattr(given, field)})


COMMANDS: Final[dict[str, tuple[str, Callable[[Conversation, str], None]]]] = {
    "/help": ("list the commands", Conversation.help),
    "/reset": ("clear the conversation", Conversation.reset),
    "/system": ("TEXT: clear, and use this system message; no TEXT removes it", Conversation.say_otherwise),
    "/set": ("OPTION VALUE: change a sampling option; /set alone lists them", Conversation.set),
}
"""Commands of the chat: their help, and what runs them."""
ENDS: Final = ("/exit", "/quit", "/bye")
"""Commands that end the chat."""
