"""Routes of OpenAI's that this server does not offer: it says so."""

from __future__ import annotations

from functools import partial
from typing import Final

from fastapi import FastAPI
from starlette.responses import Response

from outrider.server.failures import Refusal

_NOT_SERVED: Final = {
    "/v1/embeddings": "embeddings",
    "/v1/images/generations": "images",
    "/v1/images/edits": "images",
    "/v1/images/variations": "images",
    "/v1/audio/speech": "audio",
    "/v1/audio/transcriptions": "audio",
    "/v1/audio/translations": "audio",
    "/v1/moderations": "moderation",
    "/v1/responses": "the responses interface; use /v1/chat/completions",
    "/v1/fine_tuning/jobs": "fine-tuning",
    "/v1/files": "files",
    "/v1/batches": "batches",
}
"""Routes of OpenAI's that are refused, and what they would serve."""


def add_refused(app: FastAPI) -> None:
    """Refuse what is not offered."""
    for path, what in _NOT_SERVED.items():
        app.add_api_route(path, partial(_refuse, what), methods=["POST", "GET"], include_in_schema=False)


async def _refuse(what: str) -> Response:
    raise Refusal(404, f"this server does not offer {what}", code="not_offered")
