"""Trained heads for Outrider, which finds them through the entry point group ``outrider.heads``."""

from pathlib import Path


def folder() -> Path:
    """Return the folder in which every head has a folder of its name."""
    return Path(__file__).parent
