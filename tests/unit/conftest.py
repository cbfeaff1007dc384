"""Fixtures that several test modules share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_folder import make_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in a folder."""
    return make_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another one with other weights."""
    return make_folder(tmp_path_factory.mktemp("models") / "other", seed=1)
