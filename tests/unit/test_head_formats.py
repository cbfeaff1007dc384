"""Heads of other projects are read as they were published: their forward pass is restated here and must agree."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from byte_text import SIZE, byte_tokenizer
from damage import FUZZ, FUZZ_LOADS, HOSTILE_NUMBERS, patched
from head_files import (
    DRAFTED,
    FILES,
    HEAD_WIDTH,
    NETWORK,
    VOCABULARY,
    WIDTH,
    Random,
    deepspec_files,
    dflash_files,
    eagle3_files,
    eagle_files,
    medusa_files,
    put,
    specforge_files,
    speculators_dspark_files,
    speculators_eagle3_files,
    vllm_medusa_files,
    vocabulary_maps,
)
from hypothesis import given
from hypothesis import strategies as st
from published_heads import dspark_bias, dspark_hidden, eagle, eagle3
from safetensors.torch import save_file
from tiny import tiny_model, tiny_native
from tiny_heads import tiny_head

from outrider import LLM, SamplingParams, Speculation
from outrider.drafters import config_class
from outrider.errors import ConfigError, ModelError, OutriderError
from outrider.heads.checkpoint import TargetFacts, write_head
from outrider.heads.formats._shapes import rotation
from outrider.heads.formats._untrusted_config import UntrustedConfig
from outrider.heads.formats.base import formats
from outrider.heads.loading import read_head
from outrider.heads.runner import embedding_of

TARGET = TargetFacts("", WIDTH, 6, VOCABULARY)
ROWS = 7


def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float) -> torch.Tensor:
    group = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(group, 1) for part in (key, value))
    later = torch.ones(query.shape[2], key.shape[2]).triu(1).bool()
    scores = (query @ key.transpose(-1, -2) * scaling).masked_fill(later, -torch.inf)
    return (torch.softmax(scores, -1) @ value).transpose(1, 2)


def rows_of_layers(count: int, seed: int = 11) -> list[torch.Tensor]:
    random = Random(seed)
    return [random(ROWS, WIDTH) * 5 for _ in range(count)]


def read(folder: Path, files: Any, **how: Any) -> Any:
    return read_head(put(folder, files, **how)).fitted(TARGET).build()


def check_eagle3(head: Any, weights: dict[str, torch.Tensor], layers: int = 3, **how: Any) -> None:
    """Two steps, the second on the first one's answers."""
    embeddings, features = Random(12)(ROWS, WIDTH), rows_of_layers(layers)
    answers, logits = eagle3(weights, embeddings, features, **how)
    own = head(embeddings[None], head.fuse(features)[None], torch.arange(ROWS)[None], causal)[0]
    torch.testing.assert_close(own, answers, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(head.logits(own, lambda rows: rows), logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FILES)
def test_one_format_recognises_each_layout(name: str) -> None:
    config, weights = FILES[name]()
    assert len([each for each in formats() if each.recognises(config, weights)]) == 1


@pytest.mark.parametrize("weights_file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"projection_bias": True}, {"blocks": 2}], ids=["plain", "no bias", "qkv", "deep"]
)
def test_eagle_draws_what_its_authors_code_would(tmp_path: Path, options: Any, weights_file: str) -> None:
    config, weights = eagle_files(**options)
    head = read(tmp_path / "head", (config, weights), weights=weights_file)
    embeddings, (features,) = Random(12)(ROWS, WIDTH), rows_of_layers(1)
    own = head(embeddings[None], features[None], torch.arange(ROWS)[None], causal)[0]
    torch.testing.assert_close(
        own, eagle(weights, embeddings, features, options.get("blocks", 1)), rtol=1e-4, atol=1e-5
    )
    assert head.config.hidden_layers == (TARGET.layers,), "it reads what the LM head reads"
    swapped = eagle(weights | {"fc.weight": weights["fc.weight"].roll(WIDTH, 1)}, embeddings, features)
    assert not torch.allclose(own, swapped, atol=1e-2), "the embedding comes before the feature"


@pytest.mark.parametrize(
    "options",
    [{}, {"newer": True}, {"norms": True}, {"head_width": 16}],
    ids=["plain", "3.1", "head norms", "wide heads"],
)
def test_eagle3_draws_what_its_authors_code_would(tmp_path: Path, options: Any) -> None:
    config, weights = eagle3_files(**options)
    head = read(tmp_path / "head", (config, weights))
    how = {key: options[key] for key in ("newer", "head_width") if key in options}
    check_eagle3(head, weights, **how)
    assert head.ids.tolist() == vocabulary_maps()[0].tolist(), "d2t holds offsets"
    assert head.ids.tolist() != weights["d2t"].tolist()


def test_usual_layers_are_inputs_counted_as_outputs(tmp_path: Path) -> None:
    told = read_head(put(tmp_path / "head", eagle3_files()))
    assert told.fitted(TargetFacts("", WIDTH, 32, VOCABULARY)).config.hidden_layers == (1, 15, 28)
    with pytest.raises(ConfigError, match="only its target can tell"):
        told.build()
    with pytest.raises(ConfigError, match="reads layer -1, and the target has 3"):
        told.fitted(TargetFacts("", WIDTH, 3, VOCABULARY))


def test_named_layers_count_as_each_format_counts(tmp_path: Path) -> None:
    config, weights = eagle3_files()
    config |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 5], "use_aux_hidden_state": True}}
    assert read(tmp_path / "a", (config, weights)).config.hidden_layers == (0, 2, 5)
    assert read(tmp_path / "b", speculators_eagle3_files()).config.hidden_layers == (0, 1, 3)
    assert read(tmp_path / "c", deepspec_files()).config.hidden_layers == (1, 3, 4)
    assert read(tmp_path / "d", speculators_dspark_files()).config.hidden_layers == (1, 3, 4)
    last, weights = dflash_files()
    last |= {"dflash_config": last["dflash_config"] | {"target_layer_ids": [1, 3, 5]}}
    assert read(tmp_path / "e", (last, weights)).config.hidden_layers == (1, 3, 6), (
        "hidden_states ends with normed rows"
    )
    unsaid = last | {"dflash_config": {"mask_token_id": 5}, "num_hidden_layers": 2, "num_target_layers": 36}
    weights = weights | {"fc.weight": weights["fc.weight"][:, : 2 * WIDTH].clone()}
    assert read_head(put(tmp_path / "f", (unsaid, weights))).config.hidden_layers == (1, 33)


