"""How ``--help`` looks: options in groups, the common ones first; ``--help all`` adds the rest."""

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
"""Least and most columns for an option's names and its value."""
_ENDLESS: Final = 10_000
"""A width at which no text wraps."""

MODEL: Final = Group("Model", sort_key=1)
SAMPLING: Final = Group("Sampling", sort_key=2)
SPECULATION: Final = Group("Speculation", help="options of each method: outrider info --methods", sort_key=3)
OUTPUT: Final = Group("Output", sort_key=4)
TRAINING: Final = Group("Training", sort_key=5)
SERVER: Final = Group("Server", sort_key=6)
"""The groups of options that subcommands share, in the order of the help."""
MORE_MODEL: Final = Group("More model options", sort_key=11)
MORE_SAMPLING: Final = Group("More sampling options", sort_key=12)
MORE_SPECULATION: Final = Group("More speculation options", sort_key=13)
DATA: Final = Group("Texts and their hidden rows", sort_key=14)
SYNTHESIS: Final = Group("Prompts that the model makes", sort_key=15)
MORE_SERVER: Final = Group("More server options", sort_key=12)
ANSWERS: Final = Group("Answers of the model", sort_key=16)
METHODS: Final = Group("Options of single methods", sort_key=17)
"""Groups that only ``--help all`` shows; they come last."""
_HIDDEN: Final = frozenset(
    group.name
    for group in (MORE_MODEL, MORE_SAMPLING, MORE_SPECULATION, DATA, SYNTHESIS, ANSWERS, METHODS, MORE_SERVER)
)
_FIRST: Final = ("--algorithm", "--draft-model", "--draft-tokens")
"""Options that come first in their group; the others keep the order of their definition."""


class OneScreen:
    """Prints groups of options without frames; an option shows its first long spelling and its short one.

    Args:
        all_options: print the rarely used groups too.
    """

    def __init__(self, *, all_options: bool = False) -> None:
        self._all, self._told = all_options, False

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print one group; in place of the rarely used ones, how to see them."""
        if not panel.entries:
            return
        if panel.title in _HIDDEN and not self._all:
            if not self._told:
                console.print(Text("More options: --help all", style="dim"))
            self._told = True
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
        """Print the usage line."""
        if usage:
            console.print(Text(f"Usage: {str(usage).strip().removeprefix('Usage: ')}"))

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        """Print the command's description."""
        if description:
            console.print(description)


def _plain(text: Any, console: Console, options: ConsoleOptions) -> str:
    """A text on one line, without markup."""
    return "".join(part.text for part in console.render(text, options.update(width=_ENDLESS))).strip()


def _place(entry: HelpEntry) -> int:
    return min((_FIRST.index(name) for name in entry.positive_names if name in _FIRST), default=len(_FIRST))


def _names(entry: HelpEntry) -> str:
    """An option's names and value, as ``-m, --model NAME``; a switch with its opposite is ``--[no-]switch``."""
    if entry.positional_label:
        return f"  {entry.positional_label}"
    first, *_ = entry.positive_names or entry.positive_shorts
    opposite = entry.negative_names[0] if entry.negative_names else ""
    if opposite.startswith("--no-"):
        first, opposite = f"--[no-]{first.removeprefix('--')}", ""
    names = [*(entry.positive_shorts if entry.positive_names else ()), first, *([opposite] if opposite else [])]
    return f"  {', '.join(names)}{f' {entry.metavar}' if entry.metavar else ''}"


def _meaning(entry: HelpEntry, meaning: str) -> Text:
    """An option's help, and its default in brackets."""
    text = Text(meaning)
    if entry.choices:
        text.append(f" {'|'.join(entry.choices)}")
    if entry.required:
        text.append(" [required]")
    elif entry.default not in (None, "[]", "False", "()", '""'):
        text.append(f" [{str(entry.default).removesuffix('.0')}]", style="dim")
    return text
