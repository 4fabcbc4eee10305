"""The engine's side: scheduler and runner as the loop process has them, without HTTP. Answers lines of JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from benchmarks.loop import Loop
from engine.config import EngineConfig


def main() -> None:
    asked = json.loads(sys.argv[1])
    began = time.perf_counter()
    loop = Loop(
        EngineConfig(
            model=Path(asked["folder"]),
            device=asked["device"],
            dtype="bfloat16",
            quantization=asked.get("quantization"),
            kv_cache_dtype=asked.get("kv_cache_dtype", "auto"),
            cuda_graphs=asked.get("cuda_graphs", True),
            max_model_len=asked["context"],
            max_num_seqs=asked["streams"],
            max_batched_tokens=asked["budget"],
        )
    )
    print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer: object
        match asked["do"]:
            case "bandwidth":
                answer = bandwidth(loop.runner.device, asked["bytes"])
            case "decode":
                answer = loop.decode(asked["prompts"], asked["tokens"])
            case "prefill":
                answer = loop.prefill(asked["prompt"])
            case "generate":
                seconds, answers = loop.generate(asked["requests"])
                answer = {"seconds": seconds, "tokens": sum(len(tokens) for tokens in answers)}
            case what:
                raise ValueError(f"there is nothing called {what!r}")
        print(json.dumps(answer), flush=True)


def bandwidth(device: torch.device, size: int) -> float:
    """Bytes a second, read and written, of the device's own copy: the median of ten."""
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(12):
        _wait(device)
        began = time.perf_counter()
        target.copy_(source)
        _wait(device)
        times.append(time.perf_counter() - began)
    return 2 * size / sorted(times[2:])[5]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
