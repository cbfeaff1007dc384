"""HTML for notebooks: texts with shaded pieces, and tables of names and values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

_SHADE: Final = "background: rgba(46, 160, 67, 0.25)"
"""Readable on light and on dark pages."""
Shaded = Sequence[tuple[str, bool]]
"""Pieces of a text, each with whether it is shaded."""


def texts_html(texts: Iterable[tuple[Shaded, str | None]], footer: str) -> str:
    """Texts below each other, and a small line.

    Args:
        texts: each with an error to name behind it, or None.
        footer: plain text.
    """
    shown = "".join(f'<div style="white-space: pre-wrap">{_text(pieces, error)}</div>' for pieces, error in texts)
    return f'<div>{shown}<div style="opacity: 0.7"><small>{escape(footer)}</small></div></div>'


def table_html(title: str, rows: Mapping[str, object]) -> str:
    """A table of names and values with a title.

    Args:
        title: plain text.
        rows: values by name.
    """
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"


def _text(pieces: Shaded, error: str | None) -> str:
    shown = (f'<span style="{_SHADE}">{escape(text)}</span>' if shaded else escape(text) for text, shaded in pieces)
    return "".join(shown) + (f" <em>{escape(error)}</em>" if error else "")
