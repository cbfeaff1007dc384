"""The target of the captured texts with its files, out of which draft models are cut."""

from __future__ import annotations

import json
from pathlib import Path

from captured import TinyTarget
from tiny import tiny_module
from tiny_folder import SMALLEST, make_folder, make_tokenizer


def target_with_files(folder: Path) -> TinyTarget:
    """Write the target into a folder; its tokenizer is of no matter."""
    tiny_module(attention="sdpa").save_pretrained(folder)
    make_tokenizer(SMALLEST).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    target = TinyTarget()
    target.source = folder
    return target


def training(method: str, folder: Path, *options: str) -> tuple[Path, Path, list[str]]:
    """A tiny model with prompts for it: the model, where a training writes, and the words of the command."""
    model, output = make_folder(folder / "model"), folder / "draft"
    lines = [json.dumps({"prompt": f"say {number} and {number * number} aloud"}) for number in range(100)]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    words = ["train", method, "--model", str(model), "--data", str(folder / "prompts.jsonl"), "--output", str(output)]
    words += ["--layers", "1", "--rows", "256", "--held-out", "8", "--precision", "fp32", "--judgements", "4", "--json"]
    return model, output, [*words, *options]
