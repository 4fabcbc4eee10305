"""transformers' continuous batching over the same model. Answers lines of JSON."""

from __future__ import annotations

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM, GenerationConfig


def main() -> None:
    asked = json.loads(sys.argv[1])
    began = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(
        asked["folder"], dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    model = model.to("cuda" if asked["device"] == "auto" else asked["device"]).eval()
    print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)
    for line in sys.stdin:
        requests = json.loads(line)["requests"]
        # One length for all: it knows no other way to stop than that and an end token, which random weights lack.
        config = GenerationConfig(
            max_new_tokens=requests[0][1], do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        began = time.perf_counter()
        done = model.generate_batch(
            inputs=[prompt for prompt, _ in requests],
            generation_config=config,
            progress_bar=False,
            # Otherwise each call would set up its cache and record its CUDA graphs anew.
            persistent_manager=True,
        )
        seconds = time.perf_counter() - began
        tokens = sum(len(output.generated_tokens) for output in done.values())
        if tokens != len(requests) * requests[0][1]:
            raise SystemExit(f"transformers gave {tokens} tokens of {len(requests)} x {requests[0][1]}")
        print(json.dumps({"seconds": seconds, "tokens": tokens}), flush=True)
    model.destroy_cached_continuous_batching_manager()


if __name__ == "__main__":
    main()
