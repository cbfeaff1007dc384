"""Figures of a completion: the line under the text, and the JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from outrider.engine.engine import TARGET
from outrider.metrics import FEWEST_ONE_ROW_ROUNDS, PhaseSeconds, Prediction, RowCosts, SpeculationStats, decoded_alone
from outrider.verify import rule_label

if TYPE_CHECKING:
    from outrider.completion import Choice, Completion
    from outrider.llm import LLM
    from outrider.models.files.tokenizer import Tokenizer
    from outrider.requests.request import TokenLogprob
    from outrider.sampling.params import SamplingParams

_MOST_ROWS_AGAIN: Final = 512
"""Most prompt rows to recompute for timing a few plain rounds."""
_POSITIONS: Final = 8
"""Draft positions whose acceptance rate is printed."""


def plain_costs(llm: LLM, prompt: Sequence[int], choice: Choice, params: SamplingParams) -> RowCosts:
    """Time a few plain rounds: decode the end of a finished text again, without drafts.

    Args:
        llm: the model that wrote the text.
        prompt: token ids of the prompt.
        choice: the finished text.
        params: its sampling parameters.

    Returns:
        The cost of the rounds; empty if the text is too short, or too many rows before its end would be recomputed.
    """
    again = FEWEST_ONE_ROW_ROUNDS + 1  # the first token comes from prefill
    start = [*prompt, *choice.token_ids[:-again]]
    known = llm.engine.pool.cache(TARGET).known_rows(start, len(start))
    if len(choice.token_ids) < again or len(start) - known > _MOST_ROWS_AGAIN:
        return RowCosts()
    plainly = replace(
        params,
        speculate=False,
        seed=choice.seed,
        max_tokens=again,
        min_tokens=0,
        ignore_eos=True,
        stop=(),
        stop_token_ids=(),
        grammar=None,
        n=1,
        logprobs=None,
        prompt_logprobs=None,
    )
    before = llm.engine.seconds.copy()
    for _ in llm.stream(start, plainly):
        pass
    return llm.engine.seconds.minus(before).by_rows


def wants_plain_rounds(stats: SpeculationStats, seconds: PhaseSeconds) -> bool:
    """Whether timing a few plain rounds would give the speedup, which the run itself does not."""
    made = Prediction.of(stats, seconds)
    return made is not None and made.one_row is None and decoded_alone(stats, seconds)


def lines(
    llm: LLM, stats: SpeculationStats, seconds: PhaseSeconds, plain: RowCosts | None, *, verbose: bool
) -> list[str]:
    """The speedup and the speed on one line; with ``verbose`` also the quantities behind them."""
    made = Prediction.of(stats, seconds, plain)
    parts = [] if llm.verifier.lossless else [rule_label(llm.verifier.name, lossless=False)]
    if llm.drafter_config.most_nodes > 1:
        costs = seconds.by_rows if plain is None else seconds.by_rows + plain
        parts.append(
            _speedup(made, costs) if decoded_alone(stats, seconds) else "speedup unknown (several texts at once)"
        )
    parts.append(f"{seconds.tokens_per_second:.1f} tokens/s")
    if made is not None:
        parts.append(f"{stats.mean_accepted_length:.2f} tokens/round")
    told = [" · ".join(parts)]
    return told + _quantities(stats, seconds, made) if verbose else told


def _speedup(made: Prediction | None, costs: RowCosts) -> str:
    if made is None:
        return "speedup unknown (nothing was drafted)"
    if made.one_row is None:
        return "speedup unknown (too few one-row rounds)"
    if made.speedup is None:
        return "speedup unknown (the machine is busy)"
    rounds = len(costs.latest)
    return f"{made.speedup:.2f} × plain (predicted from {rounds} one-row rounds of {1e3 * made.one_row:.1f} ms)"


def _quantities(stats: SpeculationStats, seconds: PhaseSeconds, made: Prediction | None) -> list[str]:
    """τ, α, c and t(rows), each with an explanation."""
    told = [f"τ {stats.mean_accepted_length:.2f}: tokens per round; plain decoding has 1"]
    if sum(stats.tested):
        rates = " ".join(f"{rate:.2f}" for rate in stats.acceptance_by_position[:_POSITIONS])
        told.append(f"α {stats.acceptance_rate:.2f}: acceptance rate, accepted over tested drafts; by position {rates}")
    if made is not None:
        told.append(f"c {made.cost_coefficient:.2f}: time of one draft step over one target pass")
    costs = seconds.by_rows
    curve = ", ".join(f"{n}: {1e3 * costs.mean(n):.1f} ms × {costs.rounds[n]}" for n in sorted(costs.rounds))
    told.append(f"t(rows) {curve or 'none'}: time of a round by rows, without drafting, × number of rounds")
    return told


def cut_notice(choice: Choice, params: SamplingParams, context: int, option: str) -> str | None:
    """One line if a text was cut off, saying how to get more; None if it ended by itself.

    Args:
        choice: the text.
        params: its sampling parameters.
        context: the model's context length.
        option: the option that raises the limit.
    """
    if choice.finish_reason.value != "length":
        return None
    if params.max_tokens is not None and len(choice.token_ids) >= params.max_tokens:
        return f"cut at {len(choice.token_ids)} tokens; {option} raises it"
    return f"cut at {len(choice.token_ids)} tokens: the context of {context} tokens is full"


def result(completion: Completion, facts: dict[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The JSON object of one completed prompt: its first text, and all texts as ``choices``.

    Args:
        completion: the completion.
        facts: method and acceptance rule.
        tokenizer: decodes the tokens of log-probabilities.
    """
    prompt_tokens, seconds, stats = len(completion.prompt_token_ids), completion.seconds, completion.speculation
    emitted = sum(len(choice.token_ids) for choice in completion.choices)
    first, *_ = choices = [_choice(choice, tokenizer) for choice in completion.choices]
    told = {} if completion.prompt_logprobs is None else {"prompt_logprobs": completion.prompt_logprobs}
    return {
        **{key: value for key, value in first.items() if key != "index"},
        "choices": choices,
        **{key: _logprobs(value, tokenizer) for key, value in told.items()},
        "usage": {
            "prompt_tokens": prompt_tokens,
            "cached_tokens": completion.cached_tokens,
            "completion_tokens": emitted,
            "total_tokens": prompt_tokens + emitted,
        },
        "speculation": facts | _counts(stats) | _prediction(completion.prediction),
        "timing": {
            "prefill_s": seconds.prefill,
            "decode_s": seconds.decode,
            "tokens_per_s": seconds.tokens_per_second,
            "draft_s": seconds.draft,
            "verify_s": seconds.verify,
            "other_s": seconds.other,
            "rounds_by_rows": {str(rows): count for rows, count in sorted(seconds.by_rows.rounds.items())},
            "seconds_by_rows": {str(rows): spent for rows, spent in sorted(seconds.by_rows.seconds.items())},
        },
    }


