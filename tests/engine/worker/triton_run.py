"""The demo model, or a tiny one, through the real worker: ``python -m …triton_run`` prints the answers as JSON.

``TOLLGATE_KERNELS`` decides which kernels it computes with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

import engine.layers.lora
from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.server.tokenizer import Tokenizer
from engine.weights.source import locate
from engine.worker.batch import BatchBuilder
from engine.worker.runner import Runner
from tests.engine.steps import run

TEXTS = ["What is a dog?", "Tell me about the sea.", "rain", "What is 7 plus 5?"]
NUMBERS = [list(range(2, 22)), [*range(2, 18), 7, 7], [300, 5, 9], list(range(100, 140, 3))]
"""Prompts of a tiny model; two begin alike."""


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


def reported(options: dict[str, Any]) -> dict[str, Any]:
    recorder = Recorder()
    if options.get("stacked"):
        # Adapters as on a GPU, in the kernel's reference.
        engine.layers.lora.on_triton = lambda x: True  # type: ignore[attr-defined]
    settings = {"kv_cache_blocks": 64, "max_num_seqs": 4, "threads": 1, **options["engine"]}
    settings["adapters"] = tuple((key, Path(folder)) for key, folder in settings.get("adapters", ()))
    tiny = options.get("model")
    runner = Runner(EngineConfig(model=Path(tiny) if tiny else locate("demo"), **settings))
    if options["graphs"]:
        # As on a GPU, where decodes are a group: a CPU would compute float32 on the path of prompts.
        runner._batches = BatchBuilder(runner.cache, runner.device)
        runner.recordings.record(recorder, chunks=(16,))
    prompts = NUMBERS
    if not tiny:
        tokenizer = Tokenizer(locate("demo"))
        prompts = [
            tokenizer.encode(f"<|bos|><|user|>{text}<|end|><|assistant|>", special=True) for text in TEXTS
        ]
    requests = [
        (prompt, SamplingParams(max_tokens=options.get("tokens", 6), **wish))
        for prompt, wish in zip(prompts, WISHES, strict=True)
    ][: options.get("requests")]
    outcome = run(runner, requests, budget=16, sequences=4, late=1, **options.get("run", {}))
    return {
        "answers": [tokens for _, tokens in sorted(outcome.tokens.items())],
        "replays": recorder.replays,
        "preempted": outcome.preempted,
        "hit_tokens": outcome.hit_tokens,
    }


def main() -> None:
    sys.stdout.write(json.dumps([reported(options) for options in json.loads(sys.argv[1])]))


if __name__ == "__main__":
    main()
