"""``outrider generate``: complete one prompt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from outrider.cli import output
from outrider.cli.options import CACHE, SAMPLING, SPECULATION, CacheFlags, ModelFlags, SamplingFlags, SpeculationFlags
from outrider.errors import ConfigError, NumericsError, RequestError
from outrider.sampling.params import SamplingParams

if TYPE_CHECKING:
    from outrider.completion import Choice
    from outrider.llm import LLM


def generate(
    prompt: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    model: ModelFlags,
    sampling: SamplingFlags = SAMPLING,
    speculation: SpeculationFlags = SPECULATION,
    cache: CacheFlags = CACHE,
    prompt_file: Path | None = None,
    chat: Annotated[bool | None, Parameter(negative="--raw")] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Complete one prompt.

    Args:
        prompt: the text; - reads standard input.
        model: which model, and how it is run.
        sampling: how tokens are chosen.
        speculation: how to speculate.
        cache: what is kept between requests.
        prompt_file: read the prompt from this file.
        chat: put the prompt through the model's chat template, as is done by default where it has one; --raw does not.
        as_json: print one JSON object instead of the text.
    """
    text = read_prompt(prompt, prompt_file)
    params, plan = sampling.params(), speculation.chosen(model.model)
    llm = model.load(plan, cache)
    tokens = encode(llm, text, chat)
    choice = _stream(llm, tokens, params, silent=as_json)
    seconds = llm.engine.seconds
    if as_json:
        output.write_json(output.result(choice, len(tokens), plan.facts, seconds))
    else:
        output.side().print(output.figures_line(choice.speculation, seconds, plan.verifier), style="dim")
    return 0


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """The prompt's text, from wherever the user put it.

    Raises:
        ConfigError: there is none, there are two, or the file cannot be read.
        RequestError: it is empty.
    """
    if (prompt is None) == (prompt_file is None):
        raise ConfigError("give one prompt: as an argument, as - for standard input, or with --prompt-file")
    try:
        if prompt_file is not None:
            text = prompt_file.read_text(encoding="utf-8")
        else:
            text = sys.stdin.read() if prompt == "-" else str(prompt)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompt in {prompt_file or 'standard input'} cannot be read: {error}") from error
    if not text.strip():
        raise RequestError("the prompt is empty; give it at least one word")
    return text


def encode(llm: LLM, text: str, chat: bool | None) -> list[int]:
    """Token ids of a prompt: through the chat template where that is wanted, or left open and there is one."""
    templated = chat if chat is not None else bool(llm.tokenizer and llm.tokenizer.chat_template)
    return llm.encode_chat([{"role": "user", "content": text}]) if templated else llm.encode(text)


def _stream(llm: LLM, tokens: list[int], params: SamplingParams, *, silent: bool) -> Choice:
    """Complete, printing the text as it comes."""
    whole = None
    for chunk in llm.stream(tokens, params):
        if not silent:
            sys.stdout.write(chunk.text)
            sys.stdout.flush()
        whole = chunk.choice
    if not silent:
        sys.stdout.write("\n")
        sys.stdout.flush()
    assert whole is not None
    if whole.error is not None:
        raise NumericsError(whole.error)
    return whole
