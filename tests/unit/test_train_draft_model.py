"""Draft models made out of their target: what is kept, what is learned, what is written."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from captured import LAYERS, InMemory, TinyTarget, teacher, texts
from cut_target import target_with_files, training
from gguf_files import TinyFile
from safetensors.torch import load_file, save_file
from tiny import VOCABULARY, tiny_module
from tiny_folder import SMALLEST, make_folder, make_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from outrider import LLM, Speculation
from outrider.cli import main
from outrider.errors import ConfigError
from outrider.kv.pool import PagedCache
from outrider.models.backends import LoadOptions, load_model
from outrider.models.base import TargetModel
from outrider.models.loading import open_model
from outrider.train.features.batches import Batch, Batches, BatchShape, held_out_batches
from outrider.train.features.teacher import Teacher
from outrider.train.loop.training import Task, Training
from outrider.train.objectives import make_objective
from outrider.train.recipes._distillation import columns
from outrider.train.recipes._small_decoder import (
    Cut,
    SmallDecoder,
    keep_channels,
    most_useful_channels,
    parse_layers,
    source_of,
    spread_layers,
)
from outrider.train.recipes.base import Recipe, recipe_class
from outrider.train.settings import Settings
from outrider.tree import SequenceRows, TreeBatch

SHAPE = BatchShape(layers=(LAYERS,), rows=400)
SOME = torch.arange(0, VOCABULARY, 2)
STEPS = 3


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TinyTarget:
    """The target of the captured texts, with its files."""
    return target_with_files(tmp_path_factory.mktemp("target"))


def recipe(**options: object) -> Recipe:
    return recipe_class("draft_model")(**{"steps": STEPS} | options)


def batch(temperature: float = 0.0) -> Batch:
    return SHAPE.pad(texts(6, temperature=temperature))


def test_a_whole_copy_is_the_target(target: TinyTarget) -> None:
    made, one = recipe(layers=2), batch()
    found = made.acceptance(made.head(target, None, 0), one, teacher())
    assert found.tested[0] > 80
    assert min(found.rates) > 0.98  # captured rows are rounded to half precision, which may turn a tie
    assert made.loss(made.head(target, SOME, 0), one, teacher()).loss < 1e-4


def test_half_a_copy_is_not(target: TinyTarget) -> None:
    made, one = recipe(layers=1), batch()
    assert made.acceptance(made.head(target, None, 0), one, teacher()).rates[0] < 0.8
    assert made.loss(made.head(target, SOME, 0), one, teacher()).loss > 0.1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_acceptance_is_that_of_chains_drafted_one_by_one(target: TinyTarget, temperature: float) -> None:
    made, some = recipe(layers=1), texts(4, temperature=temperature)
    one, head = SHAPE.pad(some), made.head(target, None, 0)
    best = teacher().best(one.final)
    accepted, tested = [0] * STEPS, [0] * STEPS
    for place, text in enumerate(some):
        for row in range(text.answer_start - 1, len(text.tokens) - 2):
            chain = text.tokens[: row + 2]
            for depth in range(min(STEPS, len(text.tokens) - row - 2)):
                rows = head(teacher().embed(torch.tensor([chain])))
                chain = [*chain, int(teacher().best(rows[0, -1]))]
                tested[depth] += 1
                if chain[-1] != best[place, row + depth + 1]:
                    break
                accepted[depth] += 1
                if chain[-1] != text.tokens[row + depth + 2]:
                    break
    found = made.acceptance(head, one, teacher())
    assert (found.accepted.tolist(), found.tested.tolist()) == (accepted, tested)
    assert accepted[0] > 0


@pytest.mark.parametrize("objective", ["kl", "reverse_kl", "jsd", "tv", "cross_entropy", "0.5*kl+0.5*cross_entropy"])
@pytest.mark.parametrize("ids", [None, SOME], ids=["whole", "reduced"])
def test_the_loss_is_the_mean_over_rows_of_answers(
    target: TinyTarget, objective: str, ids: torch.Tensor | None
) -> None:
    made, some = recipe(layers=1, objective=objective, others=0), texts(3, temperature=1.0)
    head, known = made.head(target, ids, 0), list(range(VOCABULARY)) if ids is None else ids.tolist()
    losses = []
    for text in some:
        rows = head(teacher().embed(torch.tensor([text.tokens])))[0]
        for row in range(text.answer_start - 1, len(text.tokens) - 1):
            token = text.tokens[row + 1]
            if token not in known and "cross_entropy" in objective:
                continue
            p = torch.softmax(teacher().logits(text.features[LAYERS][row], ids), -1)[None]
            x = torch.tensor([known.index(token) if token in known else 0])
            losses.append(make_objective(objective)(teacher().read(rows[row], ids)[None], p, x).item())
    report = made.loss(head, SHAPE.pad(some), teacher())
    assert report.weight == len(losses)
    assert report.loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    report.loss.backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in head.parameters())


@pytest.mark.parametrize("objective", ["kl", "cross_entropy"])
def test_a_sample_of_all_other_tokens_is_the_whole_vocabulary(target: TinyTarget, objective: str) -> None:
    one = batch(temperature=1.0)
    one = dataclasses.replace(one, mask=one.mask & torch.isin(one.following(1), SOME))  # rows that every loss reads
    whole, all_others, half, none = (
        recipe(layers=1, others=others, objective=objective)
        .loss(recipe(layers=1).head(target, ids, 0), one, teacher())
        .loss.item()
        for ids, others in ((None, 0), (SOME, VOCABULARY), (SOME, VOCABULARY // 4), (SOME, 0))
    )
    assert all_others == pytest.approx(whole, rel=1e-4)
    assert half != pytest.approx(whole, rel=1e-3)
    assert abs(half - whole) < abs(none - whole)


def test_rows_of_a_vocabulary_are_kept_beside_those_of_a_batch() -> None:
    """In the order asked for, and gathered anew only for what has not been asked for lately."""
    made, hidden = teacher(), torch.eye(32)[:2]
    turned = torch.arange(VOCABULARY - 1, -1, -1)
    assert torch.equal(made.read(hidden, turned), made.read(hidden).flip(1))
    kept = made._rows(SOME)
    for seed in range(3):
        drawn = columns(SOME, dataclasses.replace(batch(), seed=seed), made, 8).ids
        assert made._rows(drawn) is made._rows(drawn)
        assert made._rows(SOME.clone()) is kept, "gathered again"


def test_other_tokens_are_drawn_anew_for_each_batch() -> None:
    one = batch()
    found, again, other = (columns(SOME, dataclasses.replace(one, seed=seed), teacher(), 8) for seed in (1, 1, 2))
    assert found.ids is not None and again.ids is not None and other.ids is not None
    assert torch.equal(found.ids[: len(SOME)], SOME)
    drawn = set(found.ids[len(SOME) :].tolist())
    assert len(drawn) == 8 and not drawn & set(SOME.tolist())
    assert torch.equal(found.ids, again.ids)
    assert not torch.equal(found.ids, other.ids)
    weights = torch.as_tensor(found.added).exp()
    torch.testing.assert_close(weights, torch.tensor([1.0] * 32 + [4.0] * 8))
    assert columns(None, one, teacher(), 8).ids is None


def test_a_token_that_no_answer_has_does_not_rise_unseen(target: TinyTarget, tmp_path: Path) -> None:
    """The loss knows a quarter of the tokens; drafting knows all, and is right more often where others were drawn."""
    one, few = batch(), torch.arange(0, VOCABULARY, 4)
    guessed = {}
    for others in (0, 16):
        made = recipe(layers=1, others=others)
        stream = Batches(InMemory(texts(24)), SHAPE, seed=0)
        start = Task(made, made.head(target, few, 0), teacher(), stream, held_out_batches(texts(24), SHAPE))
        head = Training(start, settings(tokens=2500), tmp_path / str(others)).run().head
        guessed[others] = made.acceptance(head, one, teacher()).rates[0]
    assert guessed[16] > guessed[0] + 0.1


def test_a_text_without_an_answer_has_no_loss(target: TinyTarget) -> None:
    made, one = recipe(layers=1), texts(1)[0]
    short = dataclasses.replace(one, tokens=one.tokens[: one.answer_start])
    report = made.loss(made.head(target, None, 0), SHAPE.pad([short]), teacher())
    assert (report.loss.item(), report.weight) == (0.0, 0.0)


def test_embeddings_and_lm_head_are_neither_trained_nor_kept(target: TinyTarget) -> None:
    head = recipe(layers=1).head(target, None, 0)
    assert {name.split(".")[1] for name in head.state_dict()} == {"layers", "norm"}


def test_layers_are_spread_evenly_or_named() -> None:
    assert spread_layers(4, 30) == (0, 10, 19, 29)
    assert spread_layers(1, 30) == (0,)
    assert spread_layers(30, 30) == tuple(range(30))
    assert parse_layers("0, 9,29", 30) == (0, 9, 29)
    with pytest.raises(ConfigError, match="the target has 30 layers, so keep from 1 to 30 of them, not 31"):
        spread_layers(31, 30)
    with pytest.raises(ConfigError, match="there is no layer 30 to keep: the target's are 0 to 29"):
        parse_layers("0,30", 30)
    with pytest.raises(ConfigError, match="in ascending order, each once, not '3,3'"):
        parse_layers("3,3", 30)
    with pytest.raises(ConfigError, match=r"such as 0,9,29, not 'all'"):
        parse_layers("all", 30)


def test_the_last_layer_alone_is_the_last(target: TinyTarget) -> None:
    head = recipe(chosen_layers="1").head(target, None, 0)
    own = tiny_module(attention="sdpa").model.layers[1].mlp.up_proj.weight
    assert torch.equal(head.body.layers[0].mlp.up_proj.weight, own)
    assert len(head.body.layers) == 1


def test_what_cannot_be_cut_is_said(target: TinyTarget, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 64 channels in a feed-forward part; keep at most as many, not 65"):
        recipe(layers=1, inner=65).head(target, None, 0)
    memory = TinyTarget()
    with pytest.raises(ConfigError, match="this target has none; load one from disk"):
        recipe(layers=1).head(memory, None, 0)
    shutil.copytree(target.source, tmp_path / "odd")
    config = json.loads((target.source / "config.json").read_text())
    (tmp_path / "odd" / "config.json").write_text(json.dumps(config | {"model_type": "gpt_neox"}))
    memory.source = tmp_path / "odd"
    with pytest.raises(ConfigError, match="no draft model can be cut out of odd: its model type 'gpt_neox' is not"):
        recipe(layers=1).head(memory, None, 0)


def test_a_target_whose_tensors_have_other_names_is_not_cut(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    save_file({name.removeprefix("model."): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    served, _ = load_model(folder)
    with pytest.raises(
        ConfigError, match=r"cut out of model: its weights hold nothing named 'model\.embed_tokens\.weight'"
    ):
        source_of(served)


def test_useless_channels_go_first(tmp_path: Path) -> None:
    """Half of the channels of each layer reach nothing: without them, all is as before."""
    folder = make_folder(tmp_path / "model")
    whole, _ = load_model(folder, LoadOptions(backend="hf"))
    module = whole.module
    for number, layer in enumerate(module.model.layers):
        layer.mlp.down_proj.weight[:, number::2] = 0
    module.save_pretrained(folder)
    tokens = torch.arange(7, 19)
    rows = [
        decoder(whole.embed(tokens)[None])
        for decoder in (SmallDecoder(open_model(folder), Cut((0, 1), inner), None) for inner in (0, 32, 31))
    ]
    torch.testing.assert_close(rows[1], rows[0], rtol=1e-4, atol=1e-5)
    assert (rows[2] - rows[0]).abs().max() > 1e-3


def test_matrices_in_one_tensor_lose_the_same_channels() -> None:
    """Gate and up of three channels lie one after the other, as Phi-3 has them."""
    fused = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0], [0.5]])
    down = torch.ones(1, 3)
    shapes = {"gate_up": (4, 1), "down": (1, 2), "norm": (1,)}
    parts = {"gate_up": fused, "down": down, "norm": torch.ones(1)}
    channels = most_useful_channels(parts, shapes, 3, 2)
    assert channels.tolist() == [0, 1]  # 4, 10 and 1.5
    assert keep_channels(fused, (4, 1), 3, channels).flatten().tolist() == [1.0, 2.0, 4.0, 5.0]
    assert keep_channels(parts["norm"], (1,), 3, channels).tolist() == [1.0]


def logits_of(model: TargetModel, tokens: list[int]) -> torch.Tensor:
    rows = SequenceRows("a", 0, tuple(tokens), None)
    cache = PagedCache(8, 16)
    assert cache.extend("a", len(tokens))
    hidden = model.forward(TreeBatch.pack([rows], model.device), cache, (model.layers,)).hidden[model.layers]
    return model.unembed(hidden.float())


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "folder"])
def test_a_written_copy_is_the_target_on_both_backends(architecture: str, tmp_path: Path) -> None:
    if architecture == "folder":
        place = make_folder(tmp_path / "model")
    else:
        place = TinyFile(architecture).write(tmp_path / "model.gguf")
    tokens = list(range(40, 60))
    target, tokenizer = load_model(place, LoadOptions(backend="hf"))
    expected = logits_of(target, tokens)
    recipe(layers=2).head(target, None, 0).write(tmp_path / "copy")
    for backend in ("native", "hf"):
        copy, its = load_model(tmp_path / "copy", LoadOptions(backend=backend))
        assert tokenizer.compare(its).kind != "different"  # a family's own class may add a token that is not there
        assert (its.bos_id, its.eos_ids, its.chat_template) == (
            tokenizer.bos_id,
            tokenizer.eos_ids,
            tokenizer.chat_template,
        )
        assert its.special_tokens.items() >= tokenizer.special_tokens.items()
        assert its.encode("hello 12!") == tokenizer.encode("hello 12!")
        error = (logits_of(copy, tokens) - expected).norm() / expected.norm()
        assert error < 0.03  # the written weights have eight bits of mantissa


@pytest.mark.parametrize("kind", ["mistral", "phi3", "gemma2", "gemma3_text"])
def test_a_decoder_cut_from_any_family_computes_what_is_written(kind: str, tmp_path: Path) -> None:
    """Fused matrices, scaled embeddings, capped scores and windows: training sees the rows that drafting computes."""
    values = {"vocab_size": SMALLEST, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
    values |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128}
    config = AutoConfig.for_model(
        kind, **values, sliding_window=8, bos_token_id=None, eos_token_id=None, pad_token_id=0
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = AutoModelForCausalLM.from_config(config, dtype=torch.float32).requires_grad_(False)
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.2).copy_(parameter.bfloat16())
    module.save_pretrained(tmp_path / "model")
    make_tokenizer(SMALLEST).save(str(tmp_path / "model" / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(told))
    tokens = list(range(40, 60))
    target, _ = load_model(tmp_path / "model", LoadOptions(backend="hf"))
    decoder = recipe(chosen_layers="0,2", inner=64).head(target, None, 0)
    seen = Teacher.of(target)
    expected = seen.read(decoder(seen.embed(torch.tensor([tokens]))))[0]
    decoder.write(tmp_path / "small")
    for backend, most in (("hf", 1e-4), ("native", 0.05)):
        small, _ = load_model(tmp_path / "small", LoadOptions(backend=backend))
        assert small.layers == 2
        assert (logits_of(small, tokens) - expected).norm() / expected.norm() < most


def test_it_learns(target: TinyTarget, tmp_path: Path) -> None:
    """The tiny target is random, so nothing can be learned but the texts themselves."""
    trained = Training(task(target, 24), settings(), tmp_path).run()
    judged = trained.findings.judged
    assert trained.findings.best.length > judged[0].length + 0.4
    assert trained.findings.losses[-1][1] < 0.7 * trained.findings.losses[0][1]


class Interrupted(Exception):
    """The process is gone."""


class Ending(Batches):
    """A stream that ends its process when a certain batch is asked for."""

    left = 8

    def __next__(self) -> Batch:
        self.left -= 1
        if not self.left:
            raise Interrupted
        return super().__next__()


def test_an_interrupted_training_goes_on_to_the_same_weights(target: TinyTarget, tmp_path: Path) -> None:
    straight = Training(task(target, 6), settings(), tmp_path / "straight").run()
    broken = dataclasses.replace(task(target, 6), stream=Ending(InMemory(texts(24)), SHAPE, seed=0))
    with pytest.raises(Interrupted):
        Training(broken, settings(save_seconds=0.0), tmp_path / "broken").run()
    after = Training(task(target, 6), settings(save_seconds=0.0), tmp_path / "broken").run()
    assert after.findings.steps == straight.findings.steps > 8
    for one, other in zip(straight.head.parameters(), after.head.parameters(), strict=True):
        assert torch.equal(one, other)


def task(target: TinyTarget, judged_on: int) -> Task:
    made = recipe(layers=1)
    held_out = held_out_batches(texts(judged_on, seed=0 if judged_on == 24 else 1), SHAPE)
    head = made.head(target, torch.arange(48), 0)
    return Task(made, head, teacher(), Batches(InMemory(texts(24)), SHAPE, seed=0), held_out)


def settings(**options: object) -> Settings:
    wanted = {"tokens": 4000, "precision": "fp32", "patience": 0, "judgements": 4, "learning_rate": 1e-2}
    return Settings(**wanted | options)


def test_the_command_makes_a_model_that_drafts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.train.evaluation.payoff.TOKENS", 8)
    options = ["--inner", "32", "--tokens", "600", "--answer-max-tokens", "10"]
    model, output, words = training("draft_model", tmp_path, *options)
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["method"] for row in result["bought"]] == ["none", "ngram", "draft_model, untrained", "draft_model"]
    made = json.loads((output / "made.json").read_text())
    assert (made["cut"], made["training"]["settings"]["tokens"]) == ({"layers": [0], "inner": 32}, 600)
    prompt = [5, 6, 7, 8]
    plain = LLM(model, speculation="none").generate(prompt)[0]
    drafted = LLM(model, speculation=Speculation("draft_model", options={"model": str(output)})).generate(prompt)[0]
    assert drafted.token_ids == plain.token_ids
    assert drafted.speculation.drafted[0] > 0
    capsys.readouterr()
    assert main(["export", str(output), "--to", "speculators", "--output", str(tmp_path / "out")]) == 2
    assert "draft is a whole model" in capsys.readouterr().err


def test_a_wrong_layer_is_refused_before_any_answer_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.dumps({"prompt": f"say {number} aloud"}) + "\n" for number in range(100)]
    (tmp_path / "prompts.jsonl").write_text("".join(lines))
    words = ["train", "draft_model", "--model", str(make_folder(tmp_path / "model"))]
    words += ["--data", str(tmp_path / "prompts.jsonl"), "--output", str(tmp_path / "draft")]
    for options, problem in (
        (["--layers", "3"], "the target has 2 layers, so keep from 1 to 2 of them, not 3"),
        (["--chosen-layers", "0,2"], "there is no layer 2 to keep: the target's are 0 to 1"),
        (["--inner", "65", "--layers", "1"], "has 64 channels in a feed-forward part; keep at most as many, not 65"),
        (["--objective", "mse"], "there is no objective 'mse'"),
    ):
        assert main([*words, *options]) == 2
        assert problem in capsys.readouterr().err
    assert not (tmp_path / "draft").exists()
