"""No client takes more than its share: room is checked first, urgency is not for sale, lists have bounds."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest
from raw_http import soon
from serving import Served, serving, tiny_llm

from outrider import LLM
from outrider.server.limits import Keys

KEYS = ("one-key", "other-key")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with tiny_llm(tmp_path_factory.mktemp("fair")) as made:
        yield made


def asked(client: httpx.Client, key: str = KEYS[0], **fields: object) -> httpx.Response:
    body = {"prompt": "the sea", "max_tokens": 2, **fields}
    return client.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})


def test_where_keys_share_a_server_none_may_hurry(llm: LLM) -> None:
    with serving(llm, api_keys=KEYS) as served, served.client() as client:
        told = asked(client, priority=-1)
        assert told.status_code == 400
        assert told.json()["error"]["param"] == "priority"
        assert asked(client, priority=3).status_code == 200
    with serving(llm, api_keys=KEYS[:1]) as served, served.client() as client:
        assert asked(client, priority=-1).status_code == 200


def test_a_full_server_reads_no_prompt(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(llm, max_waiting=0) as served, served.client() as client:
        monkeypatch.setattr(type(served.desk), "run", unread)
        with served.desk.admitted(served.desk.max_running, None):
            told = asked(client)
        assert told.status_code == 429
        assert int(told.headers["retry-after"]) >= 1
        monkeypatch.undo()
        assert asked(client).status_code == 200


def test_no_key_locks_the_others_out(llm: LLM) -> None:
    """A key that has filled the server gets no more, and each other one gets its equal share."""
    owners = Keys(KEYS)
    with serving(llm, api_keys=KEYS, max_waiting=4) as served, served.client() as client:
        desk, most = served.desk, served.desk.max_running + 4
        one, other = (owners.tenant(key) for key in KEYS)
        with desk.admitted(most, one):
            assert asked(client, KEYS[0]).status_code == 429
            assert asked(client, KEYS[1]).status_code == 200
            with desk.admitted(most // 2, other):
                assert desk.open == most + most // 2
                assert asked(client, KEYS[1]).status_code == 429
            assert asked(client, KEYS[1]).status_code == 200
        assert asked(client, KEYS[0]).status_code == 200
        assert soon(served.idle)


@pytest.mark.parametrize("keys", [(), KEYS[:1]])
def test_a_key_alone_has_the_whole_server(llm: LLM, keys: tuple[str, ...]) -> None:
    with serving(llm, api_keys=keys, max_waiting=4) as served, served.client() as client:
        most = served.desk.max_running + 4
        tenant = Keys(keys).tenant(KEYS[0])
        with served.desk.admitted(most - 1, tenant):
            assert asked(client).status_code == 200
            with served.desk.admitted(1, tenant):
                assert asked(client).status_code == 429


def unread(*arguments: object) -> object:
    raise AssertionError("a prompt was read that could not be admitted")


def test_lists_are_bounded_by_the_outputs_that_read_them(served: Served, client: httpx.Client) -> None:
    ids = list(range(300)) * 30
    assert asked(client, allowed_token_ids=ids, n=1).status_code == 200
    told = asked(client, allowed_token_ids=ids, n=128)
    assert told.status_code == 400
    assert told.json()["error"]["param"] == "n"


def test_a_stream_that_fails_is_logged_with_its_code(
    served: Served, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="outrider.server"):
        told = asked(client, stream=True, max_tokens=400, timeout=1e-6)
        assert '"code":"timeout"' in told.text
        for _ in range(100):  # the line is written after the client has read the end
            lines = [record.getMessage() for record in caplog.records]
            if any("timeout" in line for line in lines):
                return
            time.sleep(0.05)
    pytest.fail(f"no line has the code: {lines}")


def test_prompt_logprobs_are_not_streamed(client: httpx.Client) -> None:
    told = asked(client, stream=True, prompt_logprobs=1)
    assert told.status_code == 400
    assert told.json()["error"]["param"] == "prompt_logprobs"
