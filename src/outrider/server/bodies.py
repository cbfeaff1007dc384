"""Reads the JSON of requests, so that no body takes the event loop's time for more than its size explains."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.responses import Response

from outrider.server.failures import Refusal

_MOST_KEYS: Final = 16384
"""Keys of one object.  Every unknown one would be reported as an error of its own."""
_MOST_SIGNS: Final = {"[": 1 << 17, "{": 1 << 17, ":": 1 << 17, ",": 1 << 20}
"""Signs of a body, those in its texts included; a prompt with more fits no context.  Millions of small values take ten
times as long to read as a text of the same size."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class BodyRoute(APIRoute):
    """A route whose body is read by :func:`read_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As FastAPI's, but for the reading of JSON."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handled


class _JsonRequest(Request):
    async def json(self) -> Any:
        """The body."""
        return read_json(await self.body())


def read_json(body: bytes) -> Any:
    """Read JSON in UTF-8.

    Args:
        body: all of it.

    Raises:
        Refusal: it is not JSON: not UTF-8, NaN, half of a surrogate pair, too deep, or a number without bounds; or it
            has too many parts.
    """
    for sign, most in _MOST_SIGNS.items():
        if (count := body.count(sign.encode())) > most:
            raise Refusal(400, f"the body has {count} times {sign!r}; {most} are the most")
    try:
        value = from_json(body.removeprefix(_BYTE_ORDER_MARK), allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise Refusal(400, f"the body is not valid JSON: {error}") from None
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            if len(item) > _MOST_KEYS:
                raise Refusal(400, f"an object of the body has {len(item)} keys; {_MOST_KEYS} are the most")
            waiting += [child for child in item.values() if isinstance(child, (dict, list))]
        elif isinstance(item, list) and item and isinstance(item[0], (dict, list)):
            waiting += item  # a list that begins plainly is checked in no time, or stops at its first wrong item
    return value
