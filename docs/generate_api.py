"""Write ``docs/api.md`` from the docstrings of the public names of ``outrider``; run it after changing one.

python docs/generate_api.py
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import outrider
from outrider import errors

TARGET = Path(__file__).with_name("api.md")
CLASSES = ["LLM", "SamplingParams", "Grammar", "Speculation", "CacheConfig", "SchedulerConfig"]
ANSWERS = ["Completion", "Choice", "Chunk", "Stream", "AsyncStream", "FinishReason"]
SECTIONS = re.compile(r"^(Args|Returns|Raises):$", re.M)
INTRODUCTION = """\
All public classes and calls of `outrider`, generated from the code by `docs/generate_api.py`. The
[reference](reference.md) has the options of each drafting method. [Coming from …](coming_from.md) shows the
calls of other engines beside ours."""


def plain(text: str) -> str:
    """A docstring's text as Markdown, on one line."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    return " ".join(text.replace("``", "`").split())


def parts(owner: Any) -> tuple[list[str], dict[str, str]]:
    """The paragraphs of a docstring, and its sections by name."""
    text, *rest = SECTIONS.split(inspect.getdoc(owner) or "")
    sections = {name: inspect.cleandoc("\n" + body) for name, body in zip(rest[::2], rest[1::2], strict=True)}
    return [plain(paragraph) for paragraph in text.split("\n\n") if paragraph.strip()], sections


def entries(section: str) -> Iterator[tuple[str, str]]:
    """Names and texts of a section's entries; continuation lines are indented."""
    for entry in re.split(r"\n(?=\S)", section):
        name, _, text = entry.partition(": ")
        yield name, plain(text)


def describe(owner: Any, defaults: dict[str, str]) -> Iterator[str]:
    """Paragraphs, arguments, result and errors of a class or function."""
    paragraphs, sections = parts(owner)
    yield from paragraphs
    if "Args" in sections:
        rows = [f"| `{name}` | {_code(defaults.get(name, ''))} | {text} |" for name, text in entries(sections["Args"])]
        yield "\n".join(["| argument | default | |", "|---|---|---|", *rows])
    if "Returns" in sections:
        yield f"Returns: {plain(sections['Returns'])}"
    if "Raises" in sections:
        yield "\n".join(f"- raises `{name}`: {text}" for name, text in entries(sections["Raises"]))


def defaults_of(function: Callable[..., Any]) -> dict[str, str]:
    """Defaults of a function's arguments."""
    found = inspect.signature(function).parameters.values()
    return {item.name: repr(item.default) for item in found if item.default is not item.empty}


def signature(function: Callable[..., Any]) -> str:
    """A call with its argument names."""
    found = [item for item in inspect.signature(function).parameters.values() if item.name not in ("self", "cls")]
    names, starred = [], False
    for item in found:
        if item.kind is item.KEYWORD_ONLY and not starred:
            names.append("*")
            starred = True
        names.append(f"**{item.name}" if item.kind is item.VAR_KEYWORD else item.name)
    return f"({', '.join(names)})"


def fields(owner: Any) -> str:
    """Fields of a dataclass or members of an enumeration, each with the string below it or its option's help."""
    helps = {item.name: item.metadata.get("help", "") for item in dataclasses.fields(owner)}
    body = ast.parse(inspect.getsource(owner)).body[0]
    assert isinstance(body, ast.ClassDef)
    rows = []
    for field, note in zip(body.body, [*body.body[1:], ast.Pass()], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id in helps:
            name = field.target.id
            told = note.value.value if isinstance(note, ast.Expr) and isinstance(note.value, ast.Constant) else ""
            default = next(item for item in dataclasses.fields(owner) if item.name == name)
            rows.append(f"| `{name}` | {_code(_default(default))} | {plain(helps[name] or str(told))} |")
    return "\n".join(["| field | default | |", "|---|---|---|", *rows])


def members(owner: Any) -> Iterator[str]:
    """Public methods and properties, in the order of the source."""
    for name, member in vars(owner).items():
        value = member.__func__ if isinstance(member, classmethod) else member
        if name.startswith("_") or name == "of":
            continue
        if isinstance(value, property):
            yield f"### `{owner.__name__}.{name}`"
            yield from describe(value.fget, {})
        elif inspect.isfunction(value):
            yield f"### `{owner.__name__}.{name}{signature(value)}`"
            yield from describe(value, defaults_of(value))


def about(name: str) -> Iterator[str]:
    """The documentation of a class."""
    owner = getattr(outrider, name)
    yield f"## `{name}`"
    if issubclass(owner, enum.Enum):
        yield from describe(owner, {})
        yield "\n".join(f"- `{member.value}`" for member in owner)
        return
    yield from describe(owner, defaults_of(owner.__init__))
    if dataclasses.is_dataclass(owner):
        yield fields(owner)
    yield from members(owner)


def render() -> str:
    """The whole page."""
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
    ranked = sorted(kinds, key=lambda kind: (len(kind.__mro__), kind.__name__))
    rows = [f"| `{kind.__name__}` | {plain(inspect.getdoc(kind) or '')} |" for kind in ranked]
    found = ["# Library", INTRODUCTION]
    for name in CLASSES:
        found += about(name)
    found.append("# Answers")
    for name in ANSWERS:
        found += about(name)
    found += ["# Errors", "\n".join(["| error | |", "|---|---|", *rows])]
    return "\n\n".join(found) + "\n"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _default(item: dataclasses.Field[Any]) -> str:
    if item.default_factory is not dataclasses.MISSING:
        return repr(item.default_factory())
    return "" if item.default is dataclasses.MISSING else repr(item.default)


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
