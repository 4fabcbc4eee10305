"""The engine's side: scheduler and runner as the engine process has them, without HTTP. Answers lines of JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.offline import OfflineEngine


def main() -> None:
    asked = json.loads(sys.argv[1])
    began = time.perf_counter()
    engine = OfflineEngine(
        EngineConfig(
            model=Path(asked["folder"]),
            device=asked["device"],
            dtype="bfloat16",
            max_model_len=asked["context"],
            max_num_seqs=asked["streams"],
            **asked["options"],
        )
    )
    _say({"seconds": time.perf_counter() - began})
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if question["do"] == "bandwidth":
                _say(bandwidth(engine.runner.device, question["bytes"]))
            else:
                _say(generate(engine, question["prompts"], question["tokens"]))
        except RuntimeError as error:
            # Too much for this device, most likely: smaller batches may do.
            _say({"error": f"{type(error).__name__}: {error}"})


def generate(engine: OfflineEngine, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """All at once: seconds, and of each answer the seconds to its tokens."""
    params = SamplingParams(max_tokens=tokens, temperature=0)
    seconds, answers = engine.generate([(prompt, params) for prompt in prompts])
    return {"seconds": seconds, "times": [answer.times for answer in answers]}


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


def _say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
