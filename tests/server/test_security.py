"""Who may use the server, and what it tells to whom."""

from __future__ import annotations

import hmac
import json
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from raw_http import asked, error_of, request
from serving import Served, serving, tiny_llm
from tiny_folder import make_folder

from outrider import LLM
from outrider.server import limits

ONE, OTHER, ADMIN = "sk-one-5f1d", "sk-other-77ab", "sk-admin-9c02"
WISH: dict[str, Any] = {"prompt": "the sea", "max_tokens": 4, "temperature": 0}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with tiny_llm(tmp_path_factory.mktemp("secret-place"), cache={"prefix_cache": True}) as llm:
        yield llm


@pytest.fixture(scope="module")
def locked(llm: LLM) -> Iterator[Served]:
    with serving(llm, api_keys=(ONE, OTHER), admin_key=ADMIN) as served:
        yield served


def bearing(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# Keys


def test_every_key_is_compared_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time tells neither which key is the right one, nor how much of it."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = limits.Keys(["first", "second", "third"])
    for given in ("first", "third", "firs", "", "x" * 10000, "schlüssel"):
        compared.clear()
        keys.tenant(given)
        assert len(compared) == 3
        assert {len(part) for pair in compared for part in pair} == {32}
    assert keys.tenant("first") not in (None, keys.tenant("second"))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": ONE},
        {"Authorization": f"Basic {ONE}"},
        {"Authorization": f"Bearer {ONE}x"},
        {"Authorization": f"Bearer {ONE[:-1]}"},
        {"Authorization": f"Bearer {ONE.upper()}"},
        {"Authorization": f"Bearer {ONE}, Bearer {OTHER}"},
        {"Authorization": b"Bearer \xff\xfe"},
        {"Authorization": f"Bearer {ADMIN}"},
        {"X-Api-Key": ONE},
        {"Cookie": f"key={ONE}"},
    ],
    ids=str,
)
def test_without_the_right_key(locked: Served, headers: dict[str, Any]) -> None:
    with locked.client() as client:
        for method, path in (
            ("POST", "/v1/completions"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/models"),
            ("POST", "/tokenize"),
            ("POST", "/detokenize"),
            ("GET", "/stats"),
            ("GET", "/nowhere"),
            ("GET", "/openapi.json"),
            ("GET", "//v1/models"),
            ("GET", "/page/../v1/models"),
            ("GET", "/page/%2e%2e/v1/models"),
            ("GET", "/health/../v1/models"),
            ("HEAD", "/v1/models"),
        ):
            told = client.request(method, path, headers=headers, json=WISH if method == "POST" else None)
            if path.startswith("/page/"):
                assert told.status_code in (401, 404), path
                assert locked.llm.name not in told.text
                continue
            assert told.status_code == 401, path
            assert told.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                assert error_of(told.text)["type"] == "authentication_error"


def test_with_the_right_key(locked: Served) -> None:
    with locked.client() as client:
        for value in (f"Bearer {ONE}", f"bearer {OTHER}", f"BEARER  {ONE}"):
            headers = {"Authorization": value}
            assert client.post("/v1/completions", json=WISH, headers=headers).status_code == 200
            assert client.get("/v1/models", headers=headers).status_code == 200
        for path in ("/health", "/ready", "/version"):
            assert client.get(path).status_code == 200


def test_the_admin_routes(locked: Served, llm: LLM) -> None:
    with locked.client() as client:
        for headers in ({}, bearing(ONE), bearing("x")):
            for method in ("GET", "POST"):
                told = client.request(method, "/admin/speculation", headers=headers, json={})
                assert told.status_code == 401
                assert error_of(told.text)["code"] == "invalid_api_key"
    with serving(llm, api_keys=(ONE,)) as served, served.client() as client:
        for headers in ({}, bearing(ONE), bearing("None")):
            told = client.get("/admin/speculation", headers=headers)
            assert told.status_code == 404
            error_of(told.text)


def test_keys_do_not_share_prefixes(llm: LLM) -> None:
    """How fast an answer begins would tell what somebody else has asked."""

    def cached(served: Served, key: str, prompt: str, **more: Any) -> int:
        with served.client(headers=bearing(key)) as client:
            told = client.post("/v1/completions", json=WISH | {"prompt": prompt, **more})
        return int(told.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    prompt = f"{secrets.token_hex(8)} a secret of one of them, which is long enough for some pages " * 3
    with serving(llm, api_keys=(ONE, OTHER)) as served:
        assert cached(served, ONE, prompt) == 0
        assert cached(served, ONE, prompt) > 0
        assert cached(served, OTHER, prompt) == 0
        assert cached(served, OTHER, prompt) > 0
        assert cached(served, ONE, prompt, cache_salt="mine") == 0
        assert cached(served, ONE, prompt, cache_salt="mine") > 0
        assert cached(served, OTHER, prompt, cache_salt="mine") == 0
    with serving(llm, api_keys=(ONE, OTHER), share_cache=True) as served:
        prompt = "x" + prompt
        assert cached(served, ONE, prompt) == 0
        assert cached(served, OTHER, prompt) > 0


# What is told


def test_nothing_private_is_logged(
    llm: LLM, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the most talkative level, for good requests and bad ones, and for one on which the server fails."""
    key, prompt = f"sk-{secrets.token_hex(12)}", f"private-{secrets.token_hex(12)}"
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []
    with serving(llm, api_keys=(key,)) as served, served.client(headers=bearing(key)) as client:
        chat = CHAT | {"messages": [{"role": "user", "content": prompt}]}
        for path, wish in (("/v1/completions", WISH | {"prompt": prompt}), ("/v1/chat/completions", chat)):
            for more in ({"max_tokens": 24}, {"stream": True}, {"frobnicate": prompt}, {"temperature": prompt}):
                client.post(path, json=wish | more)
            client.post(path, content=f'{{"{prompt}'.encode(), headers={"Content-Type": "application/json"})
        client.post("/v1/completions", json=WISH | {"prompt": prompt}, headers=bearing(f"{key}x"))
        client.post("/tokenize", json={"prompt": prompt})
        client.get(f"/v1/models?{key}", headers={"Authorization": key})
        asked(served.port, f"GET /{key} HTTP/9.9\r\nAuthorization: {key}\r\n\r\n".encode())
        answer = client.post("/v1/completions", json=WISH | {"prompt": prompt, "max_tokens": 24}).json()
        texts += [choice["text"] for choice in answer["choices"]]
        monkeypatch.setattr(type(llm.reader), "ready", failing)
        failed = client.post("/v1/completions", json=WISH | {"prompt": prompt})
        assert failed.status_code == 500
    ours = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    logged = [logging.Formatter().format(record) for record in ours]
    assert any("ZeroDivisionError" in line for line in logged), "the log says why a request failed"
    everything = "\n".join([*logged, *capfd.readouterr()])
    for private in (key, prompt, *(text for text in texts if len(text) > 8)):
        assert private not in everything


def failing(*given: object) -> object:
    raise ZeroDivisionError(f"division by zero in {__file__}")


def test_errors_tell_no_insides(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(llm.reader), "ready", failing)
    with serving(llm) as served, served.client() as client:
        for path, wish in (("/v1/completions", WISH), ("/v1/chat/completions", CHAT)):
            for streamed in (False, True):
                told = client.post(path, json=wish | {"stream": streamed})
                assert told.status_code == 500
                assert error_of(told.text)["type"] == "server_error"
                assert "division" not in told.text
                assert told.headers["x-request-id"]


def test_a_model_without_a_template_is_not_placed(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "hidden-place" / "model-name", template=None)
    with LLM(folder, context_length=512, backend="hf") as llm, serving(llm) as served, served.client() as client:
        for path, wish in (("/v1/chat/completions", CHAT), ("/tokenize", {"messages": CHAT["messages"]})):
            told = client.post(path, json=wish)
            assert told.status_code == 400
            assert "template" in error_of(told.text)["message"]
            assert "model-name" in told.text
            assert "hidden-place" not in told.text
        assert "hidden-place" not in client.get("/v1/models").text


# Other sites


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:1234", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:80", 200),
        ("[::1]", 200),
        ("evil.example", 403),
        ("evil.example:80", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost:80@evil.example", 403),
        ("[", 403),
        ("[::1", 403),
        ("::1", 403),
        ("evil.example/localhost", 403),
    ],
)
def test_names_of_other_sites_do_not_reach_a_local_server(llm: LLM, host: str, status: int) -> None:
    with serving(llm) as served:
        for path in ("/health", "/v1/models", "/nowhere"):
            told, _, body = asked(served.port, request(path, None, "Connection: close", method="GET", host=host))
            assert told == (404 if (path, status) == ("/nowhere", 200) else status), path
            if told >= 400:
                error_of(body)


def test_any_host_where_it_listens_to_the_network(llm: LLM) -> None:
    with serving(llm, host="0.0.0.0") as served:
        for host in ("evil.example", "[", "::::", "a b"):
            status, _, body = asked(
                served.port, request("/nowhere", None, "Connection: close", method="GET", host=host)
            )
            assert status in (400, 404)
            error_of(body)


def test_pages_of_other_sites(llm: LLM) -> None:
    origin = {"Origin": "https://evil.example"}
    asks = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    with serving(llm) as served, served.client() as client:
        for told in (
            client.options("/v1/completions", headers=asks),
            client.post("/v1/completions", json=WISH, headers=origin),
            client.get("/v1/models", headers=origin),
        ):
            assert not [name for name in told.headers if name.startswith("access-control")]
            assert "set-cookie" not in told.headers
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
            told = client.post("/v1/completions", content=json.dumps(WISH), headers={**origin, "Content-Type": kind})
            assert told.status_code == 400, "a page of another site may send these without asking"
            assert "application/json" in error_of(told.text)["message"]


def test_pages_of_sites_that_are_let_in(llm: LLM) -> None:
    good, evil = "https://good.example", "https://evil.example"
    with serving(llm, cors_origins=(good,), api_keys=(ONE,)) as served, served.client() as client:
        asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
        told = client.options("/v1/completions", headers={"Origin": good, **asks})
        assert told.status_code == 200
        assert told.headers["access-control-allow-origin"] == good
        assert "access-control-allow-credentials" not in told.headers
        many = "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-retry-count,x-request-id"
        told = client.options(
            "/v1/completions", headers={"Origin": good, **asks, "Access-Control-Request-Headers": many}
        )
        assert told.status_code == 200, "OpenAI's client for pages asks for these"
        assert set(many.split(",")) <= {
            name.strip() for name in told.headers["access-control-allow-headers"].split(",")
        }
        told = client.options("/v1/completions", headers={"Origin": evil, **asks})
        assert "access-control-allow-origin" not in told.headers
        for headers, status in ((bearing(ONE), 200), ({}, 401)):
            told = client.post("/v1/completions", json=WISH, headers={"Origin": good, **headers})
            assert told.status_code == status
            assert told.headers["access-control-allow-origin"] == good
            read = {name.strip().lower() for name in told.headers["access-control-expose-headers"].split(",")}
            assert {"x-request-id", "retry-after", "x-should-retry"} <= read
            told = client.post("/v1/completions", json=WISH, headers={"Origin": evil, **headers})
            assert "access-control-allow-origin" not in told.headers


# Answers


def test_every_answer_is_safe_and_every_error_json(locked: Served) -> None:
    with locked.client(headers=bearing(ONE)) as client:
        for method, path, status in (
            ("GET", "/health", 200),
            ("GET", "/nowhere", 404),
            ("DELETE", "/v1/models", 405),
            ("PUT", "/v1/completions", 405),
            ("PATCH", "/health", 405),
            ("OPTIONS", "/v1/completions", 405),
            ("TRACE", "/health", 405),
            ("GET", "/v1/completions", 405),
            ("POST", "/v1/completions", 400),
            ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", 404),
            ("GET", "/page/..%2f..%2f..%2fetc%2fpasswd", 404),
            ("GET", "/page/%00", 404),
            ("GET", "/%ff%fe", 404),
            ("GET", f"/{'x' * 8000}", 404),
        ):
            told = client.request(method, path)
            assert told.status_code == status, path
            assert told.headers["x-content-type-options"] == "nosniff"
            assert "set-cookie" not in told.headers
            assert "server" not in told.headers
            if status >= 400:
                assert told.headers["content-type"] == "application/json"
                error_of(told.text)
            if status == 405:
                assert told.headers["allow"]


def test_head_is_get_without_a_body(locked: Served) -> None:
    with locked.client(headers=bearing(ONE)) as client:
        for path, status in (("/health", 200), ("/v1/models", 200), ("/nowhere", 404), ("/v1/completions", 405)):
            told = client.head(path)
            assert told.status_code == status
            assert told.content == b""
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("abc-123_X.y:z", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("a b", False),
        ("<script>", False),
        ("x\r\nSet-Cookie: evil=1", False),
        ("x\rSet-Cookie: evil=1", False),
        ("x\x00y", False),
        ("é", False),
        ("", False),
    ],
)
def test_request_ids(locked: Served, given: str, kept: bool) -> None:
    sent = request("/health", None, f"X-Request-Id: {given}", "Connection: close", method="GET")
    status, headers, _ = asked(locked.port, sent)
    assert "set-cookie" not in headers
    if status == 200:
        assert (headers["x-request-id"] == given) == kept
        assert headers["x-request-id"].isascii()
        assert headers["x-request-id"].isprintable()
    else:
        assert (status, kept) == (400, False)


def test_models_and_fields_are_told_as_they_are_sent(locked: Served) -> None:
    """Texts of the client's come back in errors, but only as JSON's texts."""
    evil = '"}\r\nSet-Cookie: a=b\r\n\r\n<script>\u2028'
    with locked.client(headers=bearing(ONE)) as client:
        for body in (WISH | {"model": evil}, WISH | {evil: 1}):
            told = client.post("/v1/completions", json=body)
            assert isinstance(told, httpx.Response)
            assert "set-cookie" not in told.headers
            error_of(told.text)
