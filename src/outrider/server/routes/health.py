"""``/health``, ``/ready`` and ``/version``."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI

from outrider.server.desk import Desk
from outrider.server.failures import Refusal, draining
from outrider.server.wire.others import ServerStatus, Version


def add_health(app: FastAPI, desk: Desk) -> None:
    """Tell whether the process runs, and whether it serves requests: neither while it ends, nor while a pass hangs."""

    @app.get("/health")
    async def health() -> ServerStatus:
        return ServerStatus(status="ok")

    @app.get("/ready")
    async def ready() -> ServerStatus:
        if desk.draining:
            raise draining()
        if desk.llm.driver.round_seconds > desk.settings.stall_seconds:
            told = f"the engine has not finished a pass for {desk.settings.stall_seconds:g} seconds; start a new server"
            raise Refusal(503, told, code="stalled")
        return ServerStatus(status="ok")

    @app.get("/version")
    async def version_of() -> Version:
        return Version(version=version("outrider"))
