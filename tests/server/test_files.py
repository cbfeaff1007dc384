"""Each connection is an open file, and a shell's default is often too few."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from outrider.server.run import allow_files


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_is_raised_as_far_as_the_user_may() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    allow_files(1000)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1024, hard)
    allow_files(1100)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1100, hard)
    if hard != resource.RLIM_INFINITY:
        allow_files(hard + 1)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
