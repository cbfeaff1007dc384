"""Prompts from files in the common formats, and the built-in prompts."""

from outrider.prompts.built_in import BUILT_IN, built_in, read
from outrider.prompts.prompt import Prompt
from outrider.prompts.reader import SHAPES

__all__ = ["BUILT_IN", "SHAPES", "Prompt", "built_in", "read"]
