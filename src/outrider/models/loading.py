"""Find a model by path, hub id or name, and load it ready to serve."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import nn

from outrider.errors import ModelError, one_line
from outrider.models.files.dequantize import DequantizeJob, dequantize
from outrider.models.files.end_tokens import named_ends
from outrider.models.files.gguf import GGUFFile, read_gguf
from outrider.models.files.gguf_config import ModelPlan, check_tensors, plan_model
from outrider.models.files.gguf_tokenizer import build_tokenizer
from outrider.models.files.hf_tokenizer import FolderTokenizer, load_folder_tokenizer
from outrider.models.files.models_folder import HEAD_SUFFIX, models_folder, named_models
from outrider.models.files.tokenizer import Tokenizer
from outrider.models.files.weight_files import has_own_output_layer, tell_unread, weight_files
from outrider.models.hf import transformers_api
from outrider.models.shipped_heads import paying_heads

_MOST_LAYERS: Final = 1 << 16
"""Maximum layers of a configuration without weights."""
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk, with everything but its weights read."""

    path: Path
    name: str
    config: Any
    """transformers' configuration."""
    tokenizer: Tokenizer
    context_length: int
    weight_files: tuple[Path, ...]
    gguf: tuple[GGUFFile, ModelPlan] | None = None
    """The parsed file, if the model is a GGUF file."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory: `module` is in eval mode and records no gradients."""

    module: nn.Module
    files: ModelFiles


def load(
    model: str | Path,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    attention: str = "eager",
) -> LoadedModel:
    """Load a model from a folder, a GGUF file, the hub, or the models folder.

    Args:
        model: see :func:`find`.
        dtype: precision of the weights: fp32, bf16 or fp16.
        device: device of the weights.
        attention: transformers' name of the attention implementation.

    Raises:
        ModelError: it cannot be found, read or served.
    """
    files = open_model(model)
    make = _folder_module if files.gguf is None else _gguf_module
    module = make(files, dtype, attention)
    module.eval().requires_grad_(False).to(device)
    return LoadedModel(module, files)


def find(model: str | Path) -> tuple[Path, str]:
    """Find a model's folder or GGUF file, and its name.

    Args:
        model: a path; `organisation/name` on the hub; or a name, or a unique prefix of one, in the folder
            OUTRIDER_MODELS (default ~/.cache/outrider/models).

    Raises:
        ModelError: there is no such model; the message lists the models folder.
    """
    if (here := _find_here(model)) is not None:
        return here
    if _HUB_ID.fullmatch(str(model)) and Path(model).suffix.lower() != ".gguf":
        return _fetch_from_hub(str(model)), str(model)
    there = ", ".join(sorted(named_models())) or "nothing"
    raise ModelError(f"there is no model {str(model)!r}: no such path, and {models_folder()} holds {there}")


def _find_here(model: str | Path) -> tuple[Path, str] | None:
    """Do :func:`find` without the hub."""
    if not str(model).strip():
        raise ModelError("no model was named; give a path, a hub id or the name of a model")
    try:
        path = Path(model).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
    except (OSError, ValueError, RuntimeError) as error:  # longer than the system allows, a NUL, nobody's home
        raise ModelError(f"{str(model)[:80]!r} cannot be a model's path: {one_line(error)[:120]}") from error
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path}: this folder has no config.json; give a model's folder or a .gguf file")
        return path, path.resolve().name
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{path}: is neither a folder nor a .gguf file")
        return path, path.stem
    named = _find_by_name(str(model))
    return None if named is None else (named, named.stem if named.is_file() else named.name)


def heads_beside(model: str | Path) -> tuple[str, ...]:
    """Find the trained head to draft with if none is named; empty if there is none.

    It is the head in the folder beside the model that has the model's name and ends in ``.head``.  Otherwise it is a
    shipped head that was made for this model and pays wherever it was measured.  A model that is only on the hub has
    none.

    Raises:
        ModelError: it is no model's path, or the prefix of several models' names.
    """
    here = _find_here(model)
    if here is None:
        known = _hub_copy(str(model))
        return () if known is None else paying_heads(known)
    path = here[0].resolve()
    folder = path.parent / ((path.stem if path.is_file() else path.name) + HEAD_SUFFIX)
    return (str(folder),) if (folder / "config.json").is_file() else paying_heads(path)


