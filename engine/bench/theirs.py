"""Other engines over the same model: ``vllm``, or ``transformers``' continuous batching. Answers lines of JSON.

They are asked for all answers at once, and say how long all of them took.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Generate = Callable[[list[list[int]], int], int]
"""Prompts and the tokens of each answer → tokens in all."""


def vllm(asked: dict[str, Any]) -> Generate:
    from vllm import LLM, SamplingParams

    # What it writes to stdout would be taken for answers.
    model = LLM(
        model=asked["folder"],
        dtype="bfloat16",
        skip_tokenizer_init=True,
        max_model_len=asked["context"],
        max_num_seqs=asked["streams"],
        enable_prefix_caching=False,
    )

    def generate(prompts: list[list[int]], tokens: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        done = model.generate(given, params, use_tqdm=False)
        return sum(len(answer.outputs[0].token_ids) for answer in done)

    return generate


def transformers(asked: dict[str, Any]) -> Generate:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    device = "cuda" if asked["device"] == "auto" else asked["device"]
    model = AutoModelForCausalLM.from_pretrained(
        asked["folder"], dtype=torch.bfloat16, attn_implementation="sdpa"
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
    name, asked = sys.argv[1], json.loads(sys.argv[2])
    answers, sys.stdout = sys.stdout, sys.stderr
    began = time.perf_counter()
    generate = ENGINES[name](asked)

    def say(answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    say({"seconds": time.perf_counter() - began})
    for line in sys.stdin:
        question = json.loads(line)
        began = time.perf_counter()
        try:
            count = generate(question["prompts"], question["tokens"])
            wanted = len(question["prompts"]) * question["tokens"]
            if count != wanted:
                raise ValueError(f"{name} gave {count} tokens, not {wanted}")
            say({"seconds": time.perf_counter() - began})
        except Exception as error:  # Somebody else's program: it is told, and smaller batches may do.
            say({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
