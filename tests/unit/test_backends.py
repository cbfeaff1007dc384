"""Which backend serves a model: where the best one cannot, the next one does, and one line says why."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_folder import make_folder

from outrider import LLM
from outrider.errors import ConfigError, ModelError
from outrider.kernels.native import cpu, missing
from outrider.kv.pool import KVPool
from outrider.models.backends import LoadOptions, load_model
from outrider.models.hf.model import HFModel
from outrider.models.native.model import NativeModel
from outrider.tree import SequenceRows, TreeBatch

pytestmark = pytest.mark.skipif(cpu is None, reason=f"{missing}")

Tensors = dict[str, torch.Tensor]


def changed(path: Path, change: Callable[[Tensors], Tensors], **values: object) -> Path:
    """A tiny folder with other tensors or another configuration."""
    folder = make_folder(path / "model")
    tensors = change(load_file(folder / "model.safetensors"))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
    return folder


def logits(path: Path, backend: str) -> torch.Tensor:
    model, _ = load_model(path, LoadOptions(backend=backend))
    assert isinstance(model, HFModel)
    pages = KVPool(16, 8).cache("model")
    assert pages.extend("a", 3)
    return model.forward(TreeBatch.pack([SequenceRows("a", 0, (5, 6, 7), None, all_logits=True)]), pages).logits


def without_prefix(tensors: Tensors) -> Tensors:
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items()}


def as_they_are(tensors: Tensors) -> Tensors:
    return tensors


def only(tensors: Tensors) -> Tensors:
    return {name: tensors[name] for name in tensors if "norm" in name}


NOT_NATIVE: dict[str, tuple[Callable[[Tensors], Tensors], dict[str, object], str]] = {
    "names without prefix": (without_prefix, {}, "its weights do not contain the model's model.embed_tokens.weight"),
    "names with two prefixes": (
        lambda t: {name.replace("model.", "model.model."): tensor for name, tensor in t.items()}, {}, "do not contain"
    ),
    "a tensor under two names": (
        lambda t: t | {"norm.weight": -t["model.norm.weight"]}, {},
        "hold 'model.norm.weight' twice, the other time as 'norm.weight'",
    ),
    "doubles": (lambda t: {name: tensor.double() for name, tensor in t.items()}, {}, "the precision torch.float64"),
    "integers": (
        lambda t: t | {"model.norm.weight": t["model.norm.weight"].to(torch.int8)}, {}, "the precision torch.int8"
    ),
    "eight bits": (
        lambda t: {n: x.to(torch.float8_e4m3fn) if "mlp" in n else x for n, x in t.items()}, {}, "torch.float8_e4m3fn"
    ),
    "tied to the output layer": (
        lambda t: {n: x for n, x in t.items() if "embed" not in n}, {"tie_word_embeddings": True}, "do not contain"
    ),
    "another activation": (as_they_are, {"hidden_act": "relu"}, "its activation function has no kernel"),
    "a window of nothing": (
        as_they_are, {"model_type": "mistral", "sliding_window": 0}, "a layer's attention reaches 0 positions"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "values", "reason"), NOT_NATIVE.values(), ids=NOT_NATIVE)
def test_what_native_cannot_serve_the_next_backend_serves(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Tensors], Tensors],
    values: dict[str, object],
    reason: str,
) -> None:
    folder = changed(tmp_path, change, **values)
    with caplog.at_level(logging.INFO, "outrider"):
        found = logits(folder, "auto")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"{folder} runs on the hf backend: native cannot serve it: ")
    assert reason in record.getMessage()
    assert "\n" not in record.getMessage()
    assert torch.equal(found, logits(folder, "hf"))
    with pytest.raises(ModelError, match="the native backend cannot serve") as caught:
        load_model(folder, LoadOptions(backend="native"))
    assert reason in str(caught.value)


def test_what_native_serves_it_serves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = changed(tmp_path, as_they_are)
    with caplog.at_level(logging.INFO, "outrider"):
        assert isinstance(load_model(folder)[0], NativeModel)
    assert caplog.records == []


def test_what_no_backend_serves_is_refused_without_a_word_of_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = changed(tmp_path, only)
    with pytest.raises(ModelError, match=r"^model: its weights do not contain the model's"):
        load_model(folder)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (LoadOptions(quantization="w4"), "w4 needs the native backend"),
        (LoadOptions(dtype="float99"), "there is no dtype 'float99'"),
    ],
)
def test_both_reasons_are_given_where_a_choice_rules_out_the_next(
    tmp_path: Path, options: LoadOptions, said: str
) -> None:
    folder = changed(tmp_path, without_prefix)
    with pytest.raises(ConfigError, match=said) as caught:
        load_model(folder, options)
    assert f"(native cannot serve {folder}: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_argument_that_gives_up_native_is_told_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dtype: str
) -> None:
    folder = changed(tmp_path, as_they_are)
    with caplog.at_level(logging.INFO, "outrider"):
        load_model(folder, LoadOptions(dtype=dtype))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"{folder} runs on the hf backend: native cannot serve it: it keeps the weights' own precision, and dtype "
        f"{dtype} was asked for; leave dtype out to use it"
    )
    caplog.clear()
    load_model(folder, LoadOptions(dtype=dtype, backend="hf"))
    assert caplog.records == []


def test_an_argument_that_gives_up_nothing_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = changed(tmp_path, as_they_are, hidden_act="relu")
    with caplog.at_level(logging.INFO, "outrider"):
        load_model(folder, LoadOptions(dtype="float32"))
    assert [record.levelno for record in caplog.records] == [logging.INFO]


@pytest.mark.parametrize(("device", "level"), [("auto", logging.INFO), ("cuda", logging.WARNING)])
def test_a_device_that_was_asked_for_is_told_and_one_that_is_there_is_not(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    level: int,
) -> None:
    """A device without memory stands for the GPU."""
    monkeypatch.setattr("outrider.models.backends.resolve_device", lambda name: torch.device("meta"))
    folder = changed(tmp_path, as_they_are)
    with caplog.at_level(logging.INFO, "outrider"):
        load_model(folder, LoadOptions(device=device))
    assert [record.levelno for record in caplog.records] == [level]


def test_a_model_says_which_backend_runs_it(tmp_path: Path) -> None:
    folder = changed(tmp_path, as_they_are)
    for options, backend in (({}, "native"), ({"dtype": torch.bfloat16}, "hf")):
        llm = LLM(folder, **options)  # type: ignore[arg-type]
        assert f"backend='{backend}'" in repr(llm)
        assert f"<td>backend</td><td>{backend}</td>" in llm._repr_html_()


@pytest.mark.parametrize("backend", ["native", "hf"])
def test_tensors_that_are_not_read_are_told_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, backend: str
) -> None:
    extra = {f"model.layers.{layer}.self_attn.{part}_proj.bias": torch.ones(32) for layer in (0, 1) for part in "qo"}
    computed = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    folder = changed(tmp_path, lambda tensors: tensors | extra | computed)
    with caplog.at_level(logging.INFO):
        load_model(folder, LoadOptions(backend=backend))
    (line,) = (record.getMessage() for record in caplog.records)
    first = ", ".join(sorted(extra)[:3])
    assert line == f"model: 4 of its tensors have no place in the model and are not read: {first}, …"
