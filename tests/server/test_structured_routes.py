"""Structured output over HTTP: valid, the library's own, and compiled where nobody waits for it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Served, serving, tiny_llm

from outrider import Grammar
from outrider.grammar import CompiledGrammar, GrammarCompiler, compiler

WISH = {"max_tokens": 60, "seed": 5, "logit_bias": {"10": -100, "32": -100, "13": -100, "9": -100}}
"""Without the blanks that JSON may hold without end: the model is random."""
FIELDS: dict[str, tuple[dict[str, Any], Grammar]] = {
    "guided_regex": ({"guided_regex": "[ab]{3,9}"}, Grammar.regex("[ab]{3,9}")),
    "guided_choice": ({"guided_choice": ["sea", "seal"]}, Grammar.choice(["sea", "seal"])),
    "guided_grammar": ({"guided_grammar": 'start: "x" /[0-9]+/'}, Grammar.lark('start: "x" /[0-9]+/')),
    "guided_json": ({"guided_json": {"type": "boolean"}}, Grammar.json_schema({"type": "boolean"})),
    "structured_outputs.regex": ({"structured_outputs": {"regex": "[ab]{3,9}"}}, Grammar.regex("[ab]{3,9}")),
    "structured_outputs.choice": ({"structured_outputs": {"choice": ["sea", "seal"]}}, Grammar.choice(["sea", "seal"])),
    "structured_outputs.json": ({"structured_outputs": {"json": {}}}, Grammar.json_schema({})),
    "structured_outputs.json_object": (
        {"structured_outputs": {"json_object": True, "regex": None}},
        Grammar.json_object(),
    ),
    "json_schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["a", "bc"]}}}},
        Grammar.json_schema({"enum": ["a", "bc"]}),
    ),
}


@pytest.mark.parametrize("name", FIELDS)
def test_an_answer_in_a_form_is_the_librarys(served: Served, client: httpx.Client, name: str) -> None:
    fields, grammar = FIELDS[name]
    told = client.post("/v1/completions", json={"prompt": "the sea", **WISH, **fields})
    assert told.status_code == 200, told.text
    expected = served.llm.generate("the sea", temperature=1.0, grammar=grammar, **WISH)[0]
    assert told.json()["choices"][0]["text"] == expected.text
    assert expected.text


def test_two_forms_of_one_answer_are_refused(client: httpx.Client) -> None:
    body = {"prompt": "a", "guided_regex": "a", "guided_choice": ["a"]}
    told = client.post("/v1/completions", json=body)
    assert told.status_code == 400
    assert "guided_regex and guided_choice" in told.json()["error"]["message"]


@pytest.mark.parametrize("given", [{}, {"json_object": False}, {"regex": None, "choice": None}])
def test_structured_outputs_without_a_form_are_refused(client: httpx.Client, given: dict[str, Any]) -> None:
    told = client.post("/v1/completions", json={"prompt": "a", "structured_outputs": given})
    assert told.status_code == 400
    assert told.json()["error"]["param"] == "structured_outputs"


@pytest.mark.parametrize("pattern", ["(", "a{4000000000}"])
def test_a_bad_pattern_fails_its_own_request(served: Served, client: httpx.Client, pattern: str) -> None:
    told = client.post("/v1/completions", json={"prompt": "a", "guided_regex": pattern, "max_tokens": 4})
    assert told.status_code == 400
    assert told.json()["error"]["type"] == "invalid_request_error"
    assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
    assert served.idle()


def test_nobody_waits_for_a_grammar_to_compile(
    served: Served, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, compile_it = threading.Event(), threading.Event(), GrammarCompiler.compile

    def slowly(self: GrammarCompiler, grammar: Any) -> CompiledGrammar:
        begun.set()
        assert go_on.wait(20), "the server answered nothing while a grammar was compiled"
        return compile_it(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "compile", slowly)
    answers = list[int]()
    body = json.dumps({"prompt": "a", "guided_regex": "[xy]{2}", "max_tokens": 4})

    def ask() -> None:
        with served.client() as other:
            answers.append(other.post("/v1/completions", content=body, headers=JSON).status_code)

    thread = threading.Thread(target=ask)
    thread.start()
    assert begun.wait(20)
    assert client.get("/health").status_code == 200
    assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).status_code == 200
    go_on.set()
    thread.join(20)
    assert answers == [200]


def test_a_server_reads_the_vocabulary_before_its_first_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It takes a second in which nobody would be answered; the library does it when a grammar comes."""
    read, tokenizer = list[Any](), compiler.LLTokenizer
    monkeypatch.setattr(compiler, "LLTokenizer", lambda pieces: (read.append(pieces), tokenizer(pieces))[1])
    llm = tiny_llm(tmp_path)
    assert not read
    with serving(llm) as served, served.client() as client:
        assert len(read) == 1
        answer = client.post("/v1/completions", json={"prompt": "a", "guided_regex": "[xy]{2}", "max_tokens": 4})
        assert answer.status_code == 200
    assert len(read) == 1


@pytest.mark.parametrize("rules", ['start: %json {"multipleOf": NaN}', "\n" * 200_000, "%json" * 2000])
def test_bad_rules_are_the_clients_mistake(served: Served, client: httpx.Client, rules: str) -> None:
    told = client.post("/v1/completions", json={"prompt": "a", "guided_grammar": rules, "max_tokens": 4})
    assert told.status_code == 400
    assert "grammar" in told.json()["error"]["message"]
    assert served.idle()


JSON = {"Content-Type": "application/json"}
