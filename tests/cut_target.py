"""The target of the captured texts with its files, out of which draft models are cut."""

from __future__ import annotations

import json
from pathlib import Path

from captured import TinyTarget
from tiny import tiny_module
from tiny_folder import SMALLEST, make_tokenizer


def target_with_files(folder: Path) -> TinyTarget:
    """Write the target into a folder; its tokenizer is of no matter."""
    tiny_module(attention="sdpa").save_pretrained(folder)
    make_tokenizer(SMALLEST).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    target = TinyTarget()
    target.source = folder
    return target
