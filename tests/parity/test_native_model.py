"""The native decoder against transformers, family by family, and against itself in other company."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_trees import branching
from transformers import AutoConfig, AutoModelForCausalLM

from outrider.errors import ModelError
from outrider.kernels.native import cpu, missing, physical_cores
from outrider.kv.pool import KVPool, PagedCache
from outrider.kv.state import Kept
from outrider.models.base import TargetOutput
from outrider.models.hf.blueprint import blueprint
from outrider.models.hf.model import ATTENTION, HFModel
from outrider.models.native.decoder_plan import FAMILIES, reason_against
from outrider.models.native.model import NativeModel
from outrider.models.native.packed_weights import Quantization, RequantizedWeights, TensorWeights
from outrider.tree import SequenceRows, TokenTree, TreeBatch, TreeBuilder, root_only

pytestmark = pytest.mark.skipif(cpu is None, reason=f"{missing}")

VOCABULARY = 96
CONTEXT = 128
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.7],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 9.0],
    "partial_rotary_factor": 0.75,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
PHI = {"pad_token_id": 0, "rope_parameters": LONGROPE}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, one key head": ("llama", {"num_key_value_heads": 1, "num_attention_heads": 16}),
    "llama, odd sizes": ("llama", {"hidden_size": 72, "intermediate_size": 100, "head_dim": 20, "vocab_size": 77}),
    "llama, a window that it ignores": ("llama", {"sliding_window": 3}),
    "llama, llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "llama, yarn rope": ("llama", {"rope_parameters": YARN}),
    "llama, linear rope": ("llama", {"rope_parameters": LINEAR}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, window": ("mistral", {"sliding_window": 9}),
    "qwen2": ("qwen2", {}),
    "qwen2, window": ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "phi3": ("phi3", {"pad_token_id": 0}),
    "phi3, window": ("phi3", {"pad_token_id": 0, "sliding_window": 9, "num_key_value_heads": 4}),
    "phi3, part of a head turns": ("phi3", {"pad_token_id": 0, "rope_parameters": LONGROPE | {"rope_type": "default"}}),
    "phi3, short longrope": ("phi3", PHI | {"original_max_position_embeddings": CONTEXT}),
    "phi3, long longrope": ("phi3", PHI | {"original_max_position_embeddings": 32}),
    "gemma2": ("gemma2", {"sliding_window": 9, "query_pre_attn_scalar": 12}),
    "gemma2, low caps": ("gemma2", {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0}),
    "gemma2, no caps": ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma2, odd sizes": ("gemma2", {"vocab_size": 77, "num_attention_heads": 16, "num_key_value_heads": 1}),
    "gemma3, capped logits": ("gemma3_text", {"final_logit_softcapping": 2.0, "attn_logit_softcapping": 2.0}),
    "gemma3": ("gemma3_text", {"sliding_window": 9, "query_pre_attn_scalar": 12}),
}


@cache
def module(variant: str) -> Any:
    kind, options = VARIANTS[variant]
    config = AutoConfig.for_model(kind, **(SMALL | options))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        made = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION).eval().requires_grad_(False)
        for parameter in made.parameters():
            parameter.data.normal_(0.0, 0.15 if parameter.ndim == 2 else 0.5)
    return made


@cache
def native(variant: str, quantization: str = "none") -> NativeModel:
    made = module(variant)
    weights = RequantizedWeights(TensorWeights(made.state_dict()), Quantization(quantization))
    return NativeModel(made.config, weights, context_length=CONTEXT)


@pytest.fixture(autouse=True)
def all_threads() -> Iterator[None]:
    yield
    cpu.set_threads(physical_cores())
    cpu.select_kernels(None)


def new_cache(rows: int = 512, page: int = 16) -> PagedCache:
    return KVPool(rows, page).cache("model")


def text(length: int, seed: int, vocabulary: int = 77) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(vocabulary) for _ in range(length)]


def run(model: Any, cache_: PagedCache, *sequences: SequenceRows) -> torch.Tensor:
    for sequence in sequences:
        assert cache_.extend(sequence.key, sequence.context + sequence.tail)
    logits: torch.Tensor = model.forward(TreeBatch.pack(sequences), cache_).logits
    return logits.clone()


def test_every_family_it_claims_is_tried() -> None:
    assert {kind for kind, _ in VARIANTS.values()} == set(FAMILIES)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str) -> None:
    """A prompt of two chunks, then a tree: fp32 weights, so only the 16-bit cache tells the two apart."""
    ours, theirs = native(variant), HFModel(module(variant), architecture=variant, context_length=CONTEXT)
    tokens = text(40, seed=1)
    for rows in (
        SequenceRows("a", 0, tuple(tokens[:23]), None, all_logits=True),
        SequenceRows("a", 23, tuple(tokens[23:39]), branching(tokens[39]), all_logits=True),
    ):
        found = run(ours, cache_of(variant, "ours"), rows)
        expected = run(theirs, cache_of(variant, "theirs"), rows)
        spread = float(expected.std())
        assert float(expected.std(0).mean()) > 0.05, "rows that are alike would hide what one reads of another"
        assert float((found - expected).abs().max()) < 0.01 * spread, "beyond what a 16-bit cache explains"
        assert spread > 0.05


@cache
def cache_of(variant: str, whose: str) -> PagedCache:
    return new_cache()


def test_the_comparison_sees_a_row_that_reads_its_sibling() -> None:
    """Negative control: the same tree with one parent changed is further off than the bound allows."""
    tokens, tree = text(40, seed=1), branching(5)
    wrong = TokenTree(tree.tokens, (-1, 0, 0, 1, 1, 2, 4), tree.survival, tree.candidates)
    model = native("llama")
    rows = [run(model, new_cache(), SequenceRows("a", 0, tuple(tokens[:39]), each)) for each in (tree, wrong)]
    assert float((rows[0] - rows[1])[4].abs().max()) > 0.05 * float(rows[0].std())


@pytest.mark.parametrize("kernels", [] if cpu is None else cpu.kernel_names())
@pytest.mark.parametrize("quantization", ["none", "w8", "w4"])
@pytest.mark.parametrize("variant", ["qwen3", "gemma2, low caps", "phi3, long longrope"])
def test_every_instruction_set_gives_the_same_logits(variant: str, quantization: str, kernels: str) -> None:
    rows = SequenceRows("a", 0, tuple(text(37, seed=2)), branching(3), all_logits=True)
    expected = run(native(variant, quantization), new_cache(), rows)
    cpu.select_kernels(kernels)
    assert torch.equal(run(native(variant, quantization), new_cache(), rows), expected)


@cache
def one_by_one(variant: str, quantization: str, tokens: tuple[int, ...]) -> torch.Tensor:
    """Plain decoding from the first token on: one row in a pass, pages side by side, one thread."""
    cpu.set_threads(1)
    cache_, rows = new_cache(), []
    for position, token in enumerate(tokens):
        rows.append(run(native(variant, quantization), cache_, SequenceRows("a", position, (), root_only(token))))
    cpu.set_threads(physical_cores())
    return torch.cat(rows)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_row_has_the_bits_of_plain_decoding(data: st.DataObject) -> None:
    """Chunked prompts, trees, neighbours, scattered pages, threads: nothing moves a bit of a row on the text's path."""
    variant = data.draw(
        st.sampled_from(
            ["llama", "qwen3", "mistral, window", "gemma3", "gemma2", "gemma2, low caps", "phi3, long longrope"]
        )
    )
    quantization = data.draw(st.sampled_from(["none", "w8", "w4"]))
    tokens = tuple(text(data.draw(st.sampled_from([5, 17, 33, 60])), seed=data.draw(st.integers(0, 2)), vocabulary=77))
    expected = one_by_one(variant, quantization, tokens)
    cpu.set_threads(data.draw(st.integers(1, 3)))
    model, cache_ = native(variant, quantization), new_cache(1024, data.draw(st.sampled_from([1, 4, 16])))
    place = 0
    while place < len(tokens):
        scatter(data, cache_)
        forced = data.draw(st.integers(0, len(tokens) - place - 1))
        depth = data.draw(st.integers(0, min(6, len(tokens) - place - forced - 1)))
        tree, path = tree_around(data, tokens[place + forced : place + forced + depth + 1])
        rows = SequenceRows("a", place, tokens[place : place + forced], tree, all_logits=True)
        neighbours = [
            SequenceRows(f"n{i}", 0, tuple(text(data.draw(st.integers(0, 9)), seed=i)), branching(7))
            for i in range(data.draw(st.integers(0, 2)))
        ]
        found = run(model, cache_, *neighbours, rows)
        found = found[len(found) - rows.rows :]
        on_path = [*range(forced), *(forced + node for node in path)]
        assert torch.equal(found[on_path], expected[place : place + forced + depth + 1])
        cache_.commit([Kept("a", place, on_path)])
        place += forced + depth + 1
        for neighbour in neighbours:
            cache_.release(neighbour.key)