def test_eagle3_of_five_layers_and_a_full_vocabulary(tmp_path: Path) -> None:
    config, weights = eagle3_files(block="layers.0.", layers=5, norms=True)
    weights = {name: tensor for name, tensor in weights.items() if name not in ("d2t", "t2d")}
    weights["lm_head.weight"] = Random(3)(VOCABULARY, WIDTH)
    config |= {"target_layer_ids": [0, 1, 2, 3, 4], "draft_vocab_size": VOCABULARY}
    head = read(tmp_path / "head", (config, weights))
    check_eagle3(head, weights, layers=5, block="layers.0.")
    assert head.ids.tolist() == list(range(VOCABULARY))


def test_eagle3_without_an_lm_head_uses_the_targets(tmp_path: Path) -> None:
    config, weights = eagle3_files()
    bare = {name: tensor for name, tensor in weights.items() if name not in ("d2t", "t2d", "lm_head.weight")}
    head = read(tmp_path / "head", ({key: config[key] for key in config if key != "draft_vocab_size"}, bare))
    rows, matrix = Random(4)(3, WIDTH), Random(5)(VOCABULARY, WIDTH)
    expected = eagle3_norm(rows, weights) @ matrix.T
    assert head.ids is None
    torch.testing.assert_close(head.logits(rows, lambda normed: normed @ matrix.T), expected, rtol=1e-4, atol=1e-5)


