"""One tiny server for the tests that do not need their own."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from serving import Served, serving, tiny_llm


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with tiny_llm(tmp_path_factory.mktemp("served")) as llm, serving(llm) as running:
        yield running


@pytest.fixture
def client(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client
