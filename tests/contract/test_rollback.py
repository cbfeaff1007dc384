"""A method is refused, before anything runs, on a model that could not take back its rejected drafts."""

from __future__ import annotations

import pytest
from table_model import TableModel
from tiny import tiny_model
from wrapped import Wrapped

from contract.cases import by_id, configs, draft_models, make
from outrider import LLM, Speculation
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.specinfer import SpecInfer
from outrider.errors import ConfigError
from outrider.models.base import Rollback, TargetModel

CASES = [case for case, _ in configs("good")]


class OneWay(Wrapped):
    """A model whose state can take back less than a tree."""

    def __init__(self, target: TargetModel, rollback: Rollback) -> None:
        super().__init__(target)
        self.rollback = rollback


@pytest.mark.parametrize("case", CASES)
def test_a_chain_alone_can_be_taken_back(case: str) -> None:
    config, target = by_id(case), OneWay(tiny_model(0), Rollback.CHAIN)
    if config.needs.branching:
        with pytest.raises(ConfigError, match=f"^{config.method} proposes trees that branch, but the target can take"):
            make(config, target=target)
    else:
        make(config, target=target)


@pytest.mark.parametrize("case", CASES)
def test_nothing_can_be_taken_back(case: str) -> None:
    config, target = by_id(case), OneWay(tiny_model(0), Rollback.NONE)
    if config.most_nodes > 1:
        with pytest.raises(ConfigError, match=f"^{config.method} drafts, but the target cannot take back"):
            make(config, target=target)
    else:
        make(config, target=target)


@pytest.mark.parametrize("config", [DraftModel(model="odd", topk=2), SpecInfer(models=("good", "odd"), topk=2)])
@pytest.mark.parametrize(
    ("rollback", "message"), [(Rollback.CHAIN, "trees that branch"), (Rollback.NONE, "drafts, but")]
)
def test_a_draft_model_takes_back_its_own_drafts(config: object, rollback: Rollback, message: str) -> None:
    known = draft_models() | {"odd": OneWay(tiny_model(1), rollback)}
    with pytest.raises(ConfigError, match=f"{message}.* odd can"):
        LLM.from_model(tiny_model(0), speculation=Speculation(config, verifier="multi-step"), draft_models=known)


@pytest.mark.parametrize("model", [TableModel.random(4, seed=0), Wrapped(tiny_model(0))], ids=["table", "wrapped"])
def test_the_models_of_the_tests_answer_all_that_may_be_asked(model: TargetModel) -> None:
    for name in (*TargetModel.__annotations__, "forward", "embed", "unembed", "unembed_rows"):
        getattr(model, name)
