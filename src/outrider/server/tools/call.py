"""Reads one call that is written as a JSON object with a name and arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import Final

from outrider.server.tools.feed import SPACE, Feed, Steps

_NAME: Final = "name"
_ARGUMENTS: Final = frozenset({"arguments", "parameters"})
_FURTHER: Final = frozenset({"type", "id", "index"})
"""Other keys that models write in calls."""


class CallOutcome(Enum):
    """What a text in the place of a call was."""

    TEXT = "no call"
    BROKEN = "a call whose arguments are not JSON"
    CALL = "a call"


def any_name(name: str) -> bool:
    """Accept every name, also of a function that nobody offered: the caller tells the model so."""
    return bool(name)


def read_call(feed: Feed, accepts: Callable[[str], bool], *, known_keys: bool = False) -> Steps[CallOutcome]:
    """Read ``{"name": …, "arguments": {…}}`` from the brace on.

    The call starts with its name.  Arguments before the name wait for it.  A call without arguments has ``{}``; one
    that the end of the text cuts has what is there.

    Args:
        feed: holds the text, which the caller gives back if it is no call.
        accepts: whether a name makes a call.
        known_keys: a key that calls do not have makes it no call.
    """
    reader = _CallReader(feed, accepts, known_keys=known_keys)
    feed.take(1)
    while True:
        yield from feed.take_all(SPACE)
        key = yield from _string(feed)
        if key is None:
            break
        if not reader.admits(key):
            return CallOutcome.TEXT
        yield from feed.take_all(SPACE)
        if not (yield from feed.take_if(":")):
            break
        yield from feed.take_all(SPACE)
        if not (yield from reader.value(key)):
            return reader.outcome(whole=False)
        yield from feed.take_all(SPACE)
        if not (yield from feed.take_if(",")):
            break
    yield from feed.take_if("}")
    return reader.outcome(whole=True)


class _CallReader:
    """One call while it is read."""

    def __init__(self, feed: Feed, accepts: Callable[[str], bool], *, known_keys: bool) -> None:
        self._feed = feed
        self._accepts = accepts
        self._known_keys = known_keys
        self._started = False
        self._argued = False
        self._early = ""
        """Arguments before the name."""

    def admits(self, key: str) -> bool:
        """Whether this may be a call with the key."""
        return not self._known_keys or self._started or key == _NAME or key in _ARGUMENTS or key in _FURTHER

    def value(self, key: str) -> Steps[bool]:
        """Read the value of a key; False if it breaks or makes this no call."""
        if key == _NAME and not self._started:
            return (yield from self._name())
        if key in _ARGUMENTS and not self._argued:
            self._argued = True
            return (yield from self._feed.copy_value(self._feed.argue if self._started else self._keep))
        return (yield from self._feed.copy_value(_drop))

    def outcome(self, *, whole: bool) -> CallOutcome:
        """What was read, at its end."""
        if not self._started:
            return CallOutcome.TEXT
        if whole and not self._argued and not self._feed.ended:
            self._feed.argue("{}")
        return CallOutcome.CALL if whole else CallOutcome.BROKEN

    def _name(self) -> Steps[bool]:
        name = yield from _string(self._feed)
        if name is None or not self._accepts(name):
            return False
        self._feed.start_call(name)
        self._started = True
        self._feed.argue(self._early)
        return True

    def _keep(self, text: str) -> None:
        self._early += text


def _string(feed: Feed) -> Steps[str | None]:
    """Read a JSON string; None if there is none."""
    if (yield from feed.peek()) != '"':
        return None
    written: list[str] = []
    if not (yield from feed.copy_value(written.append)):
        return None
    try:
        text = str(json.loads("".join(written), strict=False))
        text.encode()
    except ValueError:  # half a surrogate pair, too: no client could be sent it
        return None
    return text


def _drop(text: str) -> None:
    """Take no notice."""
