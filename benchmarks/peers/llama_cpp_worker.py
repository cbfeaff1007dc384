"""llama.cpp through llama-cpp-python: plain, prompt lookup, and a draft model."""

import argparse
import time
from importlib.metadata import version

import numpy as np
from llama_cpp import Llama, llama_print_system_info
from llama_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding
from worker import serve


class ModelDraft(LlamaDraftModel):
    """Drafts with a second model, whose cache follows the text."""

    def __init__(self, model, count):
        self.model, self.count = model, count

    def __call__(self, input_ids, **options):
        """The next tokens the draft model would choose."""
        drafted = []
        for token in self.model.generate([int(i) for i in input_ids], temp=0.0, top_k=1, repeat_penalty=1.0):
            drafted.append(token)
            if len(drafted) == self.count:
                break
        return np.array(drafted, dtype=np.intc)


def generate(model, request):
    """Greedy text, timed from the first token on."""
    begun = time.perf_counter()
    tokens, first = [], None
    for token in model.generate(request["token_ids"], temp=0.0, top_k=1, repeat_penalty=1.0):
        if first is None:
            first = time.perf_counter()
        if token == model.token_eos():
            break
        tokens.append(token)
        if len(tokens) == request["max_tokens"]:
            break
    ended = time.perf_counter()
    return {"token_ids": tokens, "tokens": len(tokens), "prefill_s": first - begun, "decode_s": ended - first}


def main():
    """Load the arms' models and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=2048)
    wishes = parser.parse_args()
    shared = {"n_ctx": wishes.context, "n_threads": wishes.threads, "n_threads_batch": wishes.threads, "verbose": False}
    models = {"plain": Llama(wishes.target, **shared)}
    for count in (4, 10):
        drafter = LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=count)
        models[f"lookup-{count}"] = Llama(wishes.target, draft_model=drafter, logits_all=True, **shared)
    if wishes.draft:
        for count in (4,):
            drafter = ModelDraft(Llama(wishes.draft, **shared), count)
            models[f"draft-{count}"] = Llama(wishes.target, draft_model=drafter, logits_all=True, **shared)
    arms = {name: lambda request, model=model: generate(model, request) for name, model in models.items()}
    build = llama_print_system_info().decode().strip(" |")
    serve(f"llama-cpp-python {version('llama-cpp-python')}", build, arms)


main()
