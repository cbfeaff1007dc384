"""What every request passes before a route reads it: host, key, size and time limits, headers of the answer."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.server.failures import Refusal, draining, refusal_of
from outrider.server.settings import ServerSettings

_OPEN: Final = frozenset({"/", "/health", "/ready", "/version", "/metrics"})
"""Paths without a key, beside the page's files."""
_ADMIN: Final = "/admin/"
_LOCAL: Final = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})
_HOST: Final = re.compile(r"(\[[^\]]*\]|[^:]*)(?::\d*)?")
_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
SAFE: Final = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
"""Headers of every answer."""
CROWDED: Final = "crowded"
"""In a request's state: whether there are too many connections to answer it."""


class Keys:
    """Tells whose a key is, in a time that does not depend on how much of it is right.

    Args:
        keys: the known ones.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def tenant(self, key: str) -> str | None:
        """A name for the owner of a key; None if the key is unknown."""
        given, found = _digest(key), None
        for digest in self._digests:
            if hmac.compare_digest(digest, given):
                found = digest.hex()[:16]
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class Gate:
    """ASGI middleware in front of all routes.

    Args:
        app: the routes.
        settings: keys and limits.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app, self._settings = app, settings
        self._keys = Keys(settings.api_keys)
        self._admin = Keys([settings.admin_key] if settings.admin_key else [])
        self._most = settings.max_body_megabytes << 20
        self._local = settings.local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        name = given if _ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {}).update(request_id=name, tenant=None)

        begun: list[Message] = []

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                begun.append(message)
                told = MutableHeaders(raw=message["headers"])
                told["X-Request-Id"] = name
                for header, value in SAFE.items():
                    told.setdefault(header, value)
            await send(message)

        routed = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope  # uvicorn leaves the body out
        try:
            self._check(scope, headers)
            await self._app(routed, _Body(receive, self._most, self._settings.receive_seconds), answer)
        except asyncio.CancelledError:  # the server ends at once; uvicorn closes the connection
            if not begun:
                await draining().response(scope)(scope, receive, answer)
        except Exception as error:
            if begun:
                raise
            await refusal_of(error).response(scope)(scope, receive, answer)
        finally:
            if "route" in routed:  # the log and the counts name it
                scope["route"] = routed["route"]

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Refuse a request that may not reach the routes.

        A page of another site that has its name resolved to this machine shows itself by its Host.
        """
        if scope["state"].get(CROWDED):
            raise _overloaded()
        host = headers.get("host", "").lower()
        found = _HOST.fullmatch(host)
        if self._local and host and (found is None or found[1] not in _LOCAL):
            raise Refusal(403, "this server answers only to localhost; --host serves other names", code="wrong_host")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._most:
            raise _too_large(self._most)
        path: str = scope["path"]
        if path.startswith(_ADMIN):
            self._check_admin(headers)
        elif self._keys and path not in _OPEN and not path.startswith("/page/") and scope["method"] != "OPTIONS":
            scope["state"]["tenant"] = _owner(self._keys, headers)

    def _check_admin(self, headers: Headers) -> None:
        if not self._admin:
            raise Refusal(404, "the admin routes are off; --admin-key turns them on")
        _owner(self._admin, headers)


def _owner(keys: Keys, headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    tenant = keys.tenant(key.strip()) if scheme.lower() == "bearer" else None
    if tenant is None:
        told = "this needs a key; send it as: Authorization: Bearer KEY"
        raise Refusal(401, told, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
    return tenant


def _overloaded() -> Refusal:
    headers = {"Retry-After": "1", "Connection": "close"}
    return Refusal(503, "the server has too many connections; try again later", code="overloaded", headers=headers)


def _too_large(most: int) -> Refusal:
    """What is still sent is read and dropped: closing the connection might take the answer from the client."""
    return Refusal(413, f"the body may have {most >> 20} MiB at most", code="too_large")


class _Body:
    """Receives a request's body within its limits of size and time; afterwards only the end of the connection."""

    def __init__(self, receive: Receive, most: int, seconds: float) -> None:
        self._receive, self._most, self._seconds = receive, most, seconds
        self._size, self._complete = 0, False
        self._deadline = asyncio.get_running_loop().time() + seconds

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            told = f"the request did not arrive within {self._seconds:g} seconds"
            raise Refusal(408, told, code="timeout", headers={"Connection": "close"}) from None
        self._size += len(message.get("body", b""))
        if self._size > self._most:
            raise _too_large(self._most)
        self._complete = not message.get("more_body", False)
        return message