def scatter(data: st.DataObject, cache_: PagedCache) -> None:
    """Hold some pages under another name, so that the text's own lie apart."""
    key = f"hole{data.draw(st.integers(0, 10**6))}"
    cache_.extend(key, data.draw(st.integers(1, 20)))


def tree_around(data: st.DataObject, path: tuple[int, ...]) -> tuple[TokenTree, list[int]]:
    """A tree that holds a path among branches, and the path's nodes."""
    builder, nodes = TreeBuilder(path[0]), [0]
    for token in path[1:]:
        for _ in range(data.draw(st.integers(0, 2))):
            builder.add(data.draw(st.sampled_from(range(len(builder)))), data.draw(st.integers(78, VOCABULARY - 1)))
        nodes.append(builder.add(nodes[-1], token))
    return builder.build(), nodes


def test_the_comparison_sees_a_cap_that_is_left_out() -> None:
    """Negative control: what the caps do is far more than the bound allows."""
    rows = SequenceRows("a", 0, tuple(text(39, seed=1)), None, all_logits=True)
    weights, options = TensorWeights(module("gemma2, low caps").state_dict()), VARIANTS["gemma2, low caps"][1]
    expected = run(native("gemma2, low caps"), new_cache(), rows)
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        uncapped = AutoConfig.for_model("gemma2", **(SMALL | options | {cap: None}))
        found = run(NativeModel(uncapped, weights, context_length=CONTEXT), new_cache(), rows)
        assert float((found - expected).abs().max()) > 0.05 * float(expected.std())


