"""What the model is called: a name that says nothing of its place, in every answer and every error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from raw_http import error_of
from serving import serving
from tiny_folder import make_folder

from outrider import LLM
from outrider.server.desk import _names

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
PLACES = {
    ".": (".", "bird"),
    "./": ("./", "bird"),
    "a name": ("bird", "."),
    "a place": ("nests/bird", ".."),
    "one above": ("../bird", "other"),
    "two above": ("..", "bird/within"),
    "a link": ("link", "."),
}
"""What the user writes, and from which folder, seen from the one that holds the model."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("named", [(), ("x",)])
def test_a_model_is_called_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, named: tuple[str, ...]
) -> None:
    written, start = PLACES[place]
    home = tmp_path / "secret" / "nests"
    make_folder(home / "bird", template=None)
    for folder in ("other", "bird/within"):
        (home / folder).mkdir(exist_ok=True)
    (home / "link").symlink_to("bird")
    monkeypatch.chdir(home / start)
    with (
        LLM(written, context_length=64, backend="hf") as llm,
        serving(llm, served_names=named) as served,
        served.client() as client,
    ):
        (card,) = client.get("/v1/models").json()["data"]
        own = named[0] if named else "link" if place == "a link" else "bird"
        assert card["id"] == own
        told = error_of(client.post("/v1/chat/completions", json=CHAT).text)["message"]
        assert "no chat template" in told
        assert "nests" not in told
        told = error_of(client.post("/v1/completions", json={"prompt": "x", "top_p": 1.5}).text)["message"]
        assert told == "top_p must be at least 1e-09 and at most 1, not 1.5"


def test_a_hub_id_is_a_name_too() -> None:
    assert _names("owner/bird") == ("owner/bird", "bird")
    assert _names(f"{os.sep}far{os.sep}away{os.sep}bird.gguf") == ("bird.gguf",)
