"""transformers' tokenizers: a folder's own, and the writer of conversations that all chat templates are made for."""

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
"""What a template cannot be given by these names: they are options of transformers' own call."""


@dataclass(frozen=True)
class FolderTokenizer:
    """What a folder says of its tokenizer."""

    backend: Any
    """The `tokenizers.Tokenizer`; None where the model has only a Python one."""
    bos_id: int | None
    eos_id: int | None
    special_tokens: dict[str, str]
    """The tokens that have a name, as ``eos_token``, by name."""
    chat_template: Template | None


def load_folder_tokenizer(folder: Path) -> FolderTokenizer:
    """Load a folder's tokenizer; raises whatever transformers raises for one that it cannot load."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return FolderTokenizer(
        backend=getattr(tokenizer, "backend_tokenizer", None),
        bos_id=tokenizer.bos_token_id,
        eos_id=tokenizer.eos_token_id,
        special_tokens=tokenizer.special_tokens_map,
        chat_template=tokenizer.chat_template or None,
    )


def write_conversation(template: str, messages: Sequence[Any], values: Mapping[str, Any]) -> str:
    """Write a conversation with transformers' own environment of filters, tags and names.

    Args:
        template: a chat template.
        messages: the conversation.
        values: options of transformers' ``apply_chat_template``, and whatever else the template may ask for by name.

    Raises whatever jinja, the template or transformers raises.
    """
    writer = PreTrainedTokenizerBase(chat_template=template)
    text: str = writer.apply_chat_template(list(messages), tokenize=False, **values)
    return text
