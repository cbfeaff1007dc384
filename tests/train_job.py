"""A small training as a program, which tests kill and start again, alone or in several processes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from captured import LAYERS, InMemory, TinyTarget, teacher, texts

from outrider.train.features.batches import Batches, BatchShape, held_out_batches
from outrider.train.loop.training import Task, Training
from outrider.train.loop.workers import workers
from outrider.train.recipes.base import recipe_class
from outrider.train.settings import Settings

STEPS = 30
SHAPE = BatchShape(layers=(LAYERS,), rows=96)


def job(method: str = "blockwise") -> Task:
    """Two heads on a reduced vocabulary, 24 texts to learn from and 6 to be judged on."""
    torch.set_num_threads(1)
    recipe = recipe_class(method)(heads=2)
    stream = Batches(InMemory(texts(24)), SHAPE, seed=0)
    held_out = held_out_batches(texts(6, seed=1), SHAPE)
    head = recipe.head(TinyTarget(), torch.arange(48), seed=0)
    return Task(recipe, head, teacher(), stream, held_out)


def settings(**options: object) -> Settings:
    """About thirty steps."""
    wanted: dict[str, object] = {"tokens": STEPS * 60, "precision": "fp32", "patience": 0, "judgements": 6}
    return Settings(**wanted | options)


class Killed:
    """A stream that kills its process, as kill -9 does, when a certain batch is asked for."""

    def __init__(self, stream: Batches, at: int) -> None:
        self._stream, self._left = stream, at

    position = property(
        lambda self: self._stream.position, lambda self, place: setattr(self._stream, "position", place)
    )

    def __next__(self) -> object:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return next(self._stream)


if __name__ == "__main__":
    kill_at, save_seconds = int(sys.argv[2]), float(sys.argv[3])
    task = job()
    if kill_at:
        task = Task(task.recipe, task.head, task.teacher, Killed(task.stream, kill_at), task.held_out)
    Training(task, settings(save_seconds=save_seconds), Path(sys.argv[1]), workers=workers(torch.device("cpu"))).run()
