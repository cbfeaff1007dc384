"""Calls in tags, as Hermes, Qwen and many others write them; also the format for templates that know no tools."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from outrider.server.tools.call import CallOutcome, any_name, read_call
from outrider.server.tools.family import ToolFamily, Written, long_id
from outrider.server.tools.feed import SPACE, Feed, Marks, Steps

_OPEN: Final = "<tool_call>"
_CLOSE: Final = "</tool_call>"
_TOO_MANY: Final = re.compile(r"[\s}\]]*")
"""Models sometimes close more brackets than they opened."""
_CLOSERS: Final = Marks([_CLOSE])


def _read(feed: Feed, _: Collection[str]) -> Steps[None]:
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
