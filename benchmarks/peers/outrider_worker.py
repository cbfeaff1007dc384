"""Outrider: plain and every method asked for."""

import argparse
import json
import time

from worker import serve

from outrider import LLM, CacheConfig, SamplingParams, Speculation, __version__
from outrider.kernels.native import cpu, set_threads


def generate(llm, request):
    """Greedy text; the engine's own clock tells prompt passes and decoding apart."""
    before, begun = llm.engine.seconds.copy(), time.perf_counter()
    done = llm.generate([request["token_ids"]], SamplingParams(max_tokens=request["max_tokens"]))[0]
    whole, spent = time.perf_counter() - begun, llm.engine.seconds.minus(before)
    ends = set() if llm.tokenizer is None else llm.tokenizer.eos_ids
    tokens = [token for token in done.token_ids if token not in ends]
    stats = done.speculation
    return {
        "token_ids": tokens,
        "tokens": len(tokens),
        "prefill_s": spent.prefill,
        "decode_s": spent.decode,
        "whole_s": whole,
        "acceptance_rate": stats.acceptance_rate,
        "mean_accepted_length": stats.mean_accepted_length,
    }


def main():
    """Load the models once and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--methods", type=json.loads, required=True, help='{"arm": {"method": …, "option": …}}')
    wishes = parser.parse_args()
    if wishes.threads:
        set_threads(wishes.threads)
    cold = CacheConfig(prefix_cache=False)  # no run finds its prompt computed by the one before
    first = LLM(wishes.target, speculation="none", cache=cold)
    target, tokenizer = first.engine.target, first.tokenizer
    drafts = {}
    if wishes.draft:
        drafts[wishes.draft] = LLM(wishes.draft, speculation="none", quantization="w4").engine.target
    arms = {"plain": lambda request: generate(first, request)}
    for arm, options in wishes.methods.items():
        method = options.pop("method")
        if options.pop("drafts", False):
            options["model"] = wishes.draft
        plan = Speculation(method, options=options)
        llm = LLM.from_model(target, tokenizer, speculation=plan, draft_models=drafts, cache=cold)
        arms[arm] = lambda request, llm=llm: generate(llm, request)
    build = "no kernels" if cpu is None else f"kernels: {cpu.kernel_name()}"
    serve(f"outrider {__version__}", build, arms)


main()
