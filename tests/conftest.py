"""Shared test settings."""

import gc

import torch

torch.set_num_threads(1)  # tiny models: a second thread costs more than it gives


def pytest_collection_finish() -> None:
    """What is loaded by now stays to the end: walking it at each collection took a fifth of the time of small tests."""
    gc.collect()
    gc.freeze()
