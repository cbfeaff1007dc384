"""Shared test settings."""

import gc
import os

import pytest
import torch

torch.set_num_threads(1)  # tiny models: a second thread costs more than it gives


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-core", action="store_true", help="give each worker, and what it starts, a core of its own")


def pytest_configure(config: pytest.Config) -> None:
    """Real models compute on every core they may use, and two that share cores wait for each other by spinning."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker and config.getoption("--one-core") and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


def pytest_collection_finish() -> None:
    """What is loaded by now stays to the end: walking it at each collection took a fifth of the time of small tests."""
    gc.collect()
    gc.freeze()
