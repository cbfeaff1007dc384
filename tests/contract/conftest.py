"""A drafter that fails is switched off and the text stays right, so without this no test would see it fail."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_drafter_fails(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.WARNING, logger="outrider.engine.guard"):
        yield
    failures = [record.getMessage() for record in caplog.get_records("call") if record.name == "outrider.engine.guard"]
    if not request.node.get_closest_marker("faulty_drafter"):
        assert failures == [], "a drafter was switched off behind the test's back"
