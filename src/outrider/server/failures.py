"""Refusals and failures, in OpenAI's error body."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from outrider.errors import ConfigError, OutriderError, RequestError
from outrider.server.invalid import complaint
from outrider.server.wire.shared import ErrorBody, ErrorDetail

_log: Final = logging.getLogger(__name__)
_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
_WITHIN: Final = dict.fromkeys(("speculate", "algorithm", "max_draft_tokens"), "speculation")
"""Sampling parameters that are fields of a field."""
_FIELDS: Final[Mapping[str, Mapping[str, str]]] = {
    "/v1/completions": _WITHIN,
    "/v1/chat/completions": {**_WITHIN, "prompt": "messages", "logprobs": "top_logprobs"},
}
"""For each route, the fields that the library's parameters come from, where their names differ."""


@dataclass(eq=False)
class Refusal(Exception):  # noqa: N818 - most are no errors of the server
    """An answer with an error body."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> ErrorBody:
        """The body that clients read."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return ErrorBody(error=ErrorDetail(message=self.message, type=kind, param=self.param, code=self.code))

    def response(self, scope: Scope) -> Response:
        """The whole answer to a request; its state keeps the code, for the log."""
        scope.setdefault("state", {})["code"] = self.code or str(self.status)
        body = self.body.model_dump_json()
        return Response(body, self.status, dict(self.headers), media_type="application/json")


def draining() -> Refusal:
    """The answer to requests while the server ends."""
    return Refusal(503, "the server is shutting down", code="draining", headers={"Retry-After": "1"})


def refusal_of(error: BaseException, path: str = "") -> Refusal:
    """What a client is told of an error; of an unexpected one only that there was one, and the log has the rest.

    Args:
        error: what was raised.
        path: where the client asked; it may spell a parameter in a way of its own.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, (ConfigError, RequestError)):
        param = error.param and _FIELDS.get(path, {}).get(error.param, error.param)
        return Refusal(400, str(error), param, error.code)
    if isinstance(error, OutriderError):
        return Refusal(500, str(error))
    _log.error("a request failed with %s", type(error).__name__, exc_info=error)
    return Refusal(500, "the server failed on this request; its log says why")


def install(app: FastAPI) -> None:
    """Have every error of an app answered with OpenAI's body."""

    async def refused(request: Request, error: Exception) -> Response:
        return refusal_of(error, request.scope["path"]).response(request.scope)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        told = complaint(error.errors(), error.body)
        return Refusal(400, told.message, told.param, told.code).response(request.scope)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, Refusal):  # raised while the body was read
            return error.__cause__.response(request.scope)
        if error.status_code == 404:
            message = f"there is no {request.method} {request.scope['path'][:200]}"
        else:
            message = str(error.detail)
        return Refusal(error.status_code, message, headers=error.headers or {}).response(request.scope)

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    for kind in (Refusal, OutriderError, Exception):
        app.add_exception_handler(kind, refused)
