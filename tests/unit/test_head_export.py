"""Heads written for other projects: they read back as they were, and ``speculators`` runs them as we do."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from head_files import (
    DRAFTED,
    KEY_HEADS,
    VOCABULARY,
    WIDTH,
    dflash_files,
    eagle3_files,
    eagle_files,
    medusa_files,
    put,
    specforge_files,
    speculators_dspark_files,
    speculators_eagle3_files,
)
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tiny import tiny_model
from tiny_heads import tiny_head

from outrider.cli import main
from outrider.errors import ConfigError, ModelError
from outrider.heads.checkpoint import PACKED, SMALL, HeadCheckpoint, TargetFacts, write_head
from outrider.heads.formats.base import destinations, export
from outrider.heads.loading import read_head

TARGET = TargetFacts("", WIDTH, 6, VOCABULARY)
HAS_SPECULATORS = importlib.util.find_spec("speculators") is not None
NEEDS_SPECULATORS = pytest.mark.skipif(
    not HAS_SPECULATORS, reason="speculators is not installed here; docs/formats.md says how to run this"
)


def given(tmp_path: Path, files: Any, **config: Any) -> HeadCheckpoint:
    """A head of ours that is as good as trained; some of its configuration changed."""
    found = read_head(put(tmp_path / "given", files)).fitted(TARGET)
    target = dataclasses.replace(found.target, name="someone/target", layers=TARGET.layers)
    return dataclasses.replace(found, config=dataclasses.replace(found.config, **config), target=target)


def without(files: Any, *names: str) -> Any:
    return files[0], {name: tensor for name, tensor in files[1].items() if name not in names}


def of_layers(files: Any) -> Any:
    return files[0] | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 5]}}, files[1]


HEADS = {
    "eagle": eagle_files,
    "eagle qkv": lambda: eagle_files(bias=False, projection_bias=True),
    "eagle3": lambda: of_layers(eagle3_files()),
    "eagle3.1": lambda: of_layers(eagle3_files(newer=True)),
    "eagle3 head norms": lambda: of_layers(eagle3_files(norms=True, head_width=16)),
    "eagle3 before residual": lambda: speculators_eagle3_files(norm_before_residual=True, norm_before_fc=True),
    "dflash": dflash_files,
    "dspark": specforge_files,
    "dspark reduced": speculators_dspark_files,
    "dspark rnn": lambda: speculators_dspark_files("rnn"),
}
HELD = [
    ("eagle", "eagle"),
    ("eagle qkv", "eagle"),
    ("eagle3", "eagle"),
    ("eagle3", "specforge"),
    ("eagle3", "speculators"),
    ("eagle3.1", "specforge"),
    ("eagle3.1", "speculators"),
    ("eagle3 head norms", "speculators"),
    ("eagle3 before residual", "speculators"),
    ("dflash", "specforge"),
    ("dflash", "speculators"),
    ("dspark", "specforge"),
    ("dspark", "speculators"),
    ("dspark reduced", "speculators"),
    ("dspark rnn", "speculators"),
]


@pytest.mark.parametrize(("name", "to"), HELD, ids=[f"{name} to {to}" for name, to in HELD])
def test_what_is_written_reads_back_as_it_was(tmp_path: Path, name: str, to: str) -> None:
    head = given(tmp_path, HEADS[name]())
    export(head, to, tmp_path / "made")
    again = read_head(tmp_path / "made").fitted(TARGET)
    switched = dataclasses.replace(again.config.block, projection_bias=True, output_bias=False)
    kept = switched if head.config.block.projection_bias else again.config.block
    assert dataclasses.replace(again.config, block=kept) == head.config
    assert (again.target.width, again.target.vocabulary) == (WIDTH, VOCABULARY)
    for key, tensor in head.tensors.items():
        torch.testing.assert_close(again.tensors[key], tensor, rtol=0, atol=0)
    for key in again.tensors.keys() - head.tensors.keys():
        assert key.endswith("o_proj.bias") and not again.tensors[key].any(), "only a switch of transformers adds zeros"


def test_destinations() -> None:
    assert destinations() == ["eagle", "specforge", "speculators"]


def test_the_configuration_counts_as_the_format_counts(tmp_path: Path) -> None:
    head = given(tmp_path, eagle3_files())
    assert head.config.hidden_layers == (1, 2, 2)
    export(head, "speculators", tmp_path / "a")
    export(head, "specforge", tmp_path / "b")
    first, second = (json.loads((tmp_path / name / "config.json").read_text()) for name in "ab")
    assert first["eagle_aux_hidden_state_layer_ids"] == [2, 3, 3]
    assert second["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2, 2]
    assert first["norm_before_residual"] is False, "said, since readers disagree on what silence means"
    assert first["transformer_layer_config"]["rope_theta"] == second["rope_theta"] == 5000.0


@pytest.mark.parametrize(
    ("files", "to", "change", "message"),
    [
        (eagle3_files, "eagle", {"norm_before_residual": True}, "starts from the normed feature"),
        (lambda: eagle3_files(newer=True), "eagle", {}, "EAGLE-3.1's norms"),
        (lambda: eagle3_files(norms=True), "specforge", {}, "each head's queries and keys"),
        (speculators_dspark_files, "specforge", {}, "a reduced draft vocabulary"),
        (lambda: without(specforge_files(), "none"), "eagle", {}, "of the kind dspark, which eagle has no format"),
        (eagle_files, "speculators", {}, "of the kind eagle, which speculators has no format"),
        (medusa_files, "speculators", {}, "of the kind medusa"),
        (eagle3_files, "speculators", {"named": ""}, "--verifier"),
        (eagle3_files, "gguf", {}, "there are: eagle, specforge, speculators"),
        (dflash_files, "specforge", {"hidden_layers": (1, 2, 6)}, "rows after the target's final norm"),
        (dflash_files, "specforge", {"draft_from_anchor": True}, "slots that begin at the anchor"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(
    tmp_path: Path, files: Any, to: str, change: dict[str, Any], message: str
) -> None:
    change = dict(change)
    name = change.pop("named", "someone/target")
    with pytest.raises(ConfigError, match=message):
        export(named(given(tmp_path, files(), **change), name), to, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    made = export(given(tmp_path, specforge_files(), temperatures=(1.0, 2.0)), "speculators", tmp_path / "made")
    assert made.left_out == ("what confidences are divided by, slot by slot",)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_head(tmp_path / "head", given(tmp_path, eagle3_files()))
    command = ["export", str(tmp_path / "head"), "--output", str(tmp_path / "made")]
    assert main([*command, "--to", "speculators", "--verifier", "someone/target", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "eagle3"
    assert read_head(tmp_path / "made").target.name == "someone/target"
    assert main([*command, "--to", "gguf"]) == 2
    assert "there is no format 'gguf'" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "nothing"), "--output", str(tmp_path), "--to", "eagle"]) == 2
    assert main([*command[:-1], str(tmp_path / "head" / "config.json"), "--to", "eagle"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def target_folder(folder: Path) -> Path:
    """A target that ``speculators`` can read, since it takes the embedding from there."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=TARGET.layers,
        num_attention_heads=4,
        initializer_range=1.0,
    )
    torch.manual_seed(3)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def ends(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """A target's embedding and LM head."""
    held = load_file(folder / "model.safetensors")
    return held["model.embed_tokens.weight"], held["lm_head.weight"]


def named(head: HeadCheckpoint, folder: Path | str) -> HeadCheckpoint:
    return dataclasses.replace(head, target=dataclasses.replace(head.target, name=str(folder)))


def theirs(folder: Path) -> Any:
    """What ``speculators`` makes of a folder, with its plainest attention."""
    from speculators import SpeculatorModel, SpeculatorModelConfig

    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    return SpeculatorModel.from_pretrained(folder, config=config).eval().requires_grad_(False)


@NEEDS_SPECULATORS
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, to in HELD if to == "speculators" and name.startswith("eagle3")])
def test_speculators_draws_as_we_do_eagle3(tmp_path: Path, name: str) -> None:
    head = given(tmp_path, HEADS[name]())
    export(named(head, target_folder(tmp_path / "target")), "speculators", tmp_path / "made")
    model, own, rows = theirs(tmp_path / "made"), head.build(), 9
    generator = torch.Generator().manual_seed(1)
    features = [torch.randn(1, rows, WIDTH, generator=generator) for _ in range(3)]
    tokens = torch.randint(VOCABULARY, (1, rows), generator=generator)
    table, _ = ends(tmp_path / "target")
    # speculators 0.9 takes over the target's embedding only if it finds NaN in its own, and with transformers 5.24 what
    # it finds there is memory that nobody has written.
    model.embed_tokens.weight.copy_(table)
    said: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: said.append(output[0]))
    model(torch.cat(features, -1), tokens, torch.zeros(1, rows, dtype=torch.long), ttt_steps=1)
    from test_head_formats import causal

    answers = own(table[tokens], own.fuse(features), torch.arange(rows)[None], causal)
    torch.testing.assert_close(own.logits(answers[0], lambda x: x), said[0], rtol=1e-4, atol=1e-4)
    assert (model.d2t + torch.arange(DRAFTED)).tolist() == own.ids.tolist()
    assert said[0].shape == (rows, DRAFTED)


