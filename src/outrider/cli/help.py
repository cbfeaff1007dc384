"""How ``--help`` looks: options in groups, each on one line where the terminal is wide enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cyclopts import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

_NAMES: Final = 27
_MOST: Final = 40
"""Columns for an option's names and its value: so many where that is enough, and never more."""
_ENDLESS: Final = 10_000
"""A width at which no meaning is broken into lines."""

MODEL: Final = Group("Model", sort_key=1)
SAMPLING: Final = Group("Sampling", sort_key=2)
SPECULATION: Final = Group("Speculation", help="methods, their options, and rules: outrider info --methods", sort_key=3)
OUTPUT: Final = Group("Output", sort_key=4)
"""The groups of options that subcommands share, in the order of the help."""
_FIRST: Final = ("--algorithm", "--draft-model", "--draft-tokens", "--verifier")
"""What a group begins with, where it has it; everything else keeps the order of its definition."""


class OneScreen:
    """Prints groups of options without frames; of several spellings the first is shown, and a short one."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print one group."""
        if not panel.entries:
            return
        longest = max(len(_names(entry)) for entry in panel.entries)
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=min(_MOST, max(_NAMES, longest)) if panel.format == "parameter" else longest)
        table.add_column(overflow="fold")
        for entry in sorted(panel.entries, key=_place):
            meaning = _meaning(entry, _plain(entry.description, console, options))
            table.add_row(Text(_names(entry), style="cyan"), meaning)
        more = _plain(panel.description, console, options)
        console.print(Text.assemble((str(panel.title), "bold"), (f" ({more})" if more else "", "dim")))
        console.print(table)

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        """Print how the command is called."""
        if usage:
            console.print(Text(f"Usage: {str(usage).strip().removeprefix('Usage: ')}"))

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        """Print what the command does."""
        if description:
            console.print(description)


def _plain(text: Any, console: Console, options: ConsoleOptions) -> str:
    """What a text says, on one line."""
    return "".join(part.text for part in console.render(text, options.update(width=_ENDLESS))).strip()


def _place(entry: HelpEntry) -> int:
    return min((_FIRST.index(name) for name in entry.positive_names if name in _FIRST), default=len(_FIRST))


def _names(entry: HelpEntry) -> str:
    """How an option is given: ``-m, --model NAME``; a switch with its opposite is ``--[no-]switch``."""
    if entry.positional_label:
        return f"  {entry.positional_label}"
    first, *_ = entry.positive_names or entry.positive_shorts
    opposite = entry.negative_names[0] if entry.negative_names else ""
    if opposite.startswith("--no-"):
        first, opposite = f"--[no-]{first.removeprefix('--')}", ""
    names = [*(entry.positive_shorts if entry.positive_names else ()), first, *([opposite] if opposite else [])]
    return f"  {', '.join(names)}{f' {entry.metavar}' if entry.metavar else ''}"


def _meaning(entry: HelpEntry, meaning: str) -> Text:
    """What an option does, and its default in brackets."""
    text = Text(meaning)
    if entry.choices:
        text.append(f" {'|'.join(entry.choices)}")
    if entry.required:
        text.append(" [required]")
    elif entry.default not in (None, "[]", "False", "()", '""'):
        text.append(f" [{str(entry.default).removesuffix('.0')}]", style="dim")
    return text