def _choice(choice: Choice, tokenizer: Tokenizer | None) -> dict[str, Any]:
    told = {} if choice.logprobs is None else {"logprobs": _logprobs(choice.logprobs, tokenizer)}
    return {
        "index": choice.index,
        "text": choice.text,
        "token_ids": list(choice.token_ids),
        "finish_reason": choice.finish_reason.value,
        "seed": choice.seed,
    } | told


def _logprobs(tokens: Sequence[TokenLogprob | None], tokenizer: Tokenizer | None) -> list[dict[str, Any] | None]:
    return [
        None
        if token is None
        else {
            "token_id": token.token_id,
            "token": token_text(token.token_id, tokenizer),
            "logprob": token.logprob,
            "top": [
                {"token_id": other, "token": token_text(other, tokenizer), "logprob": logprob}
                for other, logprob in token.top
            ],
        }
        for token in tokens
    ]


def token_text(token: int, tokenizer: Tokenizer | None) -> str:
    """A token as text; special tokens too."""
    return "" if tokenizer is None else tokenizer.decode([token], skip_special_tokens=False)


def _prediction(made: Prediction | None) -> dict[str, Any]:
    return {
        "cost_coefficient": None if made is None else made.cost_coefficient,
        "one_row_s": None if made is None else made.one_row,
        "predicted_speedup": None if made is None else made.speedup,
    }


def _counts(stats: SpeculationStats) -> dict[str, Any]:
    """Counts of drafts over all positions, and the acceptance rate by position."""
    return {
        "rounds": stats.rounds,
        "drafted": sum(stats.drafted),
        "tested": sum(stats.tested),
        "accepted": sum(stats.accepted),
        "forced": stats.forced,
        "acceptance_rate": stats.acceptance_rate,
        "acceptance_by_position": [round(rate, 6) for rate in stats.acceptance_by_position],
        "mean_accepted_length": stats.mean_accepted_length,
    }
