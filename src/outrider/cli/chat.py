"""``outrider chat``: talk to a model; accepted drafts are shown in another shade."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from outrider.cli import output
from outrider.cli.options import CACHE, SAMPLING, SPECULATION, CacheFlags, ModelFlags, SamplingFlags, SpeculationFlags
from outrider.errors import NumericsError, RequestError
from outrider.sampling.params import SamplingParams

if TYPE_CHECKING:
    from outrider.completion import Choice
    from outrider.llm import LLM


def chat(
    *,
    model: ModelFlags,
    sampling: SamplingFlags = SAMPLING,
    speculation: SpeculationFlags = SPECULATION,
    cache: CacheFlags = CACHE,
    system: Annotated[str | None, Parameter(help="System message of the conversation.")] = None,
) -> int:
    """Talk to a model; accepted drafts are shown in another shade.

    Ctrl-C stops an answer, /reset forgets the conversation, /exit or ctrl-D ends.

    Args:
        model: which model, and how it is run.
        sampling: how tokens are chosen.
        speculation: how to speculate.
        cache: what is kept between requests.
        system: system message of the conversation.
    """
    params, plan = sampling.params(), speculation.chosen(model.model)
    llm = model.load(plan, cache)
    opening = [{"role": "system", "content": system}] if system else []
    llm.encode_chat([*opening, {"role": "user", "content": "?"}])  # a model without a template is refused at once
    conversation = Conversation(llm, params, opening, output.screen())
    if sys.stdin.isatty():
        output.side().print("ctrl-C stops an answer · /reset forgets · /exit ends", style="dim")
    while (line := _read_line()) is not None:
        if not conversation.take(line.strip()):
            break
    return 0


def _read_line() -> str | None:
    """The next line the user writes; None at the end."""
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None
    except KeyboardInterrupt:  # at the prompt there is no answer to stop
        sys.stdout.write("\n")
        return ""


class Conversation:
    """The messages so far, and the model that answers.

    Args:
        llm: the model.
        params: how tokens are chosen.
        opening: messages before the user's first.
        console: where answers go.
    """

    def __init__(self, llm: LLM, params: SamplingParams, opening: list[dict[str, str]], console: Console) -> None:
        self._llm, self._params, self._console = llm, params, console
        self._opening = opening
        self.messages = list(opening)

    def take(self, line: str) -> bool:
        """Handle one line; False ends the conversation."""
        if line == "/exit":
            return False
        if line == "/reset":
            self.messages = list(self._opening)
            output.side().print("forgotten", style="dim")
        elif line.startswith("/"):
            output.side().print(f"there is no command {line.split()[0]}; there are: /reset, /exit", style="dim")
        elif line:
            self._answer(line)
        return True

    def _answer(self, line: str) -> None:
        """Ask, stream the answer, remember both; a refused question is forgotten, a stopped answer kept as it is."""
        self.messages.append({"role": "user", "content": line})
        before = self._llm.engine.seconds.copy()
        try:
            said, choice = self._stream()
        except RequestError as error:
            self.messages.pop()
            output.side().print(f"{error}; /reset starts over", style="dim")
            return
        self.messages.append({"role": "assistant", "content": said})
        if choice is None:
            output.side().print("stopped", style="dim")
        elif choice.error is not None:
            raise NumericsError(choice.error)
        else:
            spent = self._llm.engine.seconds.minus(before)
            output.side().print(output.figures_line(choice.speculation, spent, self._llm.verifier), style="dim")

    def _stream(self) -> tuple[str, Choice | None]:
        """Print the answer as it comes; no choice where the user stopped it."""
        assert self._llm.tokenizer is not None
        shades, said, choice = output.Shades(self._llm.tokenizer), "", None
        tokens = self._llm.encode_chat(self.messages)
        with closing(self._llm.stream(tokens, self._params)) as chunks:
            try:
                for chunk in chunks:
                    said, choice = said + chunk.text, chunk.choice
                    for text, drafted in shades.split(chunk):
                        self._console.print(text, end="", style=output.ACCEPTED_STYLE if drafted else None)
                    self._console.file.flush()
            except KeyboardInterrupt:
                choice = None
        self._console.print()
        self._console.file.flush()
        return said, choice
