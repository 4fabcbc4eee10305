"""Other engines over the same model: ``vllm``, or ``transformers``' continuous batching. Answers lines of JSON.

All answers of a batch are requested at once; the process reports the time until the last one is complete.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Generate = Callable[[list[list[int]], int], int]
"""Prompts and the tokens of each answer → tokens in all."""


def vllm(request: dict[str, Any]) -> Generate:
    from vllm import LLM, SamplingParams

    # What it writes to stdout would be taken for answers.
    model = LLM(
        model=request["folder"],
        dtype="bfloat16",
        skip_tokenizer_init=True,
        max_model_len=request["context"],
        max_num_seqs=request["streams"],
        enable_prefix_caching=False,
    )

    def generate(prompts: list[list[int]], tokens: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        done = model.generate(given, params, use_tqdm=False)
        return sum(len(answer.outputs[0].token_ids) for answer in done)

    return generate


def transformers(request: dict[str, Any]) -> Generate:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    device = "cuda" if request["device"] == "auto" else request["device"]
    model = AutoModelForCausalLM.from_pretrained(
        request["folder"], dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    model = model.to(device).eval()

    sized = 0

    def generate(prompts: list[list[int]], tokens: int) -> int:
        nonlocal sized
        if sized not in (0, len(prompts)):
            # Its cache was sized for as many as came first.
            model.destroy_cached_continuous_batching_manager()
        sized = len(prompts)
        # One length for all: it knows no other way to stop than that and an end token, which random weights lack.
        config = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
        # Without a persistent manager each call would set up its cache and record its CUDA graphs anew.
        done = model.generate_batch(
            inputs=prompts, generation_config=config, progress_bar=False, persistent_manager=True
        )
        return sum(len(output.generated_tokens) for output in done.values())

    return generate


ENGINES = {"vllm": vllm, "transformers": transformers}


def main() -> None:
    name, request = sys.argv[1], json.loads(sys.argv[2])
    answers, sys.stdout = sys.stdout, sys.stderr
    began = time.perf_counter()
    generate = ENGINES[name](request)

    def write_line(answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    write_line({"seconds": time.perf_counter() - began})
    for line in sys.stdin:
        question = json.loads(line)
        began = time.perf_counter()
        try:
            count = generate(question["prompts"], question["tokens"])
            wanted = len(question["prompts"]) * question["tokens"]
            if count != wanted:
                raise ValueError(f"{name} gave {count} tokens, not {wanted}")
            write_line({"seconds": time.perf_counter() - began})
        except (
            Exception
        ) as error:  # Another project's code: the error is reported, and smaller batches may work.
            write_line({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
