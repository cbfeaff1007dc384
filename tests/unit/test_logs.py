"""Logs of the server: their two forms, their figures, and that no line holds what a user wrote."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import logging.config
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from oracles import Scripted
from starlette.responses import PlainTextResponse, StreamingResponse
from tiny import tiny_model

from outrider import LLM, SamplingParams
from outrider.drafters.base import DraftSequence
from outrider.errors import ModelError, RequestError
from outrider.server.access import AccessLog
from outrider.server.logs import JsonLines, PlainLines, RequestLine, log_config, log_request
from outrider.server.metrics import RequestMetrics
from outrider.tree import TokenTree

SECRET = "the user's own sécret words"
KEY = "k3y-of-a-tenant"
LINE = RequestLine("req-1", "POST", "/v1/completions", 200, 0.5)
FORMS = pytest.mark.parametrize("as_json", [False, True], ids=["plain", "json"])


class Log:
    """What a configured server would write."""

    def __init__(self, *, as_json: bool, level: str) -> None:
        self.stream = io.StringIO()
        config = log_config(as_json=as_json, level=level, keys=[KEY])
        config["handlers"]["stderr"]["stream"] = self.stream
        logging.config.dictConfig(config)

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def restored() -> Iterator[None]:
    """Give every logger its handlers, level and propagation back."""
    names = ["", "outrider", "uvicorn", "uvicorn.error", "uvicorn.access"]
    before = [(log := logging.getLogger(name), log.handlers.copy(), log.level, log.propagate) for name in names]
    yield
    for log, handlers, level, propagate in before:
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(level)


@pytest.mark.usefixtures("restored")
class TestLines:
    def test_a_request_has_one_line_for_people(self) -> None:
        log = Log(as_json=False, level="info")
        log_request(LINE)
        assert log.text.count("\n") == 1
        assert log.text.endswith("info    POST /v1/completions 200 in 0.500 s · req-1\n")

    def test_a_request_is_one_object_for_machines(self) -> None:
        log = Log(as_json=True, level="info")
        log_request(LINE)
        (found,) = log.objects
        assert found.items() >= {"level": "info", "request_id": "req-1", "status": 200, "seconds": 0.5}.items()
        assert "rounds" not in found

    def test_a_line_without_an_id_ends_with_its_figures(self) -> None:
        assert str(RequestLine("", "GET", "/x", 404, 0.5, "no_such_model")) == "GET /x 404 in 0.500 s · no_such_model"

    def test_what_the_server_did_wrong_is_an_error(self) -> None:
        log = Log(as_json=True, level="error")
        log_request(LINE)
        log_request(RequestLine("req-2", "POST", "/v1/completions", 500, 0.5))
        assert [found["request_id"] for found in log.objects] == ["req-2"]

    def test_figures_are_those_of_the_outputs(self) -> None:
        llm = LLM.from_model(tiny_model(), speculation="ngram")
        call = llm.driver.submit([([5, 6, 7, 8] * 6, SamplingParams(max_tokens=30, ignore_eos=True, n=2))])
        while llm.driver.wait(call):
            pass
        requests = call.requests
        line = LINE.with_outputs(requests, "ngram")
        accepted, tested = (
            sum(sum(each) for each in found)
            for found in ([r.stats.accepted for r in requests], [r.stats.tested for r in requests])
        )
        assert (line.prompt_tokens, line.output_tokens, line.finish_reason) == (24, 60, "length")
        assert (line.accepted, line.tested, line.rounds) == (accepted, tested, sum(r.stats.rounds for r in requests))
        assert line.acceptance_rate == pytest.approx(accepted / tested, abs=1e-4)
        assert f"ngram: {accepted} of {tested} tested drafts accepted" in str(line)
        assert line.figures["engine_ids"] == "r1 to r2"

    @pytest.mark.parametrize("n", [1, 2, 34, 400])
    def test_a_line_has_room_for_any_number_of_outputs(self, n: int) -> None:
        llm = LLM.from_model(tiny_model(), speculation="ngram")
        call = llm.driver.submit([([5, 6], SamplingParams(max_tokens=1, n=n))])
        while llm.driver.wait(call):
            pass
        figures = LINE.with_outputs(call.requests, "ngram").figures
        assert figures["engine_ids"] == ("r1" if n == 1 else f"r1 to r{n}")
        assert "[hidden]" not in figures.values()

    @pytest.mark.parametrize("asked", [{}, {"algorithm": "ngram"}, {"algorithm": "suffix"}])
    def test_a_line_names_the_method_that_served(self, asked: dict[str, str]) -> None:
        llm = LLM.from_model(tiny_model(), speculation="ngram", algorithms=["suffix"])
        call = llm.driver.submit([([5, 6, 7, 8] * 6, SamplingParams(max_tokens=30, ignore_eos=True, **asked))])
        while llm.driver.wait(call):
            pass
        line = LINE.with_outputs(call.requests, "ngram")
        assert line.algorithm == asked.get("algorithm", "ngram")
        assert f"{line.algorithm}: {line.accepted} of " in str(line)

    @FORMS
    def test_lines_of_uvicorn_have_the_same_form(self, as_json: bool) -> None:
        log = Log(as_json=as_json, level="info")
        logging.getLogger("uvicorn.error").info("Started server process [%d]", 7, extra={"color_message": "\x1b[36m"})
        logging.getLogger("uvicorn.access").info('%s - "%s %s HTTP/%s" %d', "1.2.3.4", "GET", "/x", "1.1", 200)
        assert log.text.count("\n") == 1
        assert ("uvicorn.error" in log.text) is as_json
        assert "info" in log.text
        assert "Started server process [7]" in log.text
        assert "\x1b" not in log.text

    def test_a_broken_line_is_written_as_it_is(self) -> None:
        log = Log(as_json=False, level="info")
        logging.getLogger("outrider").warning("%d of %s", "x")
        assert "%d of %s" in log.text

    def test_other_handlers_get_the_whole_record(self) -> None:
        Log(as_json=False, level="info")
        seen: list[logging.LogRecord] = []
        handler = logging.Handler()
        handler.emit = seen.append  # type: ignore[method-assign]
        logging.getLogger().addHandler(handler)
        logging.getLogger("outrider").warning("failed: %s", ValueError("whole"))
        assert seen[0].getMessage() == "failed: whole"

    @FORMS
    def test_one_event_is_one_line(self, as_json: bool) -> None:
        log = Log(as_json=as_json, level="info")
        logging.getLogger("outrider").warning("a\nb\r\nc\u2028d")
        assert len(log.text.splitlines()) == 1
        if as_json:
            assert log.objects[0]["message"].split() == ["a", "b", "c", "d"]


def nested() -> Exception:
    """An exception that quotes a prompt, as do its cause, its context and its parts."""
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ExceptionGroup(SECRET, [ValueError(SECRET)]) from error
    except ExceptionGroup as group:
        return group


@pytest.mark.usefixtures("restored")
@FORMS
class TestDiscretion:
    def test_exceptions_are_told_by_type_and_place(self, as_json: bool) -> None:
        log = Log(as_json=as_json, level="info")
        try:
            raise RequestError(SECRET) from nested()
        except RequestError:
            logging.getLogger("uvicorn.error").exception("Exception in ASGI application\n")
        logging.getLogger("outrider").warning("%s: %s", "name", RequestError(SECRET))
        logging.getLogger("outrider").warning("%(what)s", {"what": ValueError(SECRET)})
        logging.getLogger("other.library").warning("it failed: %s", nested())
        assert "cret words" not in log.text
        for name in ("RequestError", "ExceptionGroup", "KeyError", "ValueError", "test_logs.py"):
            assert name in log.text

    def test_messages_about_files_stay(self, as_json: bool) -> None:
        log = Log(as_json=as_json, level="info")
        logging.getLogger("outrider").warning("not kept: %s", OSError(28, "No space left on device"))
        logging.getLogger("outrider").warning("not read: %s", ModelError("model.gguf is no GGUF file"))
        assert "No space left" in log.text
        assert "no GGUF file" in log.text

    def test_debugging_shows_messages_and_no_keys(self, as_json: bool) -> None:
        log = Log(as_json=as_json, level="debug")
        try:
            raise ValueError(f"it said {KEY} and what")
        except ValueError as error:
            logging.getLogger("outrider").exception("why: %s", error)
        assert "and what" in log.text
        assert KEY not in log.text

    @pytest.mark.parametrize(
        "text",
        [
            f"Authorization: Bearer {KEY}",
            f"bearer {KEY}x",
            f"the key {KEY} is unknown",
            "api_key=abcdef123 in it",
            "'X-API-Key': 'abcdef123'",
            "sk-abcdef123",
            "GET /v1/models?key=abcdef123&prompt=abcdef123 HTTP/1.1",
        ],
    )
    def test_keys_and_queries_are_hidden(self, as_json: bool, text: str) -> None:
        log = Log(as_json=as_json, level="debug")
        logging.getLogger("uvicorn.error").warning(text)
        logging.getLogger("uvicorn.error").warning("%s", text)
        assert log.text.count("\n") == 2
        assert KEY not in log.text
        assert "abcdef123" not in log.text

    def test_a_request_line_holds_only_words_of_the_server(self, as_json: bool) -> None:
        log = Log(as_json=as_json, level="info")
        log_request(RequestLine(SECRET, "POST", f"/{SECRET}", 200, 0.5, code=f'"{SECRET}"'))
        assert "cret words" not in log.text
        assert "[hidden]" in log.text

    def test_a_faulty_drafter_cannot_quote_a_prompt(self, as_json: bool) -> None:
        log = Log(as_json=as_json, level="info")

        def script(sequence: DraftSequence) -> TokenTree:
            raise ValueError(SECRET)

        LLM.from_model(tiny_model(), speculation=Scripted(script)).generate([[1, 2]], SamplingParams(max_tokens=3))
        assert "drafting ended for request r1" in log.text
        assert "cret words" not in log.text


def application(metrics: RequestMetrics) -> AccessLog:
    app = FastAPI()

    @app.post("/v1/completions")
    async def complete(request: Request) -> PlainTextResponse:
        request.state.request_id = "req-7"
        return PlainTextResponse(await request.body())

    @app.get("/models/{name}")
    async def model(request: Request, name: str) -> PlainTextResponse:
        request.state.code = "unknown_model"
        return PlainTextResponse(name, status_code=404)

    @app.get("/late")
    async def late(request: Request) -> PlainTextResponse:
        request.state.code = "timeout"
        request.state.requests = (
            LLM.from_model(tiny_model()).driver.submit([([5], SamplingParams(max_tokens=1))]).requests
        )
        return PlainTextResponse("", status_code=408)

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def parts() -> Any:
            yield SECRET
            raise RuntimeError(SECRET)

        return StreamingResponse(parts())

    @app.get("/health")
    async def health() -> str:
        return SECRET

    @app.get("/broken")
    async def broken() -> str:
        raise RuntimeError(SECRET)

    return AccessLog(app, metrics, lambda: "ngram")


@pytest.mark.usefixtures("restored")
class TestAccess:
    def ask(self, *requests: tuple[str, str]) -> tuple[Log, RequestMetrics]:
        log, metrics = Log(as_json=True, level="info"), RequestMetrics("small", 512)

        async def send() -> None:
            transport = httpx.ASGITransport(application(metrics), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                for method, path in requests:
                    await client.request(method, path, content=SECRET.encode() if method == "POST" else None)

        asyncio.run(send())
        return log, metrics

    def test_answers_are_counted_and_logged_by_route(self) -> None:
        log, metrics = self.ask(
            ("POST", "/v1/completions?prompt=sécret"), ("GET", "/models/sécret"), ("GET", "/sécret"), ("SÉCRET", "/x")
        )
        routes = [(line["method"], line["route"], line["status"]) for line in log.objects]
        assert routes == [
            ("POST", "/v1/completions", 200),
            ("GET", "/models/{name}", 404),
            ("GET", "unmatched", 404),
            ("other", "unmatched", 404),
        ]
        assert metrics.answers == dict.fromkeys(routes, 1)
        assert metrics.refusals == {"unknown_model": 1}
        assert log.objects[0]["request_id"] == "req-7"
        assert log.objects[1]["code"] == "unknown_model"
        assert "cret" not in log.text

    def test_what_the_engine_had_taken_was_not_refused(self) -> None:
        log, metrics = self.ask(("GET", "/late"), ("GET", "/models/x"))
        assert metrics.answers == {("GET", "/late", 408): 1, ("GET", "/models/{name}", 404): 1}
        assert [line["code"] for line in log.objects] == ["timeout", "unknown_model"]
        assert metrics.refusals == {"unknown_model": 1}

    def test_failures_are_errors_without_texts(self) -> None:
        log, metrics = self.ask(("GET", "/broken"), ("GET", "/stream"))
        assert metrics.answers == {("GET", "/broken", 500): 1, ("GET", "/stream", 200): 1}
        assert [line["level"] for line in log.objects if "route" in line] == ["error", "info"]
        assert "cret words" not in log.text

    def test_probes_are_counted_and_not_logged(self) -> None:
        log, metrics = self.ask(("GET", "/health"))
        assert metrics.answers == {("GET", "/health", 200): 1}
        assert log.text == ""

    def test_a_client_that_leaves_is_told_apart(self) -> None:
        metrics, log = RequestMetrics("small", 512), Log(as_json=True, level="info")

        async def gone(*_: Any) -> None:
            raise asyncio.CancelledError

        async def ask() -> None:
            access = AccessLog(gone, metrics, lambda: "ngram")
            with pytest.raises(asyncio.CancelledError):
                await access({"type": "http", "method": "GET"}, gone, gone)

        asyncio.run(ask())
        assert metrics.answers == {("GET", "unmatched", 499): 1}
        assert log.objects[0]["status"] == 499


def test_the_forms_are_formatters() -> None:
    assert issubclass(PlainLines, logging.Formatter)
    assert issubclass(JsonLines, logging.Formatter)