def test_hidden_rows_are_the_blocks_outputs() -> None:
    tokens = text(20, seed=4)
    rows = TreeBatch.pack([SequenceRows("a", 0, tuple(tokens), None)])
    caches = new_cache(), new_cache()
    for cache_ in caches:
        cache_.extend("a", 20)
    ours = native("llama").forward(rows, caches[0], (0, 2)).hidden
    theirs = HFModel(module("llama"), architecture="llama", context_length=CONTEXT).forward(rows, caches[1], (0, 2))
    for layer, expected in theirs.hidden.items():
        assert float((ours[layer] - expected).abs().max()) < 0.01 * float(expected.std())


def final_rows(model: Any, count: int) -> TargetOutput:
    """A prompt and a tree on top of it, every row's logits and final hidden row."""
    rows = SequenceRows("a", 0, tuple(text(count, seed=4)), branching(5), all_logits=True)
    cache_ = new_cache()
    cache_.extend("a", rows.tail)
    output: TargetOutput = model.forward(TreeBatch.pack([rows]), cache_, (model.layers,))
    return output


@pytest.mark.parametrize("variant", VARIANTS)
def test_both_ends_are_those_of_transformers(variant: str) -> None:
    ours, theirs = native(variant), HFModel(module(variant), architecture=variant, context_length=CONTEXT)
    assert (ours.width, ours.layers) == (theirs.width, theirs.layers)
    found, expected = (final_rows(model, 20).hidden[model.layers] for model in (ours, theirs))
    assert float((found - expected).abs().max()) < 0.01 * float(expected.std())
    ids = torch.tensor([0, 76, 5, 5])
    assert torch.equal(ours.embed(ids), theirs.embed(ids))
    assert torch.equal(ours.unembed_rows(ids), theirs.unembed_rows(ids))
    logits = theirs.unembed(expected)
    assert float((ours.unembed(expected) - logits).abs().max()) < 1e-5 * float(logits.std())