def _hub_copy(model: str) -> Path | None:
    """The downloaded copy of a hub's model; None if there is none."""
    from huggingface_hub import snapshot_download  # not needed for a model that is named by its path

    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_FILES, local_files_only=True))
    except Exception:  # noqa: BLE001 - the client's errors have no common base
        return None


def _find_by_name(name: str) -> Path | None:
    """Find a name in the models folder: exact, with or without .gguf, or a unique prefix."""
    models = named_models()
    wanted = name.removesuffix(".gguf")
    if wanted in models:
        return models[wanted]
    matches = sorted(there for there in models if wanted and there.lower().startswith(wanted.lower()))
    if len(matches) > 1:
        raise ModelError(f"{name!r} is the beginning of more than one model: {', '.join(matches)}")
    return models[matches[0]] if matches else None


def _fetch_from_hub(model: str) -> Path:
    """Download a model, or find its downloaded copy."""
    from huggingface_hub import snapshot_download  # not needed for a model that is already here

    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_FILES))
    except Exception as error:  # the client's errors have no common base, and all mean the same here
        raise ModelError(
            f"{model!r} is not in the models folder {models_folder()}, and fetching it from the Hugging Face hub "
            f"failed ({one_line(error)}); check the name and the network, or give a local folder or .gguf file"
        ) from error


def open_model(model: str | Path) -> ModelFiles:
    """Find a model and read everything but its weights.

    Raises:
        ModelError: it cannot be found or read.
    """
    path, name = find(model)
    return _open_gguf(path, name) if path.is_file() else _open_folder(path, name)


def _open_folder(path: Path, name: str) -> ModelFiles:
    files: tuple[Path, ...] = ()
    missing: ModelError | None = None
    try:
        files = weight_files(path, name)
    except ModelError as error:
        missing = error  # an unsupported model is the more important error
    _check_layers(path, name, files)
    try:
        config = transformers_api.read_folder_config(path)
    except Exception as error:  # a broken config.json raises anything from KeyError to OSError
        raise ModelError(f"{name}: its config.json cannot be used: {one_line(error)}") from error
    if not transformers_api.is_causal(config):
        raise ModelError(f"{name}: {config.model_type!r} is not a decoder-only language model; it cannot be served")
    transformers_api.check_config(config)
    if missing is not None:
        raise missing
    if getattr(config, "tie_word_embeddings", False) and has_own_output_layer(files):
        config.tie_word_embeddings = False  # as in transformers, the weights decide
    try:
        found = load_folder_tokenizer(path)
    except Exception as error:  # damaged tokenizer files raise their library's own errors
        raise ModelError(f"{name}: cannot be loaded: {one_line(error)}") from error
    if found.backend is None:
        raise ModelError(f"{name}: has no fast tokenizer (tokenizer.json); convert it with transformers first")
    tokenizer = Tokenizer(
        found.backend,
        name=name,
        bos_id=found.bos_id,
        eos_ids=_folder_ends(path, config, found),
        special_tokens=found.special_tokens,
        chat_template=found.chat_template,
    )
    return ModelFiles(path, name, config, tokenizer, _context_length(config, name), files)


def _check_layers(path: Path, name: str, files: Sequence[Path]) -> None:
    """Refuse more layers than tensors: reading a configuration takes memory for every layer."""
    try:
        values = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{name}: its config.json cannot be used: {one_line(error)}") from error
    try:
        tensors = sum(_count_tensors(file) for file in files) if files else _MOST_LAYERS
    except Exception as error:  # damaged weights raise their library's own errors
        raise ModelError(f"{name}: cannot be loaded: {one_line(error)}") from error
    nested = values.values() if isinstance(values, dict) else ()
    for part in (values, *nested):
        layers = part.get("num_hidden_layers") if isinstance(part, dict) else None
        if isinstance(layers, int) and not 1 <= layers <= tensors:
            there = f"there are {tensors} tensors" if files else "there are no weights"
            raise ModelError(f"{name}: its config.json asks for {layers} layers, and {there}")


