"""Store what llama.cpp makes of the texts under each pre-tokenizer name, as one digest per name.

No public model has a vocabulary in which every wrong split shows. So this makes one: merges learnt across all
boundaries, plus whole words that no merge reaches, in a tiny model that exists only to carry it.

    pip install xllamacpp gguf tokenizers
    python tests/data/make_splitter_ids.py
"""

import gzip
import hashlib
import importlib.metadata
import json
import multiprocessing
import tempfile
from pathlib import Path

from make_tokenizer_ids import llama_cpp_ids

FOLDER = Path(__file__).parent
END = "<|endoftext|>"
NAMES = [
    "gpt-2",
    "phi-2",
    "mpt",
    "olmo",
    "jais",
    "trillion",
    "granite-docling",
    "exaone4",
    "smollm",
    "starcoder",
    "refact",
    "command-r",
    "codeshell",
    "exaone",
    "minerva-7b",
    "qwen2",
    "deepseek-r1-qwen",
    "stablelm2",
    "hunyuan",
    "megrez",
    "grok-2",
    "llama-bpe",
    "llama3",
    "llama-v3",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "lfm2",
    "smaug-bpe",
    "dbrx",
    "glm4",
    "chatglm-bpe",
    "gpt-4o",
    "llama4",
    "minimax-m2",
    "deepseek-v3",
    "hunyuan-dense",
    "poro-chat",
    "bloom",
    "gpt3-finnish",
    "qwen35",
    "tekken",
    "seed-coder",
    "bailingmoe",
    "falcon",
    "viking",
    "default",
]


def learn_vocabulary(texts: list[str]) -> tuple[list[str], list[str]]:
    """Learn merges that cross every boundary, and add words that are tokens without being merges."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = alphabet
    trainer = trainers.BpeTrainer(
        vocab_size=2200,
        initial_alphabet=sorted(alphabet.alphabet()),
        show_progress=False,
        max_token_length=8,
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    known = set(tokens)
    words = [word for text in texts[-150:] for word in text.split() if word.isascii() and len(word) > 5]
    tokens += sorted({spelled for word in words for spelled in (word, f"Ġ{word}")} - known)[::12]
    return tokens, [" ".join(merge) for merge in model["merges"]]


def write_model(path: Path, name: str, tokens: list[str], merges: list[str]) -> None:
    """Write a llama model of one small layer with this vocabulary and pre-tokenizer name."""
    import gguf
    import numpy as np

    width = 64
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(width)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list([*tokens, END])
    writer.add_token_types([1] * len(tokens) + [3])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens))
    writer.add_eos_token_id(len(tokens))
    square = np.zeros((width, width), np.float32)
    vector = np.ones(width, np.float32)
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens) + 1, width), np.float32))
    writer.add_tensor("output_norm.weight", vector)
    for part in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{part}.weight", vector)
    for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{part}.weight", square)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def digest(ids: list[list[int]]) -> str:
    """Shorten the ids of all texts to one word."""
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


def main() -> None:
    texts = json.loads(gzip.decompress((FOLDER / "tokenizer_ids_smollm2.json.gz").read_bytes()))["texts"]
    tokens, merges = learn_vocabulary(texts)
    digests = {}
    with tempfile.TemporaryDirectory() as folder, multiprocessing.Pool(1, maxtasksperchild=1) as process:
        for name in NAMES:
            path = Path(folder) / "model.gguf"
            write_model(path, name, tokens, merges)
            digests[name] = digest(process.apply(llama_cpp_ids, (path, texts)))
    record = {
        "made_with": f"xllamacpp {importlib.metadata.version('xllamacpp')}",
        "tokens": [*tokens, END],
        "merges": merges,
        "digests": digests,
    }
    packed = gzip.compress(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode(), 9, mtime=0)
    (FOLDER / "splitter_ids.json.gz").write_bytes(packed)
    print(f"{len(digests)} names, {len(set(digests.values()))} different, {len(tokens)} tokens, {len(packed)} bytes")


if __name__ == "__main__":
    main()
