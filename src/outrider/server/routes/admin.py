"""The admin routes: how requests speculate that say nothing of it, changed while the server runs."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI

from outrider.config import SpeculationDefault
from outrider.engine.engine import Engine
from outrider.llm import LLM
from outrider.server.wire.others import SpeculationSwitch


def add_admin(app: FastAPI, llm: LLM) -> None:
    """Serve the admin routes; the gate lets only the admin key through."""

    @app.get("/admin/speculation")
    async def speculation() -> SpeculationSwitch:
        return await asyncio.to_thread(llm.driver.between_rounds, _read)

    @app.post("/admin/speculation")
    async def switch(body: SpeculationSwitch) -> SpeculationSwitch:
        default = SpeculationDefault(body.enabled, body.algorithm, body.max_draft_tokens)
        await asyncio.to_thread(llm.driver.between_rounds, lambda engine: engine.set_speculation(default))
        return body


def _read(engine: Engine) -> SpeculationSwitch:
    default = engine.controller.default
    return SpeculationSwitch(
        enabled=default.enabled, algorithm=default.algorithm, max_draft_tokens=default.max_draft_tokens
    )
