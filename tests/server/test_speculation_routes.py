"""Speculation per request and at run time: it changes the speed and the usage, never the text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from serving import Served, serving, tiny_llm

ADMIN = {"Authorization": "Bearer secret"}
PROMPT = "the sea the sea the sea the sea the sea"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with tiny_llm(tmp_path_factory.mktemp("switched")) as llm, serving(llm, admin_key="secret") as running:
        yield running


def completed(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    told = client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 40, "temperature": 0, **fields})
    assert told.status_code == 200, told.text
    answer: dict[str, Any] = told.json()
    return answer


@pytest.mark.parametrize(
    "wish",
    [
        {"enabled": False},
        {"enabled": "auto"},
        {"enabled": True, "max_draft_tokens": 2},
        {"algorithm": "ngram"},
        {"max_draft_tokens": 0},
    ],
)
def test_a_requests_wish_changes_no_text(client: httpx.Client, wish: dict[str, Any]) -> None:
    plain = completed(client, speculation={"enabled": False})
    wished = completed(client, speculation=wish)
    assert wished["choices"][0]["text"] == plain["choices"][0]["text"]
    counts = wished["usage"]["speculation"]
    if wish.get("enabled") is False or wish.get("max_draft_tokens") == 0:
        assert counts["drafted"] == 0
    else:
        assert counts["drafted"] > 0
        assert counts["drafted"] <= counts["rounds"] * wish.get("max_draft_tokens", 64)
    assert plain["usage"]["speculation"]["drafted"] == 0


def test_an_unknown_algorithm_is_refused_by_name(client: httpx.Client) -> None:
    told = client.post("/v1/completions", json={"prompt": PROMPT, "speculation": {"algorithm": "crystal"}})
    assert told.status_code == 400
    assert told.json()["error"]["param"] == "speculation"
    assert "suffix" in told.json()["error"]["message"]


def test_the_administrator_switches_speculation_off_and_on(client: httpx.Client) -> None:
    assert client.get("/admin/speculation").status_code == 401
    assert client.post("/admin/speculation", json={"enabled": False}, headers=ADMIN).status_code == 200
    assert client.get("/admin/speculation", headers=ADMIN).json()["enabled"] is False
    assert completed(client)["usage"]["speculation"]["drafted"] == 0
    assert completed(client, speculation={"enabled": True})["usage"]["speculation"]["drafted"] > 0
    told = client.post("/admin/speculation", json={"algorithm": "crystal"}, headers=ADMIN)
    assert told.status_code == 400
    assert client.post("/admin/speculation", json={"enabled": True}, headers=ADMIN).status_code == 200
    assert completed(client)["usage"]["speculation"]["drafted"] > 0
