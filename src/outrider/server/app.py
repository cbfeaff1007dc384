"""The application: all routes, and what every request passes on its way to them."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from outrider.server import document, failures
from outrider.server.access import AccessLog
from outrider.server.board import Board
from outrider.server.bodies import BodyRoute
from outrider.server.desk import Desk
from outrider.server.limits import Gate
from outrider.server.routes.admin import add_admin
from outrider.server.routes.board import add_board
from outrider.server.routes.completions import add_completions
from outrider.server.routes.health import add_health
from outrider.server.routes.models import add_models, add_tokens
from outrider.server.routes.page import add_page
from outrider.server.routes.refused import add_refused
from outrider.server.tracing import make_tracer


def make_app(desk: Desk) -> FastAPI:
    """The server's application.

    Args:
        desk: admits requests.
    """
    app = FastAPI(title="Outrider", version=version("outrider"), docs_url=None, redoc_url=None)
    app.router.route_class = BodyRoute
    failures.install(app)
    board = Board(desk)
    add_completions(app, desk)
    add_models(app, desk)
    add_tokens(app, desk)
    add_health(app, desk)
    add_board(app, board)
    add_page(app)
    add_admin(app, desk.llm)
    add_refused(app)
    document.install(app, desk.settings)
    _add_middleware(app, desk, board)
    return app


def _add_middleware(app: FastAPI, desk: Desk, board: Board) -> None:
    """The gate inside, the log outside."""
    traces = desk.settings.traces_endpoint
    tracer = None if traces is None else make_tracer(traces, desk.names[0])
    app.add_middleware(Gate, settings=desk.settings)
    if desk.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(desk.settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # OpenAI's client sends a dozen of its own; the origins are known, keys are no cookies
            expose_headers=["X-Request-Id", "Retry-After", "X-Should-Retry"],
        )
    app.add_middleware(AccessLog, metrics=board.requests, algorithm=lambda: board.facts.algorithm, tracer=tracer)
