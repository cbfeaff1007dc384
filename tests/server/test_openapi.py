"""The OpenAPI document is true: generated requests, right and wrong, get answers that it describes."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import checks
from serving import Served, serving, tiny_llm

from outrider.server.wire.chat import ChatRequest
from outrider.server.wire.completions import CompletionRequest
from outrider.server.wire.others import DetokenizeRequest, SpeculationSwitch, TokenizeRequest

ADMIN = {"Authorization": "Bearer secret"}
OPERATIONS = [
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "POST /tokenize",
    "POST /detokenize",
    "GET /health",
    "GET /ready",
    "GET /version",
    "GET /metrics",
    "GET /stats",
    "GET /admin/speculation",
    "POST /admin/speculation",
]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5]},
    "/admin/speculation": {},
}
"""The least that a right request holds; a few fields are generated on top, for all of them at once are never right."""
FIELDS = {
    "/v1/chat/completions": ChatRequest.model_fields.keys() - {"model"},
    "/v1/completions": CompletionRequest.model_fields.keys() - {"model"},
    "/tokenize": TokenizeRequest.model_fields.keys() - {"model"},
    "/detokenize": DetokenizeRequest.model_fields.keys() - {"model"},
    "/admin/speculation": SpeculationSwitch.model_fields.keys(),
}
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with (
        tiny_llm(tmp_path_factory.mktemp("documented"), context_length=64) as llm,
        serving(llm, admin_key="secret") as running,
    ):
        yield running


@pytest.fixture(scope="module")
def document(served: Served) -> dict[str, Any]:
    with served.client() as client:
        written: dict[str, Any] = client.get("/openapi.json").json()
    return written


def test_every_route_is_generated_for(document: dict[str, Any]) -> None:
    found = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert found == set(OPERATIONS)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert ("security" in operation) == path.startswith("/admin/"), "this server has only an admin key"
            assert "422" not in operation["responses"]
    for route in ("/v1/chat/completions", "/v1/completions"):
        kinds = document["paths"][route]["post"]["responses"]["200"]["content"]
        assert kinds.keys() == {"application/json", "text/event-stream"}
    schemas = document["components"]["schemas"]
    assert {"ChatChunk", "ErrorBody"} <= schemas.keys()
    for name in ("ChatRequest", "CompletionRequest"):
        assert schemas[name]["examples"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_answers_are_as_documented(served: Served, document: dict[str, Any], operation: str) -> None:
    method, path = operation.split()
    described = copy.deepcopy(document)
    described["paths"][path][method.lower()].pop("security", None)  # keys have tests of their own
    found = schemathesis.openapi.from_dict(described)[path][method]
    kinds = [schemathesis.GenerationMode.POSITIVE]
    if method == "POST":
        kinds.append(schemathesis.GenerationMode.NEGATIVE)

    seen = Counter[int]()
    with served.client(headers=ADMIN if path.startswith("/admin/") else {}) as client:

        @settings(
            max_examples=30,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(
            case=st.one_of(*(found.as_strategy(generation_mode=kind) for kind in kinds)),
            kept=st.sets(st.sampled_from(sorted(FIELDS.get(path, {"none"}))), max_size=3),
        )
        def check(case: schemathesis.Case, kept: set[str]) -> None:
            if isinstance(case.body, dict) and case.meta.generation.mode.is_positive:
                case.body = BODIES[path] | {name: case.body[name] for name in sorted(kept) if name in case.body}
            told = answer(client, case)
            seen[told.status_code] += 1
            assert "error parsing the body" not in told.text, "the server's own reader has failed"
            case.validate_response(told, checks=CHECKS)

        check()
    assert seen[200] or "{" in path, "no request was right"
    assert served.idle()


def answer(client: httpx.Client, case: schemathesis.Case) -> httpx.Response:
    """Send a case."""
    fields = case.as_transport_kwargs(base_url=str(client.base_url))
    fields.pop("cookies", None)
    fields["headers"] = {name: value for name, value in fields["headers"].items() if name.lower() != "authorization"}
    if isinstance(fields.get("data"), (bytes, str)):
        fields["content"] = fields.pop("data")
    return client.request(**{name: value for name, value in fields.items() if value is not None})
