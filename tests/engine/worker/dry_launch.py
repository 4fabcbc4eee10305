"""Serves all kinds of requests with Triton's own launcher, on a device of which only the name is there.

``python -m …dry_launch`` prints what was compiled in the warm-up, and after it. Triton decides by itself what it would
have to compile; its compiler returns nothing, and nothing is computed: memory is zero where kernels would have written.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from engine.config import EngineConfig
from engine.core.sampling_params import Grammar, SamplingParams
from engine.worker import batch, logit_editor, sampler
from engine.worker.runner import Runner
from engine.worker.upload import pack, unpack
from kernels.compilations import Compilations
from tests.engine.steps import run
from tests.engine.worker.triton_run import Recorder


class Device:
    """All that Triton asks of its driver before it compiles."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class GrammarCache:
    """A kernel that does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *args: Any) -> None:
        return None

    def run(self, *args: Any) -> None:
        return None


def install() -> None:
    triton.runtime.driver.set_active(Device())
    triton.compiler.compile = lambda *args, **kwargs: GrammarCache()
    torch.empty, torch.empty_like = torch.zeros, torch.zeros_like
    for module in (batch, logit_editor, sampler):
        # In one piece, as to a GPU: where each array begins in it is part of what kernels are compiled for.
        module.upload = lambda arrays, device: unpack(pack(arrays), arrays)
    # Kernels are those for a GPU already; the engine asks for this word before it takes them on a CPU.
    os.environ["TRITON_INTERPRET"] = "1"


def requests(
    count: int, longest: int, vocab: int, grammar: Grammar | None
) -> list[tuple[list[int], SamplingParams]]:
    """Of all lengths, with all that changes how tokens are drawn."""
    draw = random.Random(0)
    wishes: list[dict[str, Any]] = [
        {"temperature": 0},
        {"seed": 1, "top_p": 0.9},
        {"top_k": 7, "min_p": 0.1},
        {"repetition_penalty": 1.2, "logit_bias": ((3, 1.5),)},
        {"logprobs": 3, "presence_penalty": 0.5},
        {"temperature": 0, "min_tokens": 3, "stop_token_ids": frozenset([1])},
        {"temperature": 0, "grammar": grammar},
        {"temperature": 0, "grammar": grammar, "frequency_penalty": 0.5},
    ]
    lengths = [*range(1, 40), *(draw.randrange(1, longest) for _ in range(count - 39))]
    return [
        (
            [draw.randrange(2, vocab) for _ in range(length)],
            SamplingParams(max_tokens=1 + number % 9, **wishes[number % len(wishes)]),
        )
        for number, length in enumerate(lengths)
    ]


def serve(asked: dict[str, Any]) -> dict[str, Any]:
    before = Compilations()
    before.start()
    settings = {"threads": 1, "dtype": "bfloat16", "kv_cache_blocks": 200, **asked["engine"]}
    runner = Runner(EngineConfig(model=Path(asked["model"]), **settings))
    if asked.get("as_before"):
        # A chunk and a few single tokens.
        runner._cover = lambda execute: None
    runner.warm_up()
    if asked.get("graphs"):
        runner.recordings.record(Recorder())
    warmed, runner.compilations.count = before.count, 0
    grammar = Grammar("json", "{}") if runner.grammars else None
    wanted = requests(asked["requests"], runner.max_model_len - 12, runner.model.vocab_size, grammar)
    adapters = ["one", None, "two"] * len(wanted) if runner.adapters else None
    for budget, late in ((runner._max_tokens, 0), (runner._max_num_seqs + 13, 1)):
        run(
            runner,
            wanted,
            budget=budget,
            sequences=runner._max_num_seqs,
            late=late,
            adapters=adapters,
            choices=2 if late else 1,
        )
    return {"warmed": warmed, "after": runner.compilations.count}


def main() -> None:
    install()
    sys.stdout.write(json.dumps([serve(asked) for asked in json.loads(sys.argv[1])]))


if __name__ == "__main__":
    main()
