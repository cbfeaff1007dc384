"""The functions that a request offers, and which of them the model is to call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from outrider.errors import RequestError

_VALID_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FUNCTION: Final = "function"


@dataclass(frozen=True)
class Function:
    """A function that the model may call."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The JSON schema of its arguments; without one it has none."""
    strict: bool = False
    """Whether the arguments must follow the schema, however the model decides to call it."""


class Mode(Enum):
    """Who decides about calls."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True)
class ToolChoice:
    """Whether the model is to call functions, and which one."""

    mode: Mode
    name: str | None = None
    """The only function that may be called."""


def read_functions(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Function, ...]:
    """Read a request's tools.

    Args:
        tools: as in OpenAI's API, ``{"type": "function", "function": {"name": …, "parameters": …, "strict": …}}``.

    Raises:
        RequestError: one is no function, or its name or schema is wrong, or a name is given twice.
    """
    functions = tuple(_function(tool, f"tools[{place}]") for place, tool in enumerate(tools or ()))
    names = [function.name for function in functions]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RequestError(f"tools has two functions named {twice!r}; rename one", param="tools")
    return functions


def _function(tool: Any, place: str) -> Function:
    kind = tool.get("type", _FUNCTION) if isinstance(tool, Mapping) else None
    if kind != _FUNCTION:
        raise RequestError(f"{place} must have the type 'function', not {kind!r}", param="tools")
    told = tool.get(_FUNCTION)
    if not isinstance(told, Mapping):
        raise RequestError(f"{place} must describe its function by a dict, not {told!r}", param="tools")
    name, parameters = told.get("name"), told.get("parameters")
    if not isinstance(name, str) or not _VALID_NAME.fullmatch(name):
        raise RequestError(f"{place} must be named with 1 to 64 letters, digits, _ or -, not {name!r}", param="tools")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise RequestError(f"{place} must have a JSON schema as parameters, not {parameters!r}", param="tools")
    return Function(name, parameters or {}, bool(told.get("strict")))


def read_choice(choice: Any, functions: Sequence[Function]) -> ToolChoice:
    """Read a request's ``tool_choice``.

    Args:
        choice: ``auto``, ``none``, ``required``, or ``{"type": "function", "function": {"name": …}}``; None is auto
            with functions, otherwise none.
        functions: those that the request offers.

    Raises:
        RequestError: it is none of these, or wants a call where no such function is offered.
    """
    if choice is None:
        return ToolChoice(Mode.AUTO if functions else Mode.NONE)
    if isinstance(choice, Mapping):
        return ToolChoice(Mode.REQUIRED, _chosen_name(choice, functions))
    if choice not in {mode.value for mode in Mode}:
        raise RequestError(
            f"tool_choice must be auto, none, required or a function, not {choice!r}", param="tool_choice"
        )
    if Mode(choice) is Mode.REQUIRED and not functions:
        raise RequestError("tool_choice is required, but the request has no tools; add some", param="tool_choice")
    return ToolChoice(Mode(choice))


def _chosen_name(choice: Mapping[str, Any], functions: Sequence[Function]) -> str:
    told = choice.get(_FUNCTION)
    name = told.get("name") if isinstance(told, Mapping) else choice.get("name")
    if choice.get("type") != _FUNCTION or not isinstance(name, str):
        raise RequestError(
            f'tool_choice must be {{"type": "function", "function": {{"name": …}}}}, not {choice!r}',
            param="tool_choice",
        )
    if name not in {function.name for function in functions}:
        raise RequestError(f"tool_choice names {name!r}, which is not among the tools", param="tool_choice")
    return name
