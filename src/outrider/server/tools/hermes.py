"""Calls in tags, as Hermes, Qwen and many others write them; also the format for templates that know no tools."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from outrider.server.tools.call import CallOutcome, any_name, read_call
from outrider.server.tools.family import ToolFamily, Written, long_id
from outrider.server.tools.feed import SPACE, Feed, Marks, Steps
from outrider.server.tools.functions import Function

_OPEN: Final = "<tool_call>"
_CLOSE: Final = "</tool_call>"
_TOO_MANY: Final = re.compile(r"[\s}\]]*")
"""Models sometimes close more brackets than they opened."""
_BETWEEN: Final = re.compile(r"[\s;,]*")
_FENCE: Final = "```"
_CLOSERS: Final = Marks([_CLOSE])
_FENCES: Final = Marks([_FENCE])
_NOTHING: Final = Marks([])


def _read(feed: Feed, functions: Sequence[Function]) -> Steps[None]:
    yield from _read_without_tags(feed, frozenset(function.name for function in functions if not function.strict))
    while (yield from feed.copy_text(_OPEN, feed.say)):
        yield from feed.take_all(SPACE)
        is_object = (yield from feed.peek()) == "{"
        outcome = (yield from read_call(feed, any_name)) if is_object else CallOutcome.TEXT
        if outcome is CallOutcome.TEXT:
            feed.give_back()
            continue
        if outcome is CallOutcome.BROKEN:
            yield from feed.copy_until(_CLOSERS, feed.argue)
            feed.release()
        else:
            yield from feed.take_all(_TOO_MANY)
            yield from feed.take_if(_CLOSE)
        yield from feed.take_all(SPACE)


def _read_without_tags(feed: Feed, names: Collection[str]) -> Steps[None]:
    """Read calls at the beginning of an answer that have no tags, as small models write them, also in a code block.

    Only the name of an offered function makes a call: the answer may be JSON itself.  Functions that are strict need
    tags, because a grammar holds what stands in tags to their schemas.
    """
    feed.hold()
    yield from feed.take_all(SPACE)
    fenced = (yield from feed.take_if(f"{_FENCE}json")) or (yield from feed.take_if(_FENCE))
    yield from feed.take_all(SPACE)
    outcome = CallOutcome.TEXT
    while (yield from feed.peek()) == "{":
        read = yield from read_call(feed, names.__contains__, known_keys=True)
        if read is CallOutcome.TEXT:
            break
        outcome = read
        if read is CallOutcome.BROKEN:
            yield from feed.copy_until(_FENCES if fenced else _NOTHING, feed.argue)
            feed.release()
            return
        yield from feed.take_all(_BETWEEN)
        feed.hold()
    feed.rewind()
    if outcome is CallOutcome.CALL and fenced:
        yield from feed.take_if(_FENCE)
        yield from feed.take_all(SPACE)


HERMES: Final = ToolFamily(
    signs=(_OPEN,),
    markers=(_OPEN, _CLOSE),
    opener=_OPEN,
    read=_read,
    written=lambda _: Written(
        name=f'{_OPEN}\n{{"name": "', arguments='", "arguments": ', end=f"}}\n{_CLOSE}", between="\n"
    ),
    new_id=long_id,
)