def _count_tensors(file: Path) -> int:
    opened: Any = safe_open(file, framework="pt")
    return len(opened.keys())


def _context_length(config: Any, name: str) -> int:
    context = transformers_api.context_length(config)
    if context is None or context < 1:
        raise ModelError(f"{name}: its configuration does not say how long a context it was made for")
    return context


def _folder_ends(path: Path, config: Any, tokenizer: FolderTokenizer) -> set[int]:
    """Collect the ids that end a text: of generation_config.json or the model, of the tokenizer, and by name."""
    try:
        named = json.loads((path / "generation_config.json").read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, RecursionError, AttributeError):
        named = None
    named = named if named is not None else getattr(config, "eos_token_id", None)
    several = named if isinstance(named, list) else [named]
    added = {token.content: i for i, token in tokenizer.backend.get_added_tokens_decoder().items()}
    by_name = [added[token] for token in named_ends(added) if _is_told(path, token)]
    ends = {end for end in (*several, tokenizer.eos_id, *by_name) if isinstance(end, int)}
    if any(not isinstance(end, int) for end in several if end is not None):
        raise ModelError(f"{path.name}: the ids that end a text must be integers, not {named!r}")
    return ends


def _is_told(path: Path, token: str) -> bool:
    """Whether a folder's own files name a token; a family's class may add one that the model does not have."""
    files = (path / name for name in ("tokenizer.json", "tokenizer_config.json", "added_tokens.json"))
    return any(json.dumps(token).encode() in file.read_bytes() for file in files if file.is_file())


def _open_gguf(path: Path, name: str) -> ModelFiles:
    file = read_gguf(path)
    plan = plan_model(file)
    tokenizer = build_tokenizer(file)
    special = {"bos_token_id": tokenizer.bos_id, "eos_token_id": sorted(tokenizer.eos_ids)}
    try:
        config = transformers_api.make_config(plan.model_type, plan.values | special)
    except ModelError:
        raise
    except Exception as error:  # a configuration that transformers' own checks refuse
        raise file.fail(f"no {plan.model_type} model can be built from it: {one_line(error)}") from error
    return ModelFiles(path, name, config, tokenizer, _context_length(config, name), (path,), (file, plan))


def _folder_module(files: ModelFiles, dtype: torch.dtype, attention: str) -> nn.Module:
    try:
        loaded = transformers_api.load_folder(files.path, files.config, dtype, attention)
    except Exception as error:  # damaged weights raise their library's own errors
        raise ModelError(f"{files.name}: cannot be loaded: {one_line(error)}") from error
    if loaded.missing:
        raise ModelError(f"{files.name}: its weights do not contain the model's {', '.join(loaded.missing[:3])}")
    tell_unread(files.name, loaded.unread)
    return loaded.module


def _gguf_module(files: ModelFiles, dtype: torch.dtype, attention: str) -> nn.Module:
    assert files.gguf is not None
    file, plan = files.gguf
    try:
        module = transformers_api.build_empty(files.config, dtype, attention)
    except ModelError:
        raise
    except Exception as error:  # a configuration that transformers' own checks refuse
        raise file.fail(f"no {plan.model_type} model can be built from it: {one_line(error)}") from error
    _assign(file, plan, module, dtype)
    transformers_api.tie_weights(module)
    transformers_api.restore_buffers(module)
    _check_complete(file, module)
    return module


def _assign(file: GGUFFile, plan: ModelPlan, module: nn.Module, dtype: torch.dtype) -> None:
    """Set every parameter from its tensor in the file."""
    check_tensors(file, plan, {name: tuple(empty.shape) for name, empty in module.named_parameters()})
    jobs: list[DequantizeJob] = []
    for tensor_name, parameter in plan.parameters.items():
        tensor = file.tensors[tensor_name]
        jobs.append(file.job(tensor, dtype, plan.row_orders.get(tensor_name)))
        owner, _, attribute = parameter.rpartition(".")
        setattr(module.get_submodule(owner), attribute, nn.Parameter(jobs[-1].out, requires_grad=False))
    dequantize(jobs)


def _check_complete(file: GGUFFile, module: nn.Module) -> None:
    """Refuse a model with a parameter or buffer that was never set."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            raise file.fail(f"does not contain the model's {name!r}")
