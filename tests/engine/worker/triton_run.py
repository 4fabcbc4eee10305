"""The demo model through the real worker in a process of its own: ``python -m …triton_run`` prints its answers as JSON.

``TOLLGATE_KERNELS`` decides which kernels it computes with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor

from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.server.tokenizer import Tokenizer
from engine.weights.source import locate
from engine.worker.runner import Runner
from tests.engine.steps import run

TEXTS = ["What is a dog?", "Tell me about the sea.", "rain", "What is 7 plus 5?"]


WISHES: list[dict[str, Any]] = [
    {"temperature": 0},
    {"seed": 1},
    {"seed": 2, "top_p": 0.9, "temperature": 0.8},
    {"seed": 3, "top_k": 20, "repetition_penalty": 1.1, "min_tokens": 3},
]


class Recorder:
    """Its recordings compute everything anew, and write it where the first result stands."""

    def __init__(self) -> None:
        self.replays = 0

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        hidden = step()

        def replay() -> None:
            self.replays += 1
            hidden.copy_(step())

        return replay, hidden


def main() -> None:
    options, recorder = json.loads(sys.argv[1]), Recorder()
    settings = {"kv_cache_blocks": 64, "max_num_seqs": 4, "threads": 1, **options["engine"]}
    runner = Runner(EngineConfig(model=locate("demo"), **settings))
    if options["graphs"]:
        runner.record(recorder)
    tokenizer = Tokenizer(locate("demo"))
    prompts = [f"<|bos|><|user|>{text}<|end|><|assistant|>" for text in TEXTS]
    requests = [
        (tokenizer.encode(prompt, special=True), SamplingParams(max_tokens=6, **wish))
        for prompt, wish in zip(prompts, WISHES, strict=True)
    ]
    outcome = run(runner, requests, budget=16, sequences=4, late=1)
    answers = [outcome.tokens[i] for i in range(len(requests))]
    sys.stdout.write(json.dumps({"answers": answers, "replays": recorder.replays}))


if __name__ == "__main__":
    main()
