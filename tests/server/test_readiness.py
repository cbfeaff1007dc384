"""``/ready`` and ``/health``: a server whose engine hangs lives, and is not ready."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from byte_text import SIZE, byte_tokenizer
from raw_http import error_of, soon
from serving import serving
from tiny import tiny_model
from wrapped import Wrapped

from outrider import LLM

WISH = {"prompt": "the sea", "max_tokens": 2}


class Hanging(Wrapped):
    """A target whose passes wait until they may go on."""

    def __init__(self) -> None:
        super().__init__(tiny_model(0, SIZE))
        self.go_on = threading.Event()
        self.go_on.set()

    def forward(self, *given: Any) -> Any:
        assert self.go_on.wait(30)
        return self.target.forward(*given)


def test_a_server_whose_engine_hangs_is_not_ready() -> None:
    target = Hanging()
    with (
        LLM.from_model(target, byte_tokenizer()) as llm,  # type: ignore[arg-type]
        serving(llm, stall_seconds=0.2) as served,
        served.client() as client,
        ThreadPoolExecutor(1) as pool,
    ):
        assert client.get("/ready").status_code == 200
        target.go_on.clear()
        asked = pool.submit(client.post, "/v1/completions", json=WISH)
        try:
            assert soon(lambda: client.get("/ready").status_code == 503)
            assert error_of(client.get("/ready").text)["code"] == "stalled"
            assert client.get("/health").status_code == 200
        finally:
            target.go_on.set()
        assert asked.result(20).status_code == 200
        assert soon(lambda: client.get("/ready").status_code == 200)


def test_a_server_is_ready_in_a_pass_of_its_time_and_idle_for_longer() -> None:
    target = Hanging()
    with (
        LLM.from_model(target, byte_tokenizer()) as llm,  # type: ignore[arg-type]
        serving(llm, stall_seconds=60.0) as served,
        served.client() as client,
        ThreadPoolExecutor(1) as pool,
    ):
        target.go_on.clear()
        asked = pool.submit(client.post, "/v1/completions", json=WISH)
        try:
            assert soon(lambda: llm.driver.round_seconds > 0.05)
            assert client.get("/ready").status_code == 200
        finally:
            target.go_on.set()
        assert asked.result(20).status_code == 200
        assert soon(lambda: llm.driver.round_seconds == 0.0)
