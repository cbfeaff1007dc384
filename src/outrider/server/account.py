"""What a request came to: tokens, drafts and seconds."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.metrics import SpeculationStats
from outrider.requests.request import Request
from outrider.server.wire.shared import CompletionDetails, PromptDetails, SpeculationUsage, Timings, Usage


def usage(
    groups: Sequence[Sequence[Request]], algorithm: str, *, completion: int, predicts: bool, reasoning: int = 0
) -> Usage:
    """Tokens and drafts of all choices of all prompts.

    Args:
        groups: the requests of each prompt.
        completion: tokens that the client has got; the engine may be further.
        algorithm: the server's own method, for requests that no method has served.
        predicts: whether the client gave a prediction, so that its drafts are counted as OpenAI does.
        reasoning: tokens of reasoning.
    """
    requests = [request for group in groups for request in group]
    prompt = sum(group[0].prompt_length for group in groups)
    stats = SpeculationStats()
    for request in requests:
        stats.merge(request.stats)
    drafted, tested, accepted = sum(stats.drafted), sum(stats.tested), sum(stats.accepted)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails(cached_tokens=sum(group[0].cached_tokens or 0 for group in groups)),
        completion_tokens_details=CompletionDetails(
            reasoning_tokens=reasoning,
            accepted_prediction_tokens=accepted if predicts else 0,
            rejected_prediction_tokens=drafted - accepted if predicts else 0,
        ),
        speculation=SpeculationUsage(
            algorithm=requests[0].method or algorithm,
            rounds=stats.rounds,
            drafted=drafted,
            tested=tested,
            accepted=accepted,
            acceptance_rate=round(stats.acceptance_rate, 4),
            accepted_length=round(stats.mean_accepted_length, 4),
            forced=stats.forced,
        ),
    )


def timings(requests: Sequence[Request], one_row: float | None) -> Timings:
    """How long the outputs took, the slowest counting.

    Args:
        requests: all of them ended.
        one_row: seconds of a pass with one row; None if unknown.
    """
    queued = min(request.times.queued for request in requests)
    admitted = min(request.times.admitted or request.times.ended for request in requests)
    first = min(request.times.first_token or request.times.ended for request in requests)
    ended = max(request.times.ended for request in requests)
    tokens = sum(len(request.inputs) - request.prompt_length for request in requests)
    decoding = ended - first
    return Timings(
        queue_s=round(admitted - queued, 6),
        first_token_s=round(first - queued, 6),
        total_s=round(ended - queued, 6),
        tokens_per_second=round(max(0, tokens - len(requests)) / decoding, 3) if decoding > 0 else 0.0,
        plain_tokens_per_second=round(1 / one_row, 3) if one_row else None,
    )
