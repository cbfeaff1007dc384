"""Calls of Mistral: a list of JSON objects after ``[TOOL_CALLS]``, or one marker for each call."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Sequence
from typing import Final

from outrider.server.tools.call import CallOutcome, any_name, read_call
from outrider.server.tools.family import ToolFamily, Written
from outrider.server.tools.feed import SPACE, Feed, Marks, Steps
from outrider.server.tools.functions import Function

_CALLS: Final = "[TOOL_CALLS]"
_ARGS: Final = "[ARGS]"
_ID: Final = "[CALL_ID]"
_NAME: Final = re.compile(r"[\w.\-]*")
_BETWEEN: Final = re.compile(r"[\s,]*")
_LIST: Final = re.compile(r"\[TOOL_CALLS\]\s*\[")
_NEXT: Final = Marks([_CALLS])


def _read(feed: Feed, _: Sequence[Function]) -> Steps[None]:
    found = yield from feed.copy_text(_CALLS, feed.say)
    while found:
        yield from feed.take_all(SPACE)
        first = yield from feed.peek()
        if first == "[":
            outcome = yield from _listed(feed)
        elif first == "{":
            outcome = yield from read_call(feed, any_name)
        else:
            outcome = yield from _named(feed)
        if outcome is CallOutcome.BROKEN:
            found = (yield from feed.copy_until(_NEXT, feed.argue)) is not None
            continue
        if outcome is CallOutcome.TEXT:
            feed.give_back()
        else:
            yield from feed.take_all(SPACE)
        found = yield from feed.copy_text(_CALLS, feed.say)


def _listed(feed: Feed) -> Steps[CallOutcome]:
    """Read calls of a list; what is no call after one of them is content."""
    feed.take(1)
    outcome = CallOutcome.TEXT
    while True:
        yield from feed.take_all(_BETWEEN)
        if (yield from feed.peek()) != "{":
            yield from feed.take_if("]")
            return outcome
        if outcome is CallOutcome.CALL:
            feed.hold()
        read = yield from read_call(feed, any_name)
        if read is not CallOutcome.CALL:
            return read
        outcome = read


def _named(feed: Feed) -> Steps[CallOutcome]:
    """Read ``name{…}``, or the same with ``[CALL_ID]`` and ``[ARGS]`` before the arguments."""
    name = yield from feed.take_all(_NAME)
    if (yield from feed.take_if(_ID)):
        yield from feed.take_all(_NAME)
    yield from feed.take_if(_ARGS)
    yield from feed.take_all(SPACE)
    if not name or (yield from feed.peek()) != "{":
        return CallOutcome.TEXT
    feed.start_call(name)
    return CallOutcome.CALL if (yield from feed.copy_value(feed.argue)) else CallOutcome.BROKEN


def _written(template: str) -> Written:
    if _LIST.search(template):
        return Written(
            name='{"name": "', arguments='", "arguments": ', end="}", before=f"{_CALLS} [", between=", ", after="]"
        )
    return Written(name=_CALLS, arguments=_ARGS if _ARGS in template else "", end="")


def _short_id() -> str:
    """Make an id of nine letters and digits, which Mistral's templates require."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


MISTRAL: Final = ToolFamily(
    signs=(r"\[TOOL_CALLS\]",),
    markers=(_CALLS, _ARGS, _ID),
    opener=_CALLS,
    read=_read,
    written=_written,
    new_id=_short_id,
)
