"""What a notebook shows of a completion and of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from outrider.errors import counted

if TYPE_CHECKING:
    from outrider.completion import Choice, Completion
    from outrider.metrics import SpeculationStats

_ACCEPTED: Final = "background: rgba(46, 160, 67, 0.25)"
"""Readable on light and on dark pages."""


def completion_html(completion: Completion) -> str:
    """Every choice's text, accepted drafts in another shade, and one line of figures.

    Args:
        completion: its choices' tokens tell where drafts were accepted.
    """
    return _page(completion.choices, figures(completion))


def choice_html(choice: Choice) -> str:
    """A choice's text, accepted drafts in another shade, and one line of figures.

    Args:
        choice: its tokens tell where drafts were accepted.
    """
    return _page([choice], " · ".join(_counts([choice], choice.speculation)))


def figures(completion: Completion) -> str:
    """On one line whether it got faster, where that is known, how fast it is, and what was written."""
    made = completion.prediction
    faster = [] if made is None or made.speedup is None else [f"{made.speedup:.2f} × plain (predicted)"]
    speed = f"{completion.seconds.tokens_per_second:.1f} tokens/s"
    return " · ".join([*faster, speed, *_counts(completion.choices, completion.speculation)])


def _counts(choices: Sequence[Choice], stats: SpeculationStats) -> list[str]:
    """Tokens of a round, tokens in all, endings, and accepted drafts."""
    tokens = sum(len(choice.token_ids) for choice in choices)
    endings = dict.fromkeys(choice.finish_reason.value for choice in choices)
    parts = [counted(tokens, "token"), ", ".join(endings)]
    if not sum(stats.tested):
        return parts
    accepted = sum(sum(choice.from_draft) for choice in choices)
    return [
        f"{stats.mean_accepted_length:.2f} tokens/round",
        *parts,
        f"{counted(accepted, 'accepted draft')}, marked",
    ]


def _page(choices: Sequence[Choice], footer: str) -> str:
    texts = "".join(f'<div style="white-space: pre-wrap">{_text(choice)}</div>' for choice in choices)
    return f'<div>{texts}<div style="opacity: 0.7"><small>{escape(footer)}</small></div></div>'


def table_html(title: str, rows: Mapping[str, object]) -> str:
    """Names and values below a title.

    Args:
        title: plain text.
        rows: values by name.
    """
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"


def _text(choice: Choice) -> str:
    shaded = (
        f'<span style="{_ACCEPTED}">{escape(text)}</span>' if drafted else escape(text)
        for text, drafted in choice.pieces()
    )
    error = f" <em>{escape(choice.error)}</em>" if choice.error else ""
    return "".join(shaded) + error
