"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.models.files.tokenizer import Tokenizer
from outrider.requests.request import TokenLogprob
from outrider.requests.stopping import TokenStream
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


class Offsets:
    """Log-probabilities of a completion's tokens, with the place of each in the text so far.

    Args:
        tokenizer: makes text of tokens.
        stream: makes the text.
        start: characters of the text before the first token.
    """

    def __init__(self, tokenizer: Tokenizer, stream: TokenStream, start: int = 0) -> None:
        self._tokenizer, self._stream, self._place = tokenizer, stream, start

    def read(self, tokens: Sequence[int], found: Sequence[TokenLogprob | None]) -> CompletionLogprobs:
        """The next tokens' log-probabilities; None for a token that has none, the first of a prompt."""
        offsets = []
        for token in tokens:
            offsets.append(self._place)
            self._place += len(self._stream.push(token))
        return CompletionLogprobs(
            tokens=[_spelling(self._tokenizer, token) for token in tokens],
            token_logprobs=[None if item is None else item.logprob for item in found],
            top_logprobs=[None if item is None else self._top(item) for item in found],
            text_offset=offsets,
        )

    def _top(self, item: TokenLogprob) -> dict[str, float]:
        """The best tokens and the chosen one."""
        ranked = [*item.top, (item.token_id, item.logprob)]
        best: dict[str, float] = {}
        for token, logprob in ranked:
            best.setdefault(_spelling(self._tokenizer, token), logprob)
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