def eagle3_norm(rows: torch.Tensor, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return rows / (rows.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weights["norm.weight"]


@pytest.mark.parametrize("said", [None, False, True])
@pytest.mark.parametrize("norms", ["none", "fc_norm", "norm_before_fc"])
def test_speculators_eagle3(tmp_path: Path, said: bool | None, norms: str) -> None:
    more: dict[str, Any] = {} if said is None else {"norm_before_residual": said}
    more |= {"fc_norm": True, "norm_output": True} if norms == "fc_norm" else {}
    more |= {"norm_before_fc": True} if norms == "norm_before_fc" else {}
    config, weights = speculators_eagle3_files(**more)
    head = read(tmp_path / "head", (config, weights))
    check_eagle3(head, weights, block="layers.0.", normed_residual=bool(said), newer=norms == "fc_norm")
    assert read_head(tmp_path / "head").target.name == "someone/target"


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("files", [deepspec_files, speculators_dspark_files], ids=["DeepSpec", "speculators"])
def test_dspark_draws_what_its_authors_code_would(tmp_path: Path, files: Any, kind: str) -> None:
    config, weights = files(kind)
    head = read(tmp_path / "head", (config, weights))
    check_blocks(head, weights)
    previous, hidden = [3, 60, 17, 9], dspark_hidden(weights, rows_of_layers(3), Random(12)(4, WIDTH))
    expected, state = dspark_bias(weights, kind, previous, hidden), None
    for slot, token in enumerate(previous):
        added, state = head.markov_head(torch.tensor([token]), hidden[slot : slot + 1], state)
        torch.testing.assert_close(added[0], expected[slot], rtol=1e-4, atol=1e-5)
        read_ = torch.cat((hidden[slot], weights["markov_head.markov_w1.weight"][token]))
        sure = weights["confidence_head.proj.weight"] @ read_ + weights["confidence_head.proj.bias"]
        own = head.confidence(torch.tensor([token]), hidden[slot : slot + 1])
        torch.testing.assert_close(own, sure, rtol=1e-4, atol=1e-5)
    assert head.config.drafts == 4, "the anchor's slot drafts"


def check_blocks(head: Any, weights: dict[str, torch.Tensor], unembed: Any = None) -> None:
    layers, embeddings = rows_of_layers(3), Random(12)(4, WIDTH)
    hidden = dspark_hidden(weights, layers, embeddings)[-head.config.drafts :]
    context = head.context(head.fuse(layers)[None], torch.arange(ROWS)[None])

    def attend(key: torch.Tensor, value: torch.Tensor) -> Any:
        def run(query: torch.Tensor, own: torch.Tensor, mine: torch.Tensor, scaling: float) -> torch.Tensor:
            keys, values = torch.cat((key, own), 2), torch.cat((value, mine), 2)
            keys, values = (part.repeat_interleave(query.shape[1] // part.shape[1], 1) for part in (keys, values))
            return (torch.softmax(query @ keys.transpose(-1, -2) * scaling, -1) @ values).transpose(1, 2)

        return run

    attends = [attend(*pair) for pair in context]
    slots = head(embeddings[None], torch.arange(ROWS, ROWS + 4)[None], attends, unembed)
    torch.testing.assert_close(slots.hidden[0, 0], hidden, rtol=1e-4, atol=1e-5)
    if "lm_head.weight" in weights:
        torch.testing.assert_close(slots.logits[0, 0], hidden @ weights["lm_head.weight"].T, rtol=1e-4, atol=1e-5)


def test_dspark_with_a_reduced_vocabulary_follows_all_tokens_and_moves_some(tmp_path: Path) -> None:
    head = read(tmp_path / "head", speculators_dspark_files())
    assert head.markov_head.markov_w1.weight.shape[0] == VOCABULARY
    assert head.markov_head.markov_w2.weight.shape[0] == DRAFTED
    assert head.ids.tolist() == vocabulary_maps()[0].tolist()


@pytest.mark.parametrize("prefix", ["", "logit_head."])
def test_specforge_dspark(tmp_path: Path, prefix: str) -> None:
    head = read(tmp_path / "head", specforge_files(prefix))
    check_blocks(head, specforge_files()[1], lambda rows: rows)
    config = head.config
    assert (config.correction, config.rank, config.drafts, config.vocabulary) == ("markov", 6, 4, 0)


def test_dflash_drafts_behind_the_anchor_through_the_targets_lm_head(tmp_path: Path) -> None:
    head = read(tmp_path / "head", dflash_files())
    check_blocks(head, dflash_files()[1], lambda rows: rows)
    assert (head.config.drafts, head.config.correction, head.config.confidence) == (3, "independent", False)


def medusa_logits(weights: dict[str, torch.Tensor], rows: torch.Tensor, prefix: str, layers: int) -> torch.Tensor:
    made = []
    for head in range(3):
        out = rows
        for layer in range(layers):
            part = f"{prefix}{head}.{layer}.linear."
            out = out + torch.nn.functional.silu(out @ weights[f"{part}weight"].T + weights[f"{part}bias"])
        made.append(out @ weights[f"{prefix}{head}.{layers}.weight"].T)
    return torch.stack(made, 1)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("prefix", "file"), [("", "medusa_lm_head.pt"), ("medusa_head.", "model.safetensors")], ids=["heads", "whole model"]
)
def test_medusa(tmp_path: Path, prefix: str, file: str, layers: int) -> None:
    config, weights = medusa_files(prefix, layers)
    held = weights | ({"model.embed_tokens.weight": Random()(VOCABULARY, WIDTH)} if prefix else {})
    head = read(tmp_path / "head", (config, held), weights=file)
    rows = Random(12)(5, WIDTH)
    torch.testing.assert_close(head(rows), medusa_logits(weights, rows, prefix, layers), rtol=1e-4, atol=1e-5)


def test_medusa_layers_that_were_kept_once(tmp_path: Path) -> None:
    config, weights = medusa_files()
    once = {name: tensor for name, tensor in weights.items() if ".1.linear." not in name}
    head, rows = read(tmp_path / "head", (config, once)), Random(12)(5, WIDTH)
    torch.testing.assert_close(head(rows), medusa_logits(weights, rows, "", 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("prefix", ["", "medusa_heads."])
def test_vllm_medusa(tmp_path: Path, prefix: str) -> None:
    config, weights = vllm_medusa_files(prefix)
    head, rows = read(tmp_path / "head", (config, weights)), Random(12)(5, WIDTH)
    for place in range(3):
        out = rows + torch.nn.functional.silu(rows @ weights[f"{prefix}blocks.{place}.layers.0.weight"].T)
        logits = out @ weights[f"{prefix}lm_heads.{place}.weight"].T
        torch.testing.assert_close(head(rows)[:, place], logits, rtol=1e-4, atol=1e-5)
    assert head.ids.tolist() == weights["token_map"].tolist()


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, {"rope_type": "default", "rope_theta": 10000.0}),
        ({"rope_theta": 5e5, "rope_scaling": None}, {"rope_type": "default", "rope_theta": 5e5}),
        (
            {"rope_theta": 7, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_type": "linear", "rope_theta": 7.0, "factor": 2.0},
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 9.0, "factor": 4.0}, "rope_theta": 1.0},
            {"rope_type": "linear", "rope_theta": 9.0, "factor": 4.0},
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 3.0}}},
            {"rope_type": "default", "rope_theta": 3.0},
        ),
    ],
)
def test_rotations_in_both_spellings(told: dict[str, Any], expected: dict[str, Any]) -> None:
    assert rotation(UntrustedConfig("head", told)) == expected


