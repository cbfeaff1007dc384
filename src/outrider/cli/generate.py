"""``outrider generate``: complete one prompt."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from outrider.cli import figures, output
from outrider.cli.help import OUTPUT
from outrider.cli.options import CACHE, SPECULATION, CacheFlags, CheckedSpeculation, ModelFlags, SpeculationFlags
from outrider.cli.sampling import CompletionFlags
from outrider.errors import ConfigError, NumericsError, RequestError, cause
from outrider.metrics import SpeculationStats
from outrider.sampling.params import SamplingParams

if TYPE_CHECKING:
    from outrider.completion import Choice
    from outrider.llm import LLM

STANDARD_INPUT: Final = "-"


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """Where the prompt comes from, and what to print."""

    prompt_file: Annotated[Path | None, Parameter(metavar="FILE")] = None
    """Read the prompt from a file; - is standard input."""
    chat: Annotated[bool | None, Parameter(negative="--raw")] = None
    """Chat template or not; default: if it has one."""
    verbose: Annotated[bool, Parameter(negative="")] = False
    """Print acceptance rates and the cost of rounds too."""
    as_json: Annotated[bool, output.AS_JSON] = False
    """Print one JSON object instead; errors too."""


SAMPLING: Final = CompletionFlags()
SHOWN: Final = OutputFlags()
"""Defaults of the signature."""


def generate(
    prompt: str | None = None,
    /,
    *,
    model: ModelFlags,
    sampling: CompletionFlags = SAMPLING,
    speculation: SpeculationFlags = SPECULATION,
    cache: CacheFlags = CACHE,
    shown: OutputFlags = SHOWN,
) -> int:
    """Complete one prompt.

    Args:
        prompt: The text; - or no prompt reads standard input.
        model: which model, and how to run it.
        sampling: how tokens are chosen.
        speculation: how to speculate.
        cache: options of the KV cache.
        shown: where the prompt comes from, and what to print.
    """
    text = read_prompt(prompt, shown.prompt_file)
    params, plan = sampling.params(), speculation.chosen(model.model)
    llm = model.load(plan, cache.config)
    tokens = encode(llm, text, shown.chat)
    if shown.as_json:
        _print_json(llm, tokens, params, plan)
    else:
        _print_text(llm, tokens, params, verbose=shown.verbose)
    return 0


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """Read the prompt from an argument, a file or standard input.

    Args:
        prompt: the text; ``-`` reads standard input, as does None without a file when input is piped.
        prompt_file: a file with the text; ``-`` reads standard input.

    Raises:
        ConfigError: there is no prompt, there are two, or the file cannot be read.
        RequestError: the prompt is empty.
    """
    if prompt is not None and prompt_file is not None:
        raise ConfigError("give one prompt: as an argument or with --prompt-file, not both")
    text = None if prompt == STANDARD_INPUT else prompt
    file = None if prompt_file == Path(STANDARD_INPUT) else prompt_file
    nobody = prompt is None and prompt_file is None and sys.stdin is not None and sys.stdin.isatty()
    if text is None and file is None and (nobody or sys.stdin is None):
        raise ConfigError("give a prompt: as an argument, with --prompt-file, or through a pipe")
    try:
        if text is None:
            text = sys.stdin.read() if file is None else file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # no text, or no path
        raise ConfigError(f"the prompt in {file or 'standard input'} cannot be read: {cause(error)}") from error
    if not text.strip():
        raise RequestError("the prompt is empty; give it at least one word")
    return text


def encode(llm: LLM, text: str, chat: bool | None) -> list[int]:
    """Token ids of a prompt; ``chat`` None applies the chat template if the model has one."""
    templated = chat if chat is not None else bool(llm.tokenizer and llm.tokenizer.chat_template)
    return llm.encode_chat([{"role": "user", "content": text}]) if templated else llm.encode(text)


def _print_json(llm: LLM, tokens: list[int], params: SamplingParams, plan: CheckedSpeculation) -> None:
    completion = llm.generate(tokens, params)[0]
    for choice in completion.choices:
        _check(choice)
    output.write_json(figures.result(completion, plan.facts, llm.tokenizer))


def _print_text(llm: LLM, tokens: list[int], params: SamplingParams, *, verbose: bool) -> None:
    """Stream one text to standard output, or print several; everything else goes to standard error."""
    if params.n == 1 and params.prompt_logprobs is None:
        choices, told = [_stream(llm, tokens, params)], []
    else:
        done = llm.generate(tokens, params)[0]
        choices, told = list(done.choices), [done.prompt_logprobs]
        for choice in choices:
            _check(choice)
            sys.stdout.write(f"[{choice.index + 1}] {choice.text}\n" if params.n > 1 else f"{choice.text}\n")
    sys.stdout.flush()
    side = output.side()
    for logprobs in (*told, *(choice.logprobs for choice in choices)):
        if logprobs is not None:
            side.print(_table(llm, logprobs))
    for choice in choices:
        cut = figures.cut_notice(choice, params, llm.engine.target.context_length, "--max-tokens N")
        if cut is not None:
            output.tell(f"[{choice.index + 1}] {cut}" if params.n > 1 else cut)
    _print_figures(llm, tokens, choices, params, verbose=verbose)


def _print_figures(
    llm: LLM, tokens: Sequence[int], choices: Sequence[Choice], params: SamplingParams, *, verbose: bool
) -> None:
    stats, seconds, plain = SpeculationStats(), llm.engine.seconds.copy(), None
    for choice in choices:
        stats.merge(choice.speculation)
    if figures.wants_plain_rounds(stats, seconds):
        with suppress(KeyboardInterrupt):  # the text is complete; only the speedup would be missing
            plain = figures.plain_costs(llm, tokens, choices[0], params)
    for line in figures.lines(llm, stats, seconds, plain, verbose=verbose):
        output.tell(line, style="dim")


def _stream(llm: LLM, tokens: list[int], params: SamplingParams) -> Choice:
    whole = None
    for chunk in llm.stream(tokens, params):
        sys.stdout.write(chunk.text)
        sys.stdout.flush()
        whole = chunk.choice
    sys.stdout.write("\n")
    assert whole is not None
    _check(whole)
    return whole


def _check(choice: Choice) -> None:
    """Raise the error that ended a text, if any.

    Raises:
        NumericsError: the text ended with an error.
    """
    if choice.error is not None:
        raise NumericsError(choice.error)


def _table(llm: LLM, told: Sequence[Any]) -> Any:
    """Tokens with their log-probabilities, and the most probable alternatives."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table("token", "log-probability", "most probable", box=SIMPLE_HEAD)
    for token in told:
        if token is not None:
            best = ", ".join(f"{figures.token_text(other, llm.tokenizer)!r} {value:.2f}" for other, value in token.top)
            table.add_row(repr(figures.token_text(token.token_id, llm.tokenizer)), f"{token.logprob:.2f}", best)
    return table
