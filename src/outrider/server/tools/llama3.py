"""Calls of Llama 3: JSON objects without a marker at the beginning of the answer, or after ``<|python_tag|>``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from outrider.server.tools.call import CallOutcome, any_name, read_call
from outrider.server.tools.family import ToolFamily, Written, long_id
from outrider.server.tools.feed import SPACE, Feed, Marks, Steps
from outrider.server.tools.functions import Function

_TAG: Final = "<|python_tag|>"
_BETWEEN: Final = re.compile(r"[\s;,]*")
_TAGS: Final = Marks([_TAG])


def _read(feed: Feed, functions: Sequence[Function]) -> Steps[None]:
    """Without a marker only the name of an offered function makes a call: the answer may be JSON itself."""
    names = frozenset(function.name for function in functions)
    tagged = False
    feed.hold()
    while True:
        yield from feed.take_all(SPACE)
        tagged = tagged or (yield from feed.take_if(_TAG))
        yield from feed.take_all(SPACE)
        outcome = CallOutcome.TEXT
        if (yield from feed.peek()) == "{":
            accepts = any_name if tagged else names.__contains__
            outcome = yield from read_call(feed, accepts, known_keys=not tagged)
        if outcome is CallOutcome.CALL:
            yield from feed.take_all(_BETWEEN)
            feed.hold()
            tagged = False
            continue
        if outcome is CallOutcome.TEXT:
            feed.give_back()
            found = yield from feed.copy_text(_TAG, feed.say)
        else:
            found = (yield from feed.copy_until(_TAGS, feed.argue)) is not None
        if not found:
            return
        tagged = True


LLAMA3: Final = ToolFamily(
    signs=(r"<\|python_tag\|>", r'\{"name": .{0,80}?"parameters":'),
    markers=(_TAG,),
    opener="",
    read=_read,
    written=lambda _: Written(name='{"name": "', arguments='", "parameters": ', end="}", between="; "),
    new_id=long_id,
)
