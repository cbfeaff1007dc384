"""What the subcommands print: streamed text, a line of figures, one JSON object."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import Progress

from outrider.errors import ConfigError
from outrider.metrics import Prediction
from outrider.verify.base import rule_label

if TYPE_CHECKING:
    from outrider.completion import Choice, Chunk
    from outrider.metrics import PhaseSeconds, SpeculationStats
    from outrider.target.tokenizer import Tokenizer
    from outrider.verify.base import Verifier

ACCEPTED_STYLE: Final = "green"
_FILE_WIDTH: Final = 140


def screen() -> Console:
    """The console of standard output."""
    return _console(stderr=False)


def side() -> Console:
    """The console of standard error, for what is not the result."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _FILE_WIDTH  # a file has no edge that tables must fit into
    return console


def write_json(value: Any) -> None:
    """Print one JSON object on one line of standard output."""
    sys.stdout.write(json.dumps(finite(value), ensure_ascii=False) + "\n")


def check_writable(*files: Path | None) -> None:
    """Find out before the work, not after it, that a result has nowhere to go.

    Raises:
        ConfigError: naming the file and the folder that is missing.
    """
    for file in files:
        if file is not None and file != Path("-") and not file.absolute().parent.is_dir():
            raise ConfigError(f"{file} cannot be written: there is no folder {file.parent}")


def write_result(result: dict[str, Any], file: Path | None) -> None:
    """Write a bench's result to a file; to standard output, ``-``, all but the single runs goes as one line.

    Raises:
        ConfigError: the file cannot be written.
    """
    if file == Path("-"):
        write_json({key: value for key, value in result.items() if key != "samples"})
    elif file is not None:
        write_text(file, json.dumps(result, ensure_ascii=False, indent=1) + "\n")


def write_text(file: Path, text: str) -> None:
    """Write a file.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the result cannot be written: {error}") from error


@contextmanager
def progress(title: str) -> Iterator[tuple[Callable[[int], None], Callable[[], None]]]:
    """A progress bar where a terminal shows it: what tells it how many steps there are, and what counts one."""
    console = side()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield (lambda total: bar.update(task, total=total), lambda: bar.advance(task))


def finite(value: Any) -> Any:
    """The same with None for numbers JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


class Shades:
    """Tells which part of a streamed text came from accepted drafts.

    The chunks' own text is what counts: it ends where a stop string begins and holds back what may become one.  The
    tokens are decoded once more beside it, only to know which token each character belongs to.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._stream = tokenizer.stream()
        self._waiting: list[tuple[str, bool]] = []

    def split(self, chunk: Chunk) -> Iterator[tuple[str, bool]]:
        """The chunk's text in pieces, each with whether a draft brought it."""
        self._waiting += [
            (self._stream.push(token), place < chunk.drafted) for place, token in enumerate(chunk.token_ids)
        ]
        left = len(chunk.text)
        while left and self._waiting:
            text, drafted = self._waiting.pop(0)
            if len(text) > left:
                self._waiting.insert(0, (text[left:], drafted))
            yield text[:left], drafted
            left -= len(text[:left])


def figures_line(stats: SpeculationStats, seconds: PhaseSeconds, rule: Verifier) -> str:
    """Speed, acceptance and accepted length on one line, and the rule where it changes the text."""
    parts = [] if rule.lossless else [rule_label(rule.name, lossless=False)]
    parts.append(f"{seconds.tokens_per_second:.1f} tokens/s")
    if sum(stats.tested):
        by_position = " ".join(f"{rate:.2f}" for rate in stats.acceptance_by_position[:8])
        parts.append(f"α {stats.acceptance_rate:.2f} (by position {by_position})")
    parts.append(f"τ {stats.mean_accepted_length:.2f}")
    if (prediction := Prediction.of(stats, seconds)) is not None:
        parts.append(f"c {prediction.cost_coefficient:.2f}, predicted speedup {prediction.speedup:.2f}×")
    return " · ".join(parts)


def result(choice: Choice, prompt_tokens: int, facts: dict[str, Any], seconds: PhaseSeconds) -> dict[str, Any]:
    """The JSON object of one completion; ``facts`` say how it speculated."""
    stats = choice.speculation
    return {
        "text": choice.text,
        "token_ids": list(choice.token_ids),
        "finish_reason": choice.finish_reason.value,
        "seed": choice.seed,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "cached_tokens": choice.cached_tokens,
            "completion_tokens": len(choice.token_ids),
            "total_tokens": prompt_tokens + len(choice.token_ids),
        },
        "speculation": facts | speculation_counts(stats) | _prediction(stats, seconds),
        "timing": {
            "prefill_s": seconds.prefill,
            "decode_s": seconds.decode,
            "tokens_per_s": seconds.tokens_per_second,
            "draft_s": seconds.draft,
            "verify_s": seconds.verify,
            "other_s": seconds.other,
        },
    }


def _prediction(stats: SpeculationStats, seconds: PhaseSeconds) -> dict[str, Any]:
    made = Prediction.of(stats, seconds)
    return {
        "cost_coefficient": None if made is None else made.cost_coefficient,
        "predicted_speedup": None if made is None else made.speedup,
    }


def speculation_counts(stats: SpeculationStats) -> dict[str, Any]:
    """What became of drafts, summed over depths, with acceptance by position beside it."""
    return {
        "rounds": stats.rounds,
        "drafted": sum(stats.drafted),
        "tested": sum(stats.tested),
        "accepted": sum(stats.accepted),
        "acceptance_rate": stats.acceptance_rate,
        "acceptance_by_position": _rounded(stats.acceptance_by_position),
        "mean_accepted_length": stats.mean_accepted_length,
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 6) for value in values]
