"""Grammars are processors: they never see a history they forbade, and what they leave is the same with drafts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from byte_text import SIZE, byte_tokenizer
from oracles import Scripted
from tiny import tiny_model

from contract.test_situations import END, GREEDY, Script, plainly
from outrider import LLM, SamplingParams, Speculation
from outrider.drafters.base import DrafterConfig, DraftSequence, Needs
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import Ngram
from outrider.requests.stopping import FinishReason
from outrider.tree import TokenTree


@dataclass(frozen=True)
class NamesOnly:
    """The grammar of ``{"names":["…","…"]}``; it refuses to continue a text that broke it already."""

    start: int
    """Tokens of the prompt."""
    most_names: int = 4
    most_letters: int = 9

    def __call__(self, history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """Ban every token but those of the letters that may follow."""
        text = byte_tokenizer().decode(list(history[self.start :]))
        letters = self.after(text)
        tokens = [byte_tokenizer().encode(letter)[0] for letter in letters] or [END]
        left = torch.full_like(logits, -torch.inf)
        left[tokens] = logits[tokens]
        return left

    def after(self, text: str) -> str:
        """The letters that may follow a text; none where it is whole."""
        allowed, names, letters = "{", 1, 0
        head = '{"names":["'
        for place, letter in enumerate(text):
            if letter not in allowed:
                raise ValueError(f"{text!r} is not of the grammar")
            if place + 1 < len(head):
                allowed = head[place + 1]
            elif allowed == '"' and letters == 0:  # a name begins
                allowed = NAME_LETTERS
            elif letter in NAME_LETTERS:
                letters += 1
                allowed = '"' if letters == self.most_letters else NAME_LETTERS + '"'
            elif letter == '"':
                letters = 0
                allowed = "]" if names == self.most_names else ",]"
            elif letter == ",":
                names += 1
                allowed = '"'
            else:
                allowed = {"]": "}", "}": ""}[letter]
        return allowed


NAME_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz "


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("config", [DraftModel(model="bad"), Ngram(min_match=1, num_draft_tokens=4)])
def test_thirty_requests_for_json_get_json(config: DrafterConfig, temperature: float) -> None:
    """N-grams of the prompt are prose, nearly all of it forbidden; a draft model is asked under the same grammar."""
    target = tiny_model(0, SIZE)
    prompts = [byte_tokenizer().encode(f"the hat of number {n} is a hat, the hat is the hat") for n in range(30)]
    wishes = [
        SamplingParams(max_tokens=120, temperature=temperature, seed=n, processors=(NamesOnly(len(prompt)),))
        for n, prompt in enumerate(prompts)
    ]
    llm = LLM.from_model(target, byte_tokenizer(), speculation=config, draft_models={"bad": tiny_model(1, SIZE)})
    done = llm.generate(prompts, wishes)
    assert [c.finish_reason for c in done] == [FinishReason.STOP] * 30, [c.choices[0].error for c in done]
    assert all(1 <= len(json.loads(c.text)["names"]) <= 4 for c in done)
    assert [c.token_ids for c in done] == [c.token_ids for c in plainly(target).generate(prompts, wishes)]
    assert sum(sum(c.speculation.drafted) for c in done) > 0


def test_names_found_in_a_long_document_come_whole() -> None:
    """Long accepted spans under a grammar: nothing is cut, and the text is that without drafts."""
    names = [f"Anna {a}{b}" for a in "ABCDE" for b in "FGHIJ"]
    listed = ",".join(f'"{name}"' for name in names)
    prompt = byte_tokenizer().encode(f"Find the names in this document. (They said: {listed}.) " * 2)
    answer = '{"names":[' + listed + "]}"
    target = Script(prompt, byte_tokenizer().encode(answer), context_length=4096)
    params = SamplingParams(max_tokens=300, processors=(NamesOnly(len(prompt), most_names=40),))
    config = Ngram(num_draft_tokens=5)
    done = LLM.from_model(target, byte_tokenizer(), speculation=config).generate(prompt, params)[0]
    assert json.loads(done.text) == {"names": names}
    assert done.token_ids == plainly(target).generate(prompt, params)[0].token_ids
    assert done.finish_reason is FinishReason.STOP
    assert done.speculation.mean_accepted_length > 3.0


def json_like(history, logits):  # type: ignore[no-untyped-def]
    """A tiny grammar: letters and commas alternate.  It refuses to continue a text that broke it already."""
    letters, comma = range(40, 60), 11
    output = list(history[16:])
    for place, token in enumerate(output):
        if (token == comma) != bool(place % 2):
            raise ValueError("the text is not of the grammar")
    allowed = torch.full_like(logits, -torch.inf)
    wanted = [comma] if len(output) % 2 else list(letters)
    allowed[wanted] = logits[wanted]
    return allowed


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(max_tokens=24, temperature=1.0, seed=6)])
@pytest.mark.parametrize("rule", ["coupled", "point-mass", "rejection", "multi-step"])
def test_drafts_that_a_grammar_forbids_are_rejected(rule: str, params: SamplingParams) -> None:
    """A grammar never sees a drafted history that it has forbidden itself; the text is as without drafts."""
    target = tiny_model(0, SIZE)
    prompt = [3] * 16
    params = dataclasses.replace(params, processors=(json_like,), ignore_eos=True)
    dice = torch.Generator().manual_seed(0)

    def prose(sequence: DraftSequence) -> TokenTree:
        guess = torch.randint(SIZE, (min(sequence.nodes - 1, sequence.depth),), generator=dice).tolist()
        guess[:2] = [45, 11] if (len(sequence.tokens) - 16) % 2 == 0 else [11, 45]
        return sequence.builder().chain(guess[: sequence.depth]).build()

    plan = Speculation(Scripted(prose, most_nodes=6, needs=Needs(deterministic=True)), verifier=rule)
    llm = LLM.from_model(target, byte_tokenizer(), speculation=plan)
    done = llm.generate([prompt] * 3, params)
    assert all(c.finish_reason is FinishReason.LENGTH for c in done), [c.choices[0].error for c in done]
    assert all(token == 11 for c in done for token in c.token_ids[1::2])
    assert all(40 <= token < 60 for c in done for token in c.token_ids[::2])
    if params.temperature == 0 or rule in ("coupled", "point-mass"):
        assert {c.token_ids for c in done} == {plainly(target).generate(prompt, params)[0].token_ids}
