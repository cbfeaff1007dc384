"""``/health``, ``/ready`` and ``/version``."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI

from outrider.server.desk import Desk
from outrider.server.failures import draining
from outrider.server.wire.others import ServerStatus, Version


def add_health(app: FastAPI, desk: Desk) -> None:
    """Tell whether the process runs, and whether it takes requests."""

    @app.get("/health")
    async def health() -> ServerStatus:
        return ServerStatus(status="ok")

    @app.get("/ready")
    async def ready() -> ServerStatus:
        if desk.draining:
            raise draining()
        return ServerStatus(status="ok")

    @app.get("/version")
    async def version_of() -> Version:
        return Version(version=version("outrider"))
