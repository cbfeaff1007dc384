"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.models.files.tokenizer import Tokenizer
from outrider.requests.request import TokenLogprob
from outrider.server.wire import chat
from outrider.server.wire.completions import CompletionLogprobs


def of_chat(tokenizer: Tokenizer, found: Sequence[TokenLogprob] | None) -> chat.ChoiceLogprobs | None:
    """Log-probabilities of a chat answer's tokens; None where nobody asked."""
    if found is None:
        return None
    content = []
    for item in found:
        top = [chat.TopLogprob(**_token(tokenizer, token), logprob=logprob) for token, logprob in item.top]
        content.append(chat.ChatLogprob(**_token(tokenizer, item.token_id), logprob=item.logprob, top_logprobs=top))
    return chat.ChoiceLogprobs(content=content)


def _token(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    spelled = tokenizer.token_bytes(token)
    return {"token": spelled.decode(errors="replace"), "bytes": list(spelled)}


class CompletionTokens:
    """Log-probabilities of a completion's tokens, with the place of each in the text.

    Args:
        tokenizer: makes text of tokens.
        skips: whether special tokens are left out of the text.
        echo: what the text begins with.
    """

    def __init__(self, tokenizer: Tokenizer, *, skips: bool, echo: str) -> None:
        self._tokenizer, self._stream, self._place = tokenizer, tokenizer.stream(skips), len(echo)

    def read(self, tokens: Sequence[int], found: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """The next tokens' log-probabilities."""
        offsets = []
        for token in tokens:
            offsets.append(self._place)
            self._place += len(self._stream.push(token))
        return _of_completion(self._tokenizer, tokens, found, offsets)


def of_echo(
    tokenizer: Tokenizer, echo: str, tokens: Sequence[int], found: Sequence[TokenLogprob | None]
) -> CompletionLogprobs:
    """Log-probabilities of a prompt's tokens, with the place of each in the prompt's text.

    Args:
        tokenizer: makes text of tokens.
        echo: the prompt's text.
        tokens: the prompt.
        found: None for the first token, which has none.
    """
    stream, offsets, place = tokenizer.stream(skip_special_tokens=False), list[int](), 0
    for token in tokens:
        offsets.append(place)
        if token in tokenizer.special_ids and not echo.startswith(tokenizer.token_text(token), place):
            continue  # it was added to the text, or is left out of it
        place = min(place + len(stream.push(token)), len(echo))
    return _of_completion(tokenizer, tokens, found, offsets)


def _of_completion(
    tokenizer: Tokenizer, tokens: Sequence[int], found: Sequence[TokenLogprob | None], offsets: list[int]
) -> CompletionLogprobs:
    return CompletionLogprobs(
        tokens=[_spelling(tokenizer, token) for token in tokens],
        token_logprobs=[None if item is None else item.logprob for item in found],
        top_logprobs=[None if item is None else _top(tokenizer, item) for item in found],
        text_offset=offsets,
    )


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """Log-probabilities of some tokens and of those that follow."""
    return CompletionLogprobs(
        tokens=first.tokens + second.tokens,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        top_logprobs=(first.top_logprobs or []) + (second.top_logprobs or []),
        text_offset=first.text_offset + second.text_offset,
    )


def _top(tokenizer: Tokenizer, item: TokenLogprob) -> dict[str, float]:
    """The best tokens and the chosen one."""
    best: dict[str, float] = {}
    for token, logprob in [*item.top, (item.token_id, item.logprob)]:
        best.setdefault(_spelling(tokenizer, token), logprob)
    return best


def _spelling(tokenizer: Tokenizer, token: int) -> str:
    r"""A token's text; of a token that is no text by itself, its bytes as OpenAI writes them: ``bytes:\xf0\x9f``.

    Two tokens then have one name only if they are the same bytes.
    """
    spelled = tokenizer.token_bytes(token)
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def of_prompt(tokenizer: Tokenizer, found: Sequence[TokenLogprob | None]) -> list[dict[str, Any] | None]:
    """Log-probabilities of a prompt's tokens as vLLM gives them: by token id, with rank and text."""
    result: list[dict[str, Any] | None] = []
    for item in found:
        if item is None:
            result.append(None)
            continue
        ranks: dict[int, tuple[int | None, float]] = {
            token: (rank + 1, logprob) for rank, (token, logprob) in enumerate(item.top)
        }
        ranks.setdefault(item.token_id, (None, item.logprob))
        result.append(
            {
                str(token): {"logprob": logprob, "rank": rank, "decoded_token": tokenizer.token_text(token)}
                for token, (rank, logprob) in ranks.items()
            }
        )
    return result
