"""Log-probabilities of tokens under the model itself, before any sampling parameter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.requests.request import TokenLogprob


def token_logprobs(logits: torch.Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """The log-probability of each token, with the most probable ones beside it.

    Args:
        logits: [tokens, vocabulary], the row each token was chosen from.
        tokens: the chosen tokens.
        top: how many of the most probable tokens to list.
    """
    if not tokens:
        return []
    table = torch.log_softmax(logits.float(), dim=1)
    chosen = table.gather(1, torch.tensor(tokens, device=table.device).unsqueeze(1)).squeeze(1).tolist()
    values, ids = torch.topk(table, min(top, table.shape[1]), dim=1)
    return [
        TokenLogprob(token, logprob, tuple(zip(row_ids, row_values, strict=True)))
        for token, logprob, row_ids, row_values in zip(tokens, chosen, ids.tolist(), values.tolist(), strict=True)
    ]


def prompt_logprobs(
    logits: torch.Tensor, prompt: Sequence[int], first: int, known: int, top: int
) -> list[TokenLogprob]:
    """Log-probabilities of the prompt tokens that a chunk's rows predict.

    Args:
        logits: [rows, vocabulary], rows at positions ``first`` onwards.
        prompt: the prompt's token ids.
        first: position of the first row.
        known: prompt tokens already reported; a chunk computed again reports none twice.
        top: how many of the most probable tokens to list.
    """
    skip = max(0, known - first - 1)
    tokens = prompt[first + 1 + skip : first + 1 + len(logits)]
    return token_logprobs(logits[skip : skip + len(tokens)], tokens, top)