def test_the_rotation_is_the_heads_own(tmp_path: Path) -> None:
    config, weights = eagle3_files()
    scaled = config | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    head, plain = read(tmp_path / "a", (scaled, weights)), read(tmp_path / "b", (config, weights))
    torch.testing.assert_close(head.rotary.rotation[0] * 4, plain.rotary.rotation[0])
    half = HEAD_WIDTH // 2
    torch.testing.assert_close(plain.rotary.rotation[0], 1 / 5000.0 ** (torch.arange(half) / half))


@pytest.mark.parametrize("same", [True, False])
def test_an_embedding_that_copies_the_targets_is_dropped(tmp_path: Path, same: bool) -> None:
    target = tiny_model()
    config, weights = eagle_files()
    rows = target.embed(torch.arange(VOCABULARY))
    weights["embed_tokens.weight"] = (rows if same else rows.flip(0)).clone()
    head = read_head(put(tmp_path / "head", (config, weights))).fitted(target).build()
    tokens = torch.tensor([3, 5])
    torch.testing.assert_close(embedding_of(head, target)(tokens), weights["embed_tokens.weight"][tokens])
    assert (head.embed_tokens is None) is same


CASES = [
    ("eagle", "eagle"),
    ("eagle", "eagle2"),
    ("eagle3", "eagle3"),
    ("deepspec", "dspark"),
    ("specforge", "dspark"),
    ("dflash", "dflash"),
    ("medusa", "medusa"),
    ("vllm medusa", "medusa"),
    ("speculators eagle3", "eagle3"),
    ("speculators dspark", "dspark"),
]
SHALLOW = {
    "eagle3": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}},
    "speculators eagle3": {"eagle_aux_hidden_state_layer_ids": [1, 2, 1]},
    "speculators dspark": {"aux_hidden_state_layer_ids": [1, 2, 1]},
    "deepspec": {"target_layer_ids": [0, 1, 0], "num_target_layers": 2},
    "specforge": {"num_target_layers": 2},
    "dflash": {"num_target_layers": 2},
}
"""What names the layers of a target of two."""


