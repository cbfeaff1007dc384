"""Figures: ``/metrics`` for Prometheus and ``/stats`` for the page."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI
from starlette.responses import PlainTextResponse, Response

from outrider.server.board import Board


def add_board(app: FastAPI, board: Board) -> None:
    """Serve the figures."""

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        body, kind = await asyncio.to_thread(board.scrape)
        return Response(body, headers={"Content-Type": kind})

    @app.get("/stats")
    async def stats() -> dict[str, Any]:
        return board.stats()
