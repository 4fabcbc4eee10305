"""The engine's side: scheduler and runner as the loop process has them, without HTTP. Answers lines of JSON."""

from __future__ import annotations

import json
import sys
import time
from itertools import count
from pathlib import Path

from engine.config import EngineConfig
from engine.core.block_pool import BlockPool
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.worker.runner import Runner


class Model:
    def __init__(self, folder: Path, threads: int, context: int, quantization: str | None) -> None:
        config = EngineConfig(
            model=folder,
            threads=threads,
            max_model_len=context,
            kv_cache_blocks=10 * (-(-context // 16)),
            quantization=quantization,
            dtype="bfloat16",
        )
        self._runner = Runner(config)
        self._scheduler = Scheduler(
            BlockPool(self._runner.cache.blocks),
            block_size=config.block_size,
            max_sequences=64,
            max_tokens_per_step=512,
            max_model_len=self._runner.max_model_len,
            max_waiting=1000,
            prefix_caching=False,
        )
        self._runner.warm_up()
        self._ids = count()

    def decode(self, prompts: list[list[int]], tokens: int) -> list[float]:
        """Seconds of each step in which every prompt gains one token, drawing and scheduling included."""
        for prompt in prompts:
            params = SamplingParams(max_tokens=tokens + 1, temperature=0)
            self._scheduler.submit(Request(next(self._ids), prompt, params))
        times = []
        while not self._scheduler.idle:
            began = time.perf_counter()
            plan = self._step()
            if plan.tokens == len(prompts):
                times.append(time.perf_counter() - began)
        return times[-tokens:]

    def prefill(self, prompt: list[int]) -> float:
        """Seconds from a prompt to its first token."""
        self._scheduler.submit(Request(next(self._ids), prompt, SamplingParams(max_tokens=1, temperature=0)))
        began = time.perf_counter()
        while not self._scheduler.idle:
            self._step()
        return time.perf_counter() - began

    def _step(self):  # type: ignore[no-untyped-def]
        plan = self._scheduler.schedule()
        self._scheduler.update(plan, self._runner.execute(plan))
        return plan


def main() -> None:
    folder, threads, context, quantization = sys.argv[1:5]
    model = Model(Path(folder), int(threads), int(context), None if quantization == "bf16" else quantization)
    print("{}", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "decode":
            answer = model.decode([asked["prompt"]] * asked.get("streams", 1), asked["tokens"])
        else:
            answer = model.prefill(asked["prompt"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