@pytest.mark.parametrize("backend", [tiny_model, tiny_native], ids=["hf", "native"])
@pytest.mark.parametrize(("name", "method"), CASES, ids=[f"{name} by {method}" for name, method in CASES])
def test_a_drafter_loads_it_by_path_and_changes_nothing(
    tmp_path: Path, name: str, method: str, backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    target = backend()
    config, weights = FILES[name]()
    config = config | SHALLOW.get(name, {})
    if "dflash_config" in config:
        config["dflash_config"] = config["dflash_config"] | {"target_layer_ids": [0, 1, 0]}
    folder = str(put(tmp_path / "head", (config, weights)))
    prompts, wanted = [[1, 2, 3, 4], [9, 8, 7]], SamplingParams(max_tokens=12)
    drafting = LLM.from_model(target, speculation=Speculation(config_class(method)(head=folder), verifier="coupled"))
    plain = LLM.from_model(target, speculation="none")
    texts = [[one.token_ids for one in each.generate(prompts, wanted)] for each in (drafting, plain)]
    assert texts[0] == texts[1]
    assert [record for record in caplog.records if record.name == "outrider.engine.guard"] == []


def test_what_was_read_can_be_kept_in_our_own_format(tmp_path: Path) -> None:
    found = read_head(put(tmp_path / "theirs", eagle3_files())).fitted(TARGET)
    write_head(tmp_path / "ours", found)
    again = read_head(tmp_path / "ours")
    assert again.config == found.config
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in found.tensors.items())


