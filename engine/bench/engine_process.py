"""The engine under test: scheduler and runner, without HTTP. Reads and writes lines of JSON."""

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
    request = json.loads(sys.argv[1])
    began = time.perf_counter()
    engine = OfflineEngine(
        EngineConfig(
            model=Path(request["folder"]),
            device=request["device"],
            dtype="bfloat16",
            max_model_len=request["context"],
            max_num_seqs=request["streams"],
            **request["options"],
        )
    )
    _write_line({"seconds": time.perf_counter() - began})
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if question["do"] == "bandwidth":
                _write_line(bandwidth(engine.runner.device, question["bytes"]))
            else:
                _write_line(generate(engine, question["prompts"], question["tokens"]))
        except RuntimeError as error:
            # Most likely out of memory: smaller batches may work.
            _write_line({"error": f"{type(error).__name__}: {error}"})


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


def _write_line(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