@settings(max_examples=60, deadline=None)
@given(
    variant=st.sampled_from(["llama", "llama, odd sizes", "gemma2, low caps", "gemma2, odd sizes", "phi3", "gemma3"]),
    quantization=st.sampled_from(["none", "w8", "w4"]),
    count=st.sampled_from([1, 7, 40]),
    data=st.data(),
)
def test_the_head_gives_final_rows_the_bits_of_the_pass(
    variant: str, quantization: str, count: int, data: st.DataObject
) -> None:
    """Some of the rows, in any order and number, on any number of threads."""
    cpu.set_threads(data.draw(st.integers(1, 3)))
    model = native(variant, quantization)
    output = final_rows(model, count)
    chosen = data.draw(st.lists(st.integers(0, len(output.logits) - 1), max_size=60))
    assert torch.equal(model.unembed(output.hidden[model.layers][chosen]), output.logits[chosen])


def test_the_ends_of_a_quantised_model_are_its_own_numbers() -> None:
    """Rows of the head times rows are its logits, but for the int8 rounding of the rows."""
    model = native("llama", "w8")
    final = final_rows(model, 20).hidden[model.layers]
    logits = model.unembed(final)
    products = final @ model.unembed_rows(torch.arange(VOCABULARY)).T
    assert float((logits - products).abs().max()) < 0.05 * float(logits.std())
    assert float((model.embed(torch.arange(9)) - native("llama").embed(torch.arange(9))).abs().max()) < 0.01


def test_the_ends_refuse_what_is_not_there() -> None:
    model = native("llama")
    for wrong in (
        lambda: model.embed(torch.tensor([VOCABULARY])),
        lambda: model.unembed_rows(torch.tensor([-1])),
        lambda: model.unembed(torch.zeros(2, model.width + 1)),
    ):
        with pytest.raises(ValueError, match=r"vocabulary|width"):
            wrong()
    for layer in (-1, model.layers + 1):
        with pytest.raises(ModelError, match=rf"layer {layer} .* 0 to {model.layers}"):
            model.forward(TreeBatch.pack([SequenceRows("a", 0, (1,), None)]), new_cache(), (layer,))
    assert model.unembed(torch.empty(0, model.width)).shape == (0, VOCABULARY)


def test_rows_that_see_each_other() -> None:
    theirs = HFModel(module("llama"), architecture="llama", context_length=CONTEXT)
    caches, tokens = (new_cache(), new_cache()), text(12, seed=6)
    for rows in (
        SequenceRows("a", 0, tuple(tokens[:7]), None, all_logits=True),
        SequenceRows("a", 7, tuple(tokens[7:]), None, all_logits=True, together=True),
    ):
        found, expected = run(native("llama"), caches[0], rows), run(theirs, caches[1], rows)
        assert float((found - expected).abs().max()) < 0.01 * float(expected.std())
    apart = run(native("llama"), caches[0], SequenceRows("a", 7, tuple(tokens[7:]), None, all_logits=True))
    assert float((apart - found)[:-1].abs().max()) > 0.05 * float(found.std()), "negative control"


def test_what_it_cannot_serve_is_named() -> None:
    for kind, options, reason in (
        ("opt", {}, "opt"),
        ("llama", {"hidden_act": "relu"}, "activation"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("llama", {"quantization_config": {"quant_method": "awq"}}, "quantised"),
    ):
        config = AutoConfig.for_model(kind, **options)
        assert reason in (reason_against(config) or "")
        with pytest.raises(ModelError, match=reason):
            NativeModel(config, TensorWeights({}), context_length=8)
    with pytest.raises(ModelError, match=r"layers\.0\.self_attn\.q_proj"):
        NativeModel(module("llama").config, TensorWeights({}), context_length=8)


def test_frequencies_are_the_models_own() -> None:
    for variant in ("llama, llama3 rope", "llama, yarn rope", "llama, linear rope", "qwen3", "phi3"):
        expected = module(variant).model.rotary_emb
        frequencies, scale = blueprint(module(variant).config).rotations(CONTEXT)[0]
        torch.testing.assert_close(frequencies, expected.inv_freq.float())
        assert scale == pytest.approx(expected.attention_scaling)