@NEEDS_SPECULATORS
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, to in HELD if to == "speculators" and not name.startswith("eagle3")])
def test_speculators_draws_as_we_do_dspark(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head = given(tmp_path, HEADS[name]())
    export(named(head, target_folder(tmp_path / "target")), "speculators", tmp_path / "made")
    model, own, rows, anchor = theirs(tmp_path / "made"), head.build(), 12, 6
    slots = own.config.slots
    generator = torch.Generator().manual_seed(2)
    features = [torch.randn(1, rows, WIDTH, generator=generator) for _ in own.config.hidden_layers]
    tokens = torch.randint(VOCABULARY, (1, rows), generator=generator)
    table, matrix = ends(tmp_path / "target")
    from speculators.models.dflash import core

    anchors = torch.tensor([anchor]), torch.ones(1, dtype=torch.bool)
    monkeypatch.setattr(core, "select_anchors", lambda *args, **how: anchors)
    hidden, logits, *_ = model._backbone_forward(
        torch.cat(features, -1),
        tokens,
        torch.ones(1, rows),
        torch.zeros(1, rows, WIDTH),
        torch.zeros(1, rows, dtype=torch.long),
        max_anchors=1,
    )

    context = own.context(own.fuse([part[:, :anchor] for part in features]), torch.arange(anchor)[None])

    def attend(key: torch.Tensor, value: torch.Tensor) -> Any:
        def run(query: torch.Tensor, mine: torch.Tensor, held: torch.Tensor, scaling: float) -> torch.Tensor:
            keys, values = torch.cat((key, mine), 2), torch.cat((value, held), 2)
            keys, values = (part.repeat_interleave(query.shape[1] // KEY_HEADS, 1) for part in (keys, values))
            return (torch.softmax(query @ keys.transpose(-1, -2) * scaling, -1) @ values).transpose(1, 2)

        return run

    block = torch.full((1, slots), own.config.mask_id)
    block[0, 0] = tokens[0, anchor]
    made = own(
        table[block],
        torch.arange(anchor, anchor + slots)[None],
        [attend(*pair) for pair in context],
        lambda x: x @ matrix.T,
    )
    drafts = own.config.drafts
    torch.testing.assert_close(made.hidden[0, 0], hidden[0, -drafts:], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(made.logits[0, 0], logits[0, -drafts:], rtol=1e-4, atol=1e-4)
    if getattr(model, "markov_head", None) is not None:
        previous = torch.tensor([[3, 60, 17, 9]])
        bias, state = model.markov_head.block_bias(prev_token_ids=previous, hidden_states=hidden), None
        for slot in range(slots):
            added, state = own.markov_head(previous[:, slot], hidden[:, slot], state)
            torch.testing.assert_close(added, bias[:, slot], rtol=1e-4, atol=1e-4)
        read = torch.cat((hidden, model.markov_head.prev_embeddings(previous)), -1)
        torch.testing.assert_close(own.confidence(previous, hidden), model.confidence_head(read), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("flags", "body"), [([], 126), (["--four-bits"], 7)])
@pytest.mark.parametrize("kind", ["eagle3", "dspark"])
def test_a_packed_head_is_small_and_drafts_as_the_kernels_would(
    kind: str, flags: list[str], body: int, tmp_path: Path
) -> None:
    head = tiny_head(kind, tiny_model(0))
    write_head(tmp_path / "whole", head)
    words = ["export", str(tmp_path / "whole"), "--to", "outrider", "--output", str(tmp_path / "packed"), *flags]
    assert main(words) == 0
    sizes = {name: (tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "packed")}
    assert sizes["packed"] < (0.5 if body > 7 else 0.4) * sizes["whole"]
    small = read_head(tmp_path / "packed")
    assert (small.kind, small.config, small.target) == (head.kind, head.config, head.target)
    for name, tensor in head.tensors.items():
        if tensor.is_floating_point() and tensor.ndim == 2 and tensor.shape[1] % 32 == 0:
            steps = 7 if "lm_head" in name or "w1" in name else body
            step = tensor.unflatten(1, (-1, 32)).abs().amax(-1, keepdim=True) / steps
            distance = (small.tensors[name] - tensor).unflatten(1, (-1, 32)).abs()
            assert bool((distance <= step + 1e-3).all()), name
        else:
            torch.testing.assert_close(small.tensors[name], tensor)
    write_head(tmp_path / "again", small, SMALL if flags else PACKED)
    again = read_head(tmp_path / "again").tensors
    assert all(torch.allclose(again[name], tensor, atol=1e-3) for name, tensor in small.tensors.items())


@pytest.mark.parametrize(("part", "wrong"), [("Q8_0", "Q9_9"), (":32", ":64"), (":32", ":x"), (":32", ":32:1")])
def test_a_tensor_that_is_not_stored_as_its_name_says(part: str, wrong: str, tmp_path: Path) -> None:
    write_head(tmp_path, tiny_head("eagle3", tiny_model(0)), PACKED)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if name.endswith(":Q8_0:32"))
    tensors[name.replace(part, wrong)] = tensors.pop(name)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="is not stored as its name says"):
        read_head(tmp_path)


def test_only_our_own_format_is_kept_in_four_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_head(tmp_path / "head", tiny_head("eagle3", tiny_model(0)))
    words = ["export", str(tmp_path / "head"), "--to", "specforge", "--output", str(tmp_path / "out"), "--four-bits"]
    assert main(words) == 2
    assert (
        "--four-bits works only with --to outrider; specforge stores full-precision weights" in capsys.readouterr().err
    )


def test_a_full_disk_is_said_and_the_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = put(tmp_path / "given", speculators_eagle3_files()), tmp_path / "out"
    words = ["export", str(source), "--to", "outrider", "--output", str(output)]
    assert main(words) == 0, capsys.readouterr().err
    before = (output / "model.safetensors").read_bytes()

    def full(tensors: object, path: Path, **more: object) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("outrider.heads.checkpoint.save_file", full)
    assert main(words) == 2
    assert (output / "model.safetensors").read_bytes() == before
    said = capsys.readouterr().err
    assert "out cannot be written (I/O error: No space left on device (os error 28)); free some space there" in said
    with pytest.raises(ConfigError, match=r"else cannot be written \(I/O error"):
        export(given(tmp_path, specforge_files()), "specforge", tmp_path / "else")


def test_a_head_whose_layers_only_its_target_knows_is_not_written_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = put(tmp_path / "given", eagle_files())
    assert main(["export", str(source), "--to", "outrider", "--output", str(tmp_path / "out")]) == 2
    assert "does not say which layers it reads" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