@pytest.mark.parametrize("name", FILES)
def test_every_missing_or_misshapen_weight_is_named(tmp_path: Path, name: str) -> None:
    config, weights = FILES[name]()
    optional = {
        "d2t",
        "t2d",
        "embed_tokens.weight",
        "lm_head.weight",
        "fc.bias",
        "token_map",
        "markov_head.markov_w1.weight",
        "confidence_head.proj.weight",
    }
    for place, key in enumerate(weights):
        short = {other: tensor for other, tensor in weights.items() if other != key}
        if key not in optional and ".1.linear." not in key:
            with pytest.raises(ModelError):
                read(tmp_path / f"a{place}", (config, short))
        grown = weights | {key: torch.cat((weights[key], weights[key][:1]))}
        with pytest.raises(OutriderError, match=r"\d"):
            read(tmp_path / f"b{place}", (config, grown))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("eagle3", {"hidden_size": 40}, "'hidden_size' .* 40, but the weights have 32"),
        ("eagle3", {"draft_vocab_size": 30}, "'draft_vocab_size' says 30, and its LM head has 20"),
        ("eagle3", {"num_hidden_layers": 2}, "it has 2 blocks"),
        ("eagle3", {"hidden_act": "gelu"}, "'gelu'"),
        (
            "eagle3",
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1]}},
            "instead of .*64.*: 2 layers of 32",
        ),
        ("speculators eagle3", {"eagle_aux_hidden_state_layer_ids": [0, 2, 3]}, "names layer 0"),
        ("deepspec", {"target_layer_ids": [-1, 3, 4]}, "embedding"),
        ("deepspec", {"mask_token_id": 64}, "token 64 of 64"),
        ("deepspec", {"layer_types": ["sliding_attention", "full_attention"]}, "sliding window"),
        ("specforge", {"dflash_config": {"projector_type": "domino"}}, "'domino'"),
        ("dflash", {"dflash_config": {"causal": True}}, "attention"),
        ("eagle", {"rope_scaling": {"type": "mrope"}}, "'mrope'"),
        ("eagle", {"rope_scaling": {"type": "linear"}}, "rotation"),
        ("eagle", {"partial_rotary_factor": 0.5}, "0.5 of each head"),
        ("medusa", {"medusa_num_layers": 5}, "'medusa_num_layers' says 5"),
        ("vllm medusa", {"num_heads": 4}, "'num_heads' says 4"),
    ],
)
def test_what_heads_cannot_do_is_refused(tmp_path: Path, name: str, change: Any, message: str) -> None:
    config, weights = FILES[name]()
    with pytest.raises(ModelError, match=message) as caught:
        read(tmp_path / "head", (config | change, weights))
    assert str(caught.value).startswith("head: ")
    assert "\n" not in str(caught.value)


def test_token_ids_in_place_of_offsets_are_refused(tmp_path: Path) -> None:
    config, weights = eagle3_files()
    ids = vocabulary_maps()[0]
    with pytest.raises(ModelError, match=r"offsets, not token ids|different tokens"):
        read(tmp_path / "a", (config, weights | {"d2t": ids}))
    with pytest.raises(ModelError, match="no 'd2t' says which"):
        read(tmp_path / "b", (config, {name: weights[name] for name in weights if name not in ("d2t", "t2d")}))
    with pytest.raises(ModelError, match="'d2t' does not lead to 20 different tokens of 64"):
        read(tmp_path / "c", (config, weights | {"d2t": -torch.arange(DRAFTED)}))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (TargetFacts("", 48, 6, VOCABULARY), "hidden size is 32, and this one's is 48"),
        (TargetFacts("", WIDTH, 6, 50), "vocabulary is 64, and this one's is 50"),
        (TargetFacts("", WIDTH, 3, VOCABULARY), "number of layers is 6, and this one's is 3"),
    ],
)
def test_a_head_of_another_target_is_refused_with_both_values(tmp_path: Path, facts: TargetFacts, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_head(put(tmp_path / "head", deepspec_files())).fitted(facts)


@pytest.mark.parametrize("method", ["eagle3", "dspark", "medusa"])
def test_a_head_of_fewer_tokens_than_the_text_may_have_is_refused(method: str) -> None:
    """A target's matrices may be padded beyond its tokenizer, and then a head may know fewer; else it is another's."""
    head = tiny_head(method, tiny_model(0))
    speculation = Speculation(method, options={"head": "tiny"})
    with pytest.raises(ConfigError, match=f"made for a target of 64 tokens, and this one has {SIZE}"):
        LLM.from_model(tiny_model(0, SIZE), byte_tokenizer(), speculation=speculation, heads={"tiny": head})


def test_layers_the_target_does_not_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reads layer 3, and the target has 2"):
        read_head(put(tmp_path / "head", speculators_eagle3_files())).fitted(TargetFacts("", WIDTH, 2, VOCABULARY))


def test_an_unknown_layout_names_the_known_ones(tmp_path: Path) -> None:
    files = ({"speculators_model_type": "mlp"}, {"x": torch.zeros(1)})
    with pytest.raises(ModelError, match=r"an unknown format; .*Medusa.*speculators"):
        read_head(put(tmp_path / "head", files))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds no weights"):
        read_head(tmp_path / "empty")


def test_weights_in_several_files(tmp_path: Path) -> None:
    config, weights = eagle3_files()
    folder, names = put(tmp_path / "head", (config, weights)), sorted(weights)
    (folder / "model.safetensors").unlink()
    places = {name: f"model-{1 + place % 2}.safetensors" for place, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: weights[name] for name in names if places[name] == file}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    check_eagle3(read_head(folder).fitted(TARGET).build(), weights)
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "../elsewhere.safetensors")}))
    with pytest.raises(ModelError, match="does not say which file"):
        read_head(folder)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_a_truncated_file_is_refused(tmp_path: Path, file: str) -> None:
    folder = put(tmp_path / "head", eagle3_files(), weights=file)
    whole = (folder / file).read_bytes()
    for share in (0.0, 0.1, 0.5, 0.9, 0.999):
        (folder / file).write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(ModelError, match=rf"head: {file} cannot be read"):
            read_head(folder)


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    folder = put(tmp_path / "head", eagle_files(), weights="pytorch_model.bin")
    torch.save({"fc.weight": math.sqrt, "x": Path()}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be read"):
        read_head(folder)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.sampled_from(HOSTILE_NUMBERS), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=5,
)


