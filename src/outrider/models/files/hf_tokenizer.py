"""Tokenizers of transformers: load a folder's own, and write conversations with chat templates."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from transformers import AutoTokenizer, PreTrainedTokenizerBase

Template = str | dict[str, str]
"""A chat template, or several by name."""
_PARAMETERS: Final = frozenset(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters)
FIXED: Final = _PARAMETERS - {"documents"}
"""Names that template values cannot have, because they are options of transformers' own call."""


@dataclass(frozen=True)
class FolderTokenizer:
    """A folder's tokenizer."""

    backend: Any
    """The `tokenizers.Tokenizer`; None if the model has only a Python one."""
    bos_id: int | None
    eos_id: int | None
    special_tokens: dict[str, str]
    """Special tokens by name, such as ``eos_token``."""
    chat_template: Template | None


def load_folder_tokenizer(folder: Path) -> FolderTokenizer:
    """Load a folder's tokenizer; raises whatever transformers raises."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return FolderTokenizer(
        backend=getattr(tokenizer, "backend_tokenizer", None),
        bos_id=tokenizer.bos_token_id,
        eos_id=tokenizer.eos_token_id,
        special_tokens=tokenizer.special_tokens_map,
        chat_template=tokenizer.chat_template or None,
    )


def write_conversation(template: str, messages: Sequence[Any], values: Mapping[str, Any]) -> str:
    """Write a conversation with transformers' own filters, tags and names; raises whatever it raises.

    ``values`` are options of transformers' ``apply_chat_template``, and values that the template uses by name.
    """
    writer = PreTrainedTokenizerBase(chat_template=template)
    text: str = writer.apply_chat_template(list(messages), tokenize=False, **values)
    return text
