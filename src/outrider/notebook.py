"""What a notebook shows of a completion and of a model."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from outrider.completion import Choice, Completion

_ACCEPTED: Final = "background: rgba(46, 160, 67, 0.25)"
"""Readable on light and on dark pages."""


def completion_html(completion: Completion) -> str:
    """Every choice's text, accepted drafts in another shade, and one line of figures.

    Args:
        completion: its choices' tokens tell where drafts were accepted.
    """
    texts = "".join(f'<div style="white-space: pre-wrap">{_text(choice)}</div>' for choice in completion.choices)
    return f'<div>{texts}<div style="opacity: 0.7"><small>{escape(figures(completion))}</small></div></div>'


def figures(completion: Completion) -> str:
    """Tokens, ending, speed and acceptance on one line."""
    stats, tokens = completion.speculation, sum(len(choice.token_ids) for choice in completion.choices)
    endings = dict.fromkeys(choice.finish_reason.value for choice in completion.choices)
    parts = [f"{tokens} tokens", ", ".join(endings), f"{completion.seconds.tokens_per_second:.1f} tokens/s"]
    if sum(stats.tested):
        accepted = sum(sum(choice.from_draft) for choice in completion.choices)
        parts += [f"{accepted} accepted drafts, marked", f"α {stats.acceptance_rate:.2f}"]
    return " · ".join([*parts, f"τ {stats.mean_accepted_length:.2f}"])


def table_html(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Names and values below a title.

    Args:
        title: plain text.
        rows: plain text too.
    """
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"


def _text(choice: Choice) -> str:
    shaded = (
        f'<span style="{_ACCEPTED}">{escape(text)}</span>' if drafted else escape(text)
        for text, drafted in choice.pieces()
    )
    error = f" <em>{escape(choice.error)}</em>" if choice.error else ""
    return "".join(shaded) + error
