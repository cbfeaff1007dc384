"""OpenVINO GenAI on the GGUF file: plain and prompt lookup."""

import argparse
import time

import openvino
import openvino_genai
from worker import serve


def generate(pipeline, request, **options):
    """Greedy text; the pipeline's own metrics tell the time after the first token."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.do_sample, config.apply_chat_template = request["max_tokens"], False, False
    for name, value in options.items():
        setattr(config, name, value)
    begun = time.perf_counter()
    result = pipeline.generate([request["text"]], config)
    whole = time.perf_counter() - begun
    metrics = result.perf_metrics
    first = metrics.get_ttft().mean / 1e3
    return {
        "text": result.texts[0],
        "tokens": metrics.get_num_generated_tokens(),
        "prefill_s": first,
        "decode_s": whole - first,
    }


def main():
    """Load the pipelines and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    parser.add_argument("--threads", type=int, default=2)
    wishes = parser.parse_args()
    shared = {"INFERENCE_NUM_THREADS": wishes.threads}
    plain = openvino_genai.LLMPipeline(wishes.target, "CPU", **shared)
    lookup = openvino_genai.LLMPipeline(wishes.target, "CPU", prompt_lookup=True, **shared)
    arms = {
        "plain": lambda request: generate(plain, request),
        "lookup": lambda request: generate(lookup, request, num_assistant_tokens=5, max_ngram_size=3),
    }
    able = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    build = f"openvino {openvino.get_version()}, {' '.join(map(str, able))}"
    serve(f"openvino-genai {openvino_genai.get_version()}", build, arms)


main()
