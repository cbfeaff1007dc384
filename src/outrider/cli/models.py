"""``outrider models``: list the models that you can name."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table

from outrider.cli import output
from outrider.errors import ModelError
from outrider.models.files.gguf import read_gguf
from outrider.models.files.models_folder import models_folder, named_models

_ENDLESS: Final = 10_000
"""A width at which no table wraps."""


def models(*, as_json: Annotated[bool, output.AS_JSON] = False) -> int:
    """List the models in the models folder and in the Hugging Face cache.

    Args:
        as_json: Print one JSON object instead of a table.
    """
    found = [*_from_folder(), *_from_hub_cache()]
    if as_json:
        output.write_json({"folder": str(models_folder()), "models": found})
        return 0
    console = output.screen()
    if not found:
        console.print(f"no models yet; put a .gguf file or a model folder into {models_folder()}")
        return 0
    table = _table(found)
    if console.measure(table, options=console.options.update(width=_ENDLESS)).minimum <= console.width:
        console.print(table)
        return 0
    for each in found:  # a shortened name could not be used
        name, kind, parameters, size, context, source = _row(each)
        console.print(name)
        facts = f"  {kind}, {parameters} parameters, {size}, context {context}, {source}"
        output.tell(facts, style="dim", indent=2, console=console)
    return 0


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    return (
        found["name"],
        found["problem"] or found["architecture"],
        _short(found["parameters"], 1000, ("", "K", "M", "B")),
        _short(found["file_bytes"], 1024, ("B", "KiB", "MiB", "GiB")),
        "–" if found["context_length"] is None else str(found["context_length"]),
        found["source"],
    )


def _table(found: list[dict[str, Any]]) -> Table:
    """A table with one row per model; a problem may wrap."""
    table = Table(box=SIMPLE_HEAD)
    rows = [("name", "architecture", "parameters", "size", "context", "from"), *map(_row, found)]
    for heading, *values in zip(*rows, strict=True):
        whole = None if heading == rows[0][1] else max(map(cell_len, (heading, *values)))
        table.add_column(heading, min_width=whole, overflow="fold")
    for row in rows[1:]:
        table.add_row(*row)
    return table


def _from_folder() -> Iterator[dict[str, Any]]:
    for name, path in sorted(named_models().items()):
        try:
            facts = _gguf_facts(path) if path.is_file() else _folder_facts(path)
            problem = None
        except ModelError as error:
            facts, problem = {}, str(error)
        yield _entry(name, "models folder", _size(path), facts, problem)


def _from_hub_cache() -> Iterator[dict[str, Any]]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repository in sorted(repositories, key=lambda repository: repository.repo_id):
        for revision in repository.revisions:
            if repository.repo_type == "model" and (revision.snapshot_path / "config.json").is_file():
                facts = _folder_facts(revision.snapshot_path)
                yield _entry(repository.repo_id, "Hugging Face cache", repository.size_on_disk, facts, None)
                break


def _entry(name: str, source: str, size: int, facts: dict[str, Any], problem: str | None) -> dict[str, Any]:
    empty = {"architecture": None, "parameters": None, "context_length": None}
    return {"name": name, "source": source, "file_bytes": size} | empty | facts | {"problem": problem}


def _gguf_facts(path: Path) -> dict[str, Any]:
    file = read_gguf(path)
    architecture = file.text("general.architecture")
    return {
        "architecture": architecture,
        "parameters": sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
        "context_length": file.integer(f"{architecture}.context_length", 0) or None,
    }


def _folder_facts(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        architecture = config.get("model_type") or ", ".join(config.get("architectures") or ["unknown"])
        return {"architecture": architecture, "context_length": config.get("max_position_embeddings")}
    except (OSError, ValueError, AttributeError):
        return {"architecture": "unreadable config.json"}


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _short(value: float | None, step: int, units: tuple[str, ...]) -> str:
    """A number with its unit, rounded to three digits."""
    if value is None:
        return "–"
    for unit in units[:-1]:
        if value < step:
            return f"{value:.3g} {unit}".strip()
        value /= step
    return f"{value:.3g} {units[-1]}"
