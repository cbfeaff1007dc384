"""Loading: the numbers of the file end up in the right place, and what cannot be served is refused by name."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import gguf
import huggingface_hub
import numpy as np
import pytest
import torch
from damage import FUZZ_LOADS, patched
from gguf_files import END, START, TEMPLATE, TOKENS, TinyFile
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from outrider.errors import ModelError
from outrider.models.files.gguf import read_gguf
from outrider.models.files.gguf_tokenizer import build_tokenizer
from outrider.models.loading import LoadedModel, find, heads_beside, load, named_models

ROWS = torch.tensor([[1, 5, 9, 200, 42, 7, 7, 3]])
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models folder, so that the user's own plays no part."""
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("OUTRIDER_MODELS", str(folder))
    return folder


def loaded(path: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load(path, dtype=dtype)


def assert_same(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    """Equal parameters, buffers and logits, all bit for bit."""
    mine, wanted = ours.state_dict(), theirs.state_dict()
    assert mine.keys() == wanted.keys()
    for name in wanted:
        assert torch.equal(mine[name], wanted[name]), name
    for (name, buffer), (_, due) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
        assert torch.equal(buffer, due), name
    assert torch.equal(ours(ROWS).logits, theirs(ROWS).logits)


# From GGUF

FILES = {
    "llama": TinyFile(),
    "llama, tied": TinyFile(config={"tie_word_embeddings": True}),
    "llama, all biases": TinyFile(config={"attention_bias": True, "mlp_bias": True}),
    "llama, many key heads": TinyFile(config={"num_key_value_heads": 4}),
    "llama, wide heads": TinyFile(config={"head_dim": 32}),
    "qwen2": TinyFile(architecture="qwen2"),
    "qwen2, tied": TinyFile(architecture="qwen2", config={"tie_word_embeddings": True}),
    "qwen3": TinyFile(architecture="qwen3", config={"head_dim": 32}),
    "qwen3, tied": TinyFile(architecture="qwen3", config={"tie_word_embeddings": True}),
}


@pytest.mark.parametrize("file", FILES.values(), ids=FILES.keys())
def test_a_gguf_file_gives_back_the_model_it_was_made_from(tmp_path: Path, file: TinyFile) -> None:
    model = loaded(file.write(tmp_path / "tiny.gguf"))
    assert_same(model.module, file.module())
    assert type(model.module).__name__ == type(file.module()).__name__
    assert model.files.name == "tiny"
    assert model.files.context_length == 128
    assert model.files.tokenizer.eos_ids == {TOKENS.index(END)}
    assert not model.module.training
    assert not any(parameter.requires_grad for parameter in model.module.parameters())


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_quantised_files(tmp_path: Path, architecture: str, kind: str) -> None:
    file = TinyFile(architecture, quantization=kind)
    theirs = file.module()
    kind_id = gguf.GGMLQuantizationType[kind]
    for parameter in theirs.parameters():
        if parameter.ndim == 2:
            packed = gguf.quants.quantize(parameter.numpy(), kind_id)
            values = np.array(gguf.quants.dequantize(packed, kind_id), np.float32)
            parameter.copy_(torch.from_numpy(values))
    assert_same(loaded(file.write(tmp_path / "tiny.gguf")).module, theirs)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.filterwarnings("ignore:.*torchao.*")
def test_transformers_reads_the_same_model(tmp_path: Path, architecture: str) -> None:
    pytest.importorskip("accelerate", reason="transformers reads GGUF with it")
    # transformers 5.24 does not read the key length of qwen3 files and takes 128
    config = {"head_dim": 128} if architecture == "qwen3" else {}
    TinyFile(architecture, config, quantization="Q8_0").write(tmp_path / "tiny.gguf")
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="tiny.gguf", dtype=torch.float32, attn_implementation="eager"
    )
    assert_same(loaded(tmp_path / "tiny.gguf").module, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types(tmp_path: Path, dtype: torch.dtype) -> None:
    file = TinyFile(quantization="Q8_0")
    path = file.write(tmp_path / "tiny.gguf")
    wide, narrow = loaded(path).module.state_dict(), loaded(path, dtype).module.state_dict()
    for name, values in wide.items():
        assert torch.equal(narrow[name], values.to(dtype)), name


def llama3_factors(head_width: int, rope: dict[str, float]) -> np.ndarray:
    """The divisors as llama.cpp's converter writes them."""
    base, factor = rope["rope_theta"], rope["factor"]
    low, high, original = (rope[k] for k in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    factors = []
    for frequency in 1.0 / (base ** (np.arange(0, head_width, 2) / head_width)):
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def test_llama3_rope_is_recovered_from_its_factors(tmp_path: Path) -> None:
    config = {"rope_parameters": LLAMA3_ROPE, "head_dim": 64}
    file = TinyFile(config=config, tensors={"rope_freqs.weight": llama3_factors(64, LLAMA3_ROPE)})
    model = loaded(file.write(tmp_path / "tiny.gguf"))
    assert model.module.config.rope_parameters == LLAMA3_ROPE
    assert_same(model.module, file.module())


@pytest.mark.parametrize(
    ("scaling", "rope"),
    [
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 32},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
        ({"type": "none"}, {"rope_type": "default"}),
    ],
)
def test_rope_scaling(tmp_path: Path, scaling: dict[str, object], rope: dict[str, object]) -> None:
    file = TinyFile(
        "qwen2",
        config={"rope_parameters": {"rope_theta": 10000.0, **rope}},
        metadata={f"qwen2.rope.scaling.{key}": value for key, value in scaling.items()},
    )
    assert_same(loaded(file.write(tmp_path / "tiny.gguf")).module, file.module())


SQUARE = np.zeros((64, 64), np.float32)
WRONG_FILES = {
    "unknown architecture": (
        TinyFile(metadata={"general.architecture": "mamba"}),
        "architecture 'mamba' is not supported from GGUF yet; use the safetensors folder",
    ),
    "key not understood": (TinyFile(metadata={"llama.logit_scale": 2.0}), "'llama.logit_scale' is not understood"),
    "experts": (TinyFile(metadata={"llama.expert_count": 8}), "mixture-of-experts"),
    "split": (TinyFile(metadata={"split.count": 3}), "one part of a split model"),
    "forgotten tensor": (
        TinyFile(tensors={"blk.1.ffn_up.weight": None}), "nothing for the model's 'model.layers.1.mlp.up_proj.weight'"
    ),
    "no norm": (TinyFile(tensors={"output_norm.weight": None}), "nothing for the model's 'model.norm.weight'"),
    "left-over tensor": (TinyFile(tensors={"blk.0.extra.weight": SQUARE}), "'blk.0.extra.weight' has no place"),
    "left-over layer": (TinyFile(tensors={"blk.2.attn_q.weight": SQUARE}), "'blk.2.attn_q.weight' has no place"),
    "left-over bias": (TinyFile(tensors={"blk.0.attn_q.bias": SQUARE[0]}), "which this model does not have"),
    "no embedding": (TinyFile(tensors={"token_embd.weight": None}), "has no tensor 'token_embd.weight'"),
    "too many layers": (TinyFile(metadata={"llama.block_count": 2**31}), "no tensor 'blk.2147483647.attn_norm.weight'"),
    "too wide": (TinyFile(metadata={"llama.embedding_length": 2**30}), "the metadata asks for any x 1073741824"),
    "wrong inner width": (TinyFile(metadata={"llama.feed_forward_length": 4}), "asks for 4 x 64"),
    "wrong heads": (TinyFile(metadata={"llama.attention.head_count": 2}), "asks for 32 x 64"),
    "odd heads": (TinyFile(metadata={"llama.attention.head_count_kv": 3}), "4 attention heads, which 3 key heads"),
    "no heads": (TinyFile(metadata={"llama.attention.head_count": 0}), "'llama.attention.head_count' is 0"),
    "other value width": (TinyFile(metadata={"llama.attention.value_length": 8}), "differs from the key length 16"),
    "partial rope": (TinyFile(metadata={"llama.rope.dimension_count": 8}), "differs from the key length 16"),
    "wrong shape": (TinyFile(tensors={"blk.1.attn_v.weight": SQUARE}), r"shape \[64, 64\] instead of \[32, 64\]"),
    "odd width": (TinyFile(metadata={"llama.attention.key_length": 15}), "the odd width 15"),
    "not finite": (TinyFile(metadata={"llama.attention.layer_norm_rms_epsilon": math.inf}), "must be finite"),
    "longrope": (TinyFile(metadata={"llama.rope.scaling.type": "longrope"}), "rope scaling 'longrope'"),
    "scaling without factor": (TinyFile(metadata={"llama.rope.scaling.type": "linear"}), "needs a positive number"),
    "theta": (TinyFile(metadata={"llama.rope.freq_base": 0.0}), "must be a positive number"),
    "foreign rope factors": (TinyFile(tensors={"rope_freqs.weight": np.full(8, 3, np.float32)}), "are not Llama 3's"),
    "short rope factors": (TinyFile(tensors={"rope_freqs.weight": np.ones(5, np.float32)}), "are not Llama 3's"),
    "layers of several widths": (
        TinyFile(metadata={"llama.feed_forward_length": [96, 96]}), "'llama.feed_forward_length' should be an integer"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("file", "message"), WRONG_FILES.values(), ids=WRONG_FILES.keys())
def test_a_file_that_is_not_this_model_is_refused(tmp_path: Path, file: TinyFile, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        loaded(file.write(tmp_path / "tiny.gguf"))
    assert str(caught.value).startswith("tiny.gguf: ")


@FUZZ_LOADS
@given(data=st.data())
def test_damaged_metadata_loads_or_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "tiny.gguf"
    if not path.exists():
        TinyFile().write(path)
        (tmp_path / "whole").write_bytes(path.read_bytes())
    whole = (tmp_path / "whole").read_bytes()
    path.write_bytes(patched(data, whole, [(0, whole.index(b"tokenizer.ggml.tokens"))]))
    try:
        loaded(path)
    except ModelError as error:
        assert "\n" not in str(error)


# From a folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Hugging Face folder with the tokenizer of the tiny GGUF file."""
    path = tmp_path_factory.mktemp("hf") / "tiny-folder"
    TinyFile().module().save_pretrained(path)
    tokenizer = build_tokenizer(read_gguf(TinyFile().write(path.parent / "tiny.gguf")))
    tokenizer.backend.save(str(path / "tokenizer.json"))
    settings_ = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": START,
        "eos_token": END,
        "chat_template": TEMPLATE,
        "model_max_length": 128,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings_))
    ends = {"eos_token_id": [TOKENS.index(START), TOKENS.index(END)]}
    (path / "generation_config.json").write_text(json.dumps(ends))
    return path


def test_a_folder_loads(folder: Path) -> None:
    model = load(folder, dtype=torch.float32)
    assert_same(model.module, TinyFile().module())
    assert (model.files.name, model.files.context_length) == ("tiny-folder", 128)
    assert type(model.module).__name__ == "LlamaForCausalLM"
    assert model.files.tokenizer.bos_id == TOKENS.index(START)
    assert model.files.tokenizer.eos_ids == {TOKENS.index(START), TOKENS.index(END)}
    assert not model.module.training
    messages = [{"role": "user", "content": "hello"}]
    assert model.files.tokenizer.apply_chat_template(messages).endswith("<|im_start|>assistant\n")


def test_the_same_tokenizer_from_both_sources(folder: Path, tmp_path: Path) -> None:
    ours = loaded(TinyFile().write(tmp_path / "tiny.gguf")).files.tokenizer
    theirs = load(folder, dtype=torch.float32).files.tokenizer
    assert ours.compare(theirs).kind == "equal"
    assert ours.encode("hello 12 é😀") == theirs.encode("hello 12 é😀")


def test_a_folder_with_a_missing_weight_is_refused(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    weights = load_file(broken / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"do not contain the model's model\.layers\.1\.mlp\.up_proj\.weight"):
        load(broken, dtype=torch.float32)


def test_a_tied_folder_is_complete(folder: Path, tmp_path: Path) -> None:
    tied = tmp_path / "tied"
    shutil.copytree(folder, tied)
    module = TinyFile(config={"tie_word_embeddings": True}).module()
    module.save_pretrained(tied)
    assert_same(load(tied, dtype=torch.float32).module, module)


def test_dtype_and_attention_are_passed_on(folder: Path, tmp_path: Path) -> None:
    for path in (folder, TinyFile().write(tmp_path / "tiny.gguf")):
        model = load(path, dtype=torch.bfloat16, attention="sdpa")
        assert model.module.lm_head.weight.dtype == torch.bfloat16
        assert model.module.config._attn_implementation == "sdpa"


def make_folder(path: Path, config: dict[str, object] | None, *files: str) -> Path:
    path.mkdir()
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    for file in files:
        (path / file).write_bytes(b"not really")
    return path


TINY_CONFIG = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 8}
WRONG_FOLDERS = {
    "no config": (None, (), "no config.json"),
    "encoder-decoder": ({"model_type": "t5"}, (), "'t5' is not a decoder-only"),
    "encoder": ({"model_type": "vit"}, (), "'vit' is not a decoder-only"),
    "recurrent": ({"model_type": "mamba"}, (), "MambaForCausalLM .* cannot be served"),
    "hybrid": ({"model_type": "jamba"}, (), "JambaForCausalLM .* cannot be served"),
    "attention of its own": ({"model_type": "bloom"}, (), "BloomForCausalLM .* cannot be served"),
    "unknown type": ({"model_type": "no-such-thing"}, (), "its config.json cannot be used"),
    "no type": ({}, (), "its config.json cannot be used"),
    "no weights": (TINY_CONFIG, ("pytorch_model.bin",), "no .safetensors weights"),
    "damaged weights": (TINY_CONFIG, ("model.safetensors",), "cannot be loaded"),
}


@pytest.mark.parametrize(("config", "files", "message"), WRONG_FOLDERS.values(), ids=WRONG_FOLDERS.keys())
def test_a_folder_that_cannot_be_served_is_refused(
    tmp_path: Path, config: dict[str, object] | None, files: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load(make_folder(tmp_path / "odd", config, *files), dtype=torch.float32)
    assert "\n" not in str(caught.value)


# Finding


def test_names_are_looked_up_in_the_models_folder(models: Path, tmp_path: Path) -> None:
    for name in ("Alpha-1B.Q4_K_M.gguf", "Alpha-3B.Q4_K_M.gguf", "Beta.gguf"):
        (models / name).write_bytes(b"GGUF")
    make_folder(models / "gamma", {})
    assert find("Beta") == (models / "Beta.gguf", "Beta")
    assert find("Beta.gguf") == (models / "Beta.gguf", "Beta")
    assert find("alpha-1") == (models / "Alpha-1B.Q4_K_M.gguf", "Alpha-1B.Q4_K_M")
    assert find("gamma") == (models / "gamma", "gamma")
    with pytest.raises(ModelError, match=r"more than one model: Alpha-1B\.Q4_K_M, Alpha-3B\.Q4_K_M"):
        find("alpha")
    with pytest.raises(ModelError, match=r"no model 'delta'.* holds Alpha-1B\.Q4_K_M, Alpha-3B\.Q4_K_M, Beta, gamma"):
        find("delta")


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "~nobody-of-this-name/model"])
def test_what_no_path_can_be_is_said(models: Path, name: str) -> None:
    with pytest.raises(ModelError) as caught:
        find(name)
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_said(models: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model was named"):
        find("")
    with pytest.raises(ModelError, match="holds nothing"):
        find("alpha")
    with pytest.raises(ModelError, match="no such path"):
        find(tmp_path / "absent" / "deep" / "model")
    with pytest.raises(ModelError, match="no such path"):
        find("organisation/model.gguf")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelError, match=r"notes\.txt: is neither a folder nor a \.gguf file"):
        find(tmp_path / "notes.txt")


def test_a_head_lies_beside_its_model_by_name(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (models / "Alpha.Q4.gguf").write_bytes(b"GGUF")
    make_folder(models / "beta", {})
    assert heads_beside("Alpha.Q4") == heads_beside("beta") == ()
    (models / "Alpha.Q4.head").mkdir()
    assert heads_beside("Alpha.Q4") == (), "a folder without a head"
    for name in ("Alpha.Q4.head", "beta.head"):
        (models / name).mkdir(exist_ok=True)
        (models / name / "config.json").write_text("{}")
    assert heads_beside("alpha") == (str(models / "Alpha.Q4.head"),)
    assert heads_beside(models / "beta") == (str(models / "beta.head"),)
    monkeypatch.chdir(models / "beta")
    assert heads_beside(".") == (str(models / "beta.head"),), "the folder one stands in has a name too"
    assert heads_beside("someone/on-the-hub") == ()
    assert set(named_models()) == {"Alpha.Q4", "beta"}, "a head was taken for a model"


def test_a_hub_id_is_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda model, allow_patterns: str(folder))
    assert load("organisation/tiny", dtype=torch.float32).files.name == "organisation/tiny"


def test_without_a_network_a_hub_id_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: str, allow_patterns: list[str]) -> str:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelError, match=r"'organisation/tiny' .* hub failed \(no route to host\); check") as caught:
        load("organisation/tiny", dtype=torch.float32)
    assert "\n" not in str(caught.value)
