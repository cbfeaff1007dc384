"""Says which fields of a body are wrong, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

_MOST_ERRORS: Final = 3
_MOST_READ: Final = 100
"""Each unknown name of a body is an error, and there may be thousands."""
_EXPECTED: Final = "Input should be "
_CODES: Final = {"extra_forbidden": "unknown_parameter", "missing": "missing_required_parameter"}
_NO_OBJECT: Final = "the body must be a JSON object, sent with Content-Type: application/json"


class Complaint(NamedTuple):
    """What a client is told of a wrong body."""

    message: str
    param: str | None
    code: str | None


def complaint(errors: Sequence[Mapping[str, Any]], body: Any) -> Complaint:
    """Name the wrong fields.

    A union reports an error for each of its alternatives.  What the client meant is the one that reads deepest.

    Args:
        errors: pydantic's list; each place begins with ``body``.
        body: what was read.
    """
    if not isinstance(body, dict):
        return Complaint(_NO_OBJECT, None, None)
    found: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for item in errors[:_MOST_READ]:
        found.setdefault(_path(item, body), []).append(item)
    above = {place[:end] for place in found for end in range(len(place))}
    deepest = [place for place in found if place not in above]
    told = [_told(".".join(place), found[place]) for place in deepest]
    first = deepest[0]
    return Complaint(
        "; ".join(told[:_MOST_ERRORS]),
        first[0] if first else None,
        _CODES.get(found[first][0]["type"], "invalid_value"),
    )


def _path(item: Mapping[str, Any], body: Any) -> tuple[str, ...]:
    """The place of an error in the body, without the names of a union's alternatives that pydantic puts between."""
    path, value, places = list[str](), body, item["loc"][1:]
    for number, part in enumerate(places):
        last = number == len(places) - 1
        if _holds(value, part):
            value = value[part]
        elif not (last and item["type"] == "missing"):
            continue
        path.append(str(part)[:100])
    return tuple(path)


def _holds(value: Any, part: int | str) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value


def _told(name: str, items: Sequence[Mapping[str, Any]]) -> str:
    kinds = {item["type"] for item in items}
    if "extra_forbidden" in kinds:
        return f"there is no field {name}"
    refused = [item["msg"] for item in items if item["type"] == "not_offered"]
    if refused:  # says more than what the other alternatives of a union would take
        return f"{name}: {refused[0]}"
    said = list(dict.fromkeys(item["msg"].removeprefix("Value error, ") for item in items))
    others = [message.removeprefix(_EXPECTED) for message in said[1:] if message.startswith(_EXPECTED)]
    told = " or ".join([said[0], *others])
    return f"{name}: {told}" if name else told
