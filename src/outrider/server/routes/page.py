"""The page at ``/`` and its files."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from outrider.server.failures import Refusal
from outrider.server.page import HEADERS, page_files


def add_page(app: FastAPI) -> None:
    """Serve the page."""

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def front(request: Request) -> Response:
        return _file(request, "index.html")

    @app.api_route("/page/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def file(request: Request, name: str) -> Response:
        return _file(request, name)


def _file(request: Request, name: str) -> Response:
    found = page_files().get(name)
    if found is None:
        raise Refusal(404, "the page has no such file")
    headers = {**HEADERS, "ETag": found.etag}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    return Response(found.body, headers=headers, media_type=found.media_type)