@FUZZ
@given(data=st.data())
def test_any_value_of_any_key_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    config, weights = FILES[data.draw(st.sampled_from(sorted(FILES)))]()
    place = config
    for part in ("transformer_layer_config", "dflash_config"):
        if part in config and data.draw(st.booleans()):
            config[part] = place = dict(config[part])
    keys = [*place, "rope_parameters", "head_dim", "target_hidden_size", "eagle_config", "norm_output", "shift_label"]
    place[data.draw(st.sampled_from(keys))] = data.draw(JSON)
    folder = put(tmp_path / "head", (config, weights))
    try:
        read_head(folder).fitted(TARGET).build()
    except OutriderError as error:
        assert len(str(error).splitlines()) == 1


ROTATIONS = st.fixed_dictionaries(
    {},
    optional={
        key: st.one_of(st.sampled_from(HOSTILE_NUMBERS), st.lists(st.sampled_from(HOSTILE_NUMBERS), max_size=4))
        for key in (
            *("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
            *("short_factor", "long_factor", "beta_fast", "beta_slow", "attention_factor", "partial_rotary_factor"),
        )
    }
    | {"rope_type": st.sampled_from(["default", "linear", "dynamic", "yarn", "longrope", "llama3", "other"])},
)


@FUZZ
@given(parameters=ROTATIONS)
def test_any_rotation_is_read_or_refused(tmp_path: Path, parameters: dict[str, Any]) -> None:
    config, weights = eagle_files()
    folder = put(tmp_path / "head", (config | {"rope_parameters": parameters}, weights))
    try:
        head = read_head(folder).fitted(TARGET).build()
    except OutriderError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert all(part.isfinite().all() for part in head.rotary(torch.arange(9)))


@FUZZ_LOADS
@given(data=st.data())
def test_a_patched_header_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    folder = put(tmp_path / "head", eagle3_files())
    whole = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(whole[:8], "little")
    (folder / "model.safetensors").write_bytes(patched(data, whole, [(0, 7), (8, 7 + length)]))
    try:
        read_head(folder).fitted(TARGET).build()
    except OutriderError as error:
        assert len(str(error).splitlines()) == 1


def test_the_oracle_sees_a_wrong_order(tmp_path: Path) -> None:
    config, weights = eagle3_files()
    head = read(tmp_path / "head", (config, weights))
    wrong = weights | {"fc.weight": weights["fc.weight"].roll(WIDTH, 1)}
    with pytest.raises(AssertionError):
        check_eagle3(head, wrong)
    with pytest.raises(AssertionError):
        check_eagle3(head, weights, normed_residual=True)
    assert NETWORK["vocab_size"] == VOCABULARY
