"""Real GGUF files: the weights are transformers', the ids are llama.cpp's, the load is quick.

Run with `pytest -m real tests/real/test_gguf_real.py`; a model that is not in the models folder is skipped.
"""

from __future__ import annotations

import gzip
import json
import statistics
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider.models.files.dequantize import dequantize
from outrider.models.files.gguf import read_gguf
from outrider.models.files.gguf_tokenizer import build_tokenizer
from outrider.models.files.tokenizer import Tokenizer
from outrider.models.loading import load, models_folder

pytestmark = pytest.mark.real

DATA = Path(__file__).parents[1] / "data"
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMALL_QWEN = "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"
LARGE_QWEN = "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf"


def model_file(name: str) -> Path:
    path = models_folder() / name
    if not path.is_file():
        pytest.skip(f"{name} is not in the models folder")
    return path


def stored(name: str) -> dict[str, list]:
    return json.loads(gzip.decompress((DATA / f"tokenizer_ids_{name}.json.gz").read_bytes()))


def tokenizer_of(record: dict[str, list]) -> Tokenizer:
    return build_tokenizer(read_gguf(model_file(record["model"])))


@pytest.mark.parametrize("name", ["smollm2", "qwen2"])
def test_ids_are_llama_cpps(name: str) -> None:
    record = stored(name)
    tokenizer = tokenizer_of(record)
    assert len(record["texts"]) >= 300
    for text, ids in zip(record["texts"], record["ids"], strict=True):
        assert tokenizer.encode(text) == ids, text


@pytest.mark.parametrize("name", ["smollm2", "qwen2"])
def test_streams_give_every_text_back(name: str) -> None:
    record = stored(name)
    tokenizer = tokenizer_of(record)
    for text, ids in zip(record["texts"], record["ids"], strict=True):
        stream = tokenizer.stream(skip_special_tokens=False)
        assert "".join(stream.push(token_id) for token_id in ids) == text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_an_end_of_sentence_tag_is_text_to_qwen() -> None:
    """llama.cpp takes it for a control token whatever the file says; the model was trained otherwise."""
    tokenizer = tokenizer_of(stored("qwen2"))
    assert len(tokenizer.encode(" </s>")) > 1


def test_the_two_qwens_share_a_vocabulary() -> None:
    small, large = (build_tokenizer(read_gguf(model_file(name))) for name in (SMALL_QWEN, LARGE_QWEN))
    assert small.compare(large).kind == "equal"
    assert small.vocab_size == 151665
    smollm2 = tokenizer_of(stored("smollm2"))
    assert small.compare(smollm2).kind == "different"
    assert "has 151665 tokens" in small.compare(smollm2).reason


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_smollm2_is_the_model_transformers_reads() -> None:
    pytest.importorskip("accelerate", reason="transformers reads GGUF with it")
    path = model_file(SMOLLM2)
    ours = load(path, dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    mine, wanted = ours.module.state_dict(), theirs.state_dict()
    assert mine.keys() == wanted.keys()
    for name in wanted:
        assert torch.equal(mine[name], wanted[name]), name
    ids = torch.tensor([ours.files.tokenizer.encode("The three laws of thermodynamics say that 1 + 1 = 2.")])
    with torch.inference_mode():
        assert torch.equal(ours.module(ids).logits, theirs(ids).logits)


@pytest.mark.parametrize("name", [SMALL_QWEN, LARGE_QWEN])
def test_every_kind_in_the_file_is_decoded_as_the_gguf_package_does(name: str) -> None:
    import gguf
    import numpy as np

    file = read_gguf(model_file(name))
    last_of_kind = {tensor.kind.name: tensor for tensor in file.tensors.values()}
    for kind, tensor in last_of_kind.items():
        rows = file.raw(tensor).numpy()[:256]
        plain = rows.view(np.float32) if kind == "F32" else rows
        wanted = gguf.quants.dequantize(plain, gguf.GGMLQuantizationType[kind])
        job = file.job(tensor, torch.float32)
        dequantize([job])
        got = job.out.view(-1, tensor.shape[-1])[:256].numpy()
        assert np.array_equal(got, wanted.reshape(got.shape)), kind


def test_a_model_answers_a_question() -> None:
    model = load(model_file(SMALL_QWEN), dtype=torch.float32)
    prompt = model.files.tokenizer.apply_chat_template([{"role": "user", "content": "What is 12*3? Answer shortly."}])
    ids = torch.tensor([model.files.tokenizer.encode(prompt)])
    out = model.module.generate(ids, max_new_tokens=16, do_sample=False)[0].tolist()
    assert "36" in model.files.tokenizer.decode(out[ids.shape[1] :])


@pytest.mark.parametrize(("name", "seconds"), [(SMOLLM2, 3.0), (SMALL_QWEN, 8.0)])
def test_loading_is_quick(name: str, seconds: float, capsys: pytest.CaptureFixture[str]) -> None:
    path = model_file(name)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        load(path, dtype=torch.float32)
        times.append(time.perf_counter() - start)
    with capsys.disabled():
        print(f"\n{name}: loaded in {statistics.median(times):.2f} s (median of {times})")
    assert min(times) < seconds
