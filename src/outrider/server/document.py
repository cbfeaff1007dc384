"""The OpenAPI document: what FastAPI writes, with the answers that all routes share."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel

from outrider.server.settings import ServerSettings
from outrider.server.wire.chat import ChatChunk
from outrider.server.wire.completions import CompletionAnswer
from outrider.server.wire.shared import ErrorBody

_REFERENCE: Final = "#/components/schemas/{model}"
_ERROR: Final = {"application/json": {"schema": {"$ref": _REFERENCE.format(model="ErrorBody")}}}
_ALWAYS: Final = {
    401: "The key is missing or unknown.",
    403: "The request's Host is not this machine.",
    429: "Too many requests are open; Retry-After says when to try again.",
    500: "The server failed.",
    503: "The server is shutting down, or has too many connections.",
}
_OF_BODIES: Final = {
    400: "A field is wrong; the message and `param` name it.",
    404: "There is no such model, or the route is off.",
    408: "The request did not arrive, or was not answered, in time.",
    413: "The body is too large.",
}
_OF_PATHS: Final = {404: _OF_BODIES[404]}
_STREAMS: Final[dict[str, type[BaseModel]]] = {"/v1/chat/completions": ChatChunk, "/v1/completions": CompletionAnswer}
"""Routes that answer with events where the request asks for a stream, and what an event holds."""
_OPEN: Final = frozenset({"/health", "/ready", "/version", "/metrics"})


def install(app: FastAPI, settings: ServerSettings) -> None:
    """Have an app write its document with every status that its routes answer with.

    Args:
        app: has all its routes.
        settings: say which keys there are.
    """
    write = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            written = write()
            for path, operations in written["paths"].items():
                for method, operation in operations.items():
                    _complete(operation, path, method, bool(settings.api_keys))
            _add_schemas(written)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # as FastAPI would have it


def _complete(operation: dict[str, Any], path: str, method: str, keys: bool) -> None:
    responses = operation["responses"]
    responses.pop("422", None)  # FastAPI's own, which the server answers with 400
    told = _ALWAYS | (_OF_BODIES if method == "post" else {}) | (_OF_PATHS if "{" in path or "/admin/" in path else {})
    for status, why in sorted(told.items()):
        responses[str(status)] = {"description": why, "content": _ERROR}
    if (chunk := _STREAMS.get(path)) is not None:
        told_events = f"Each event holds a {chunk.__name__} as JSON, or an ErrorBody; the last one is [DONE]."
        events = {"schema": {"type": "string", "description": told_events}}
        responses["200"]["content"]["text/event-stream"] = events
    if "/admin/" in path or (keys and path not in _OPEN):
        operation["security"] = [{"key": []}]


def _add_schemas(written: dict[str, Any]) -> None:
    components = written.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    models: list[type[BaseModel]] = [ErrorBody, *_STREAMS.values()]
    for model in models:
        made = model.model_json_schema(ref_template=_REFERENCE, mode="serialization")
        for name, schema in made.pop("$defs", {}).items():
            schemas.setdefault(name, schema)
        schemas.setdefault(model.__name__, made)
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
