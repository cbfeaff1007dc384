"""The folder where models are looked up by name."""

import os
from pathlib import Path
from typing import Final

HEAD_SUFFIX: Final = ".head"
"""Suffix of the folder beside a model that holds its trained head."""
MODELS_VARIABLE: Final = "OUTRIDER_MODELS"


def models_folder() -> Path:
    """Folder where models are looked up by name."""
    return Path(os.environ.get(MODELS_VARIABLE) or Path.home() / ".cache" / "outrider" / "models")


def named_models() -> dict[str, Path]:
    """All models in the models folder, GGUF files and folders, by name."""
    folder = models_folder()
    if not folder.is_dir():
        return {}
    files = {path.stem: path for path in folder.glob("*.gguf")}
    folders = [path.parent for path in folder.glob("*/config.json")]
    return files | {path.name: path for path in folders if path.suffix != HEAD_SUFFIX}
