"""What does a model cost on one, two and four ranks, and does it say the same?

    python -m benchmarks.ranks [--requests 8] [--prompt 128] [--tokens 32] [--model FOLDER] [--json FILE]

Each row starts its ranks as ``serve`` does, on this machine, one thread each: the first row is one process. Without
``--model`` the weights are random, of a mixture of 8 experts: 4 layers, 256 wide, 8 heads over 4 KV heads, 16,000
tokens, in float32. ``weights`` is what the rank reads of the file that reads most; ``same``: whether all requests
have the first row's tokens.

Ranks share this machine's cores and its memory's bandwidth: more of them cannot be faster here than one with as many
threads. The rows show what dividing costs, and what it saves of each rank's memory.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file

from engine.config import EngineConfig
from engine.core.block_pool import BlockPool
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.models import registry
from engine.step_loop import StepLoop
from engine.weights.safetensors import SafetensorsReader
from engine.worker.join import join_part
from engine.worker.pipelined_runner import start_runner
from engine.worker.runner import Runner

SHAPE: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "vocab_size": 16_000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
ROWS: dict[str, dict[str, int]] = {
    "one rank": {},
    "TP 2": {"tensor_parallel": 2},
    "TP 2, experts whole": {"tensor_parallel": 2, "expert_parallel": 2},
    "PP 2": {"pipeline_parallel": 2},
    "TP 4": {"tensor_parallel": 4},
    "TP 4, experts whole": {"tensor_parallel": 4, "expert_parallel": 4},
    "PP 4": {"pipeline_parallel": 4},
    "TP 2 x PP 2": {"tensor_parallel": 2, "pipeline_parallel": 2},
    "TP 2 x PP 2, experts whole": {"tensor_parallel": 2, "pipeline_parallel": 2, "expert_parallel": 2},
}
_RUNS = 3


@dataclass
class Found:
    name: str
    ranks: int
    start: float
    """Seconds until the warm-up is done."""
    prefill: float
    """Prompt tokens a second."""
    decode: float
    """Tokens a second of all requests."""
    weights: float
    """MiB."""
    same: bool


def write(folder: Path) -> Path:
    hidden, width, experts = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["num_local_experts"]
    dim = hidden // SHAPE["num_attention_heads"]
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator) * (1.5 / size[-1] ** 0.5)

    weights = {
        "model.embed_tokens.weight": random(SHAPE["vocab_size"], hidden) * 4,
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": random(SHAPE["vocab_size"], hidden),
    }
    for i in range(SHAPE["num_hidden_layers"]):
        name = f"model.layers.{i}"
        for part in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}.{part}.weight"] = torch.ones(hidden)
        for part, heads in (("q", SHAPE["num_attention_heads"]), ("k", 4), ("v", 4)):
            weights[f"{name}.self_attn.{part}_proj.weight"] = random(heads * dim, hidden)
        weights[f"{name}.self_attn.o_proj.weight"] = random(hidden, hidden)
        weights[f"{name}.block_sparse_moe.gate.weight"] = random(experts, hidden)
        for expert in range(experts):
            for part, size in (("w1", (width, hidden)), ("w2", (hidden, width)), ("w3", (width, hidden))):
                weights[f"{name}.block_sparse_moe.experts.{expert}.{part}.weight"] = random(*size)
    (folder / "config.json").write_text(json.dumps(SHAPE))
    save_file(weights, folder / "model.safetensors")
    return folder


def measure(
    name: str, model: Path, options: argparse.Namespace, **split: int
) -> tuple[Found, dict[int, list[int]]]:
    block_size, most = 16, options.prompt + options.tokens + 1
    blocks = 2 * options.requests * (most // block_size + 1)
    began = time.perf_counter()
    config = EngineConfig(
        model=model,
        device="cpu",
        dtype="float32",
        threads=1,
        kv_cache_blocks=blocks,
        max_model_len=most,
        **split,
    )
    runner = start_runner(config)
    try:
        runner.warm_up()
        start = time.perf_counter() - began
        answers: dict[int, list[int]] = {}
        # The fastest of several runs: what else the machine does slows the others.
        first, whole = (
            min(play(runner, options, answers, tokens) for _ in range(_RUNS))
            for tokens in (1, options.tokens)
        )
    finally:
        runner.ranks.close()
    weights = max(read(model, config, rank) for rank in range(config.ranks)) / 2**20
    prompts = options.requests * options.prompt
    generated = options.requests * (options.tokens - 1)
    return (
        Found(name, config.ranks, start, prompts / first, generated / (whole - first), weights, same=True),
        answers,
    )


def play(runner: Runner, options: argparse.Namespace, answers: dict[int, list[int]], tokens: int) -> float:
    """Seconds for all requests with ``tokens`` tokens each."""
    scheduler = Scheduler(
        BlockPool(runner.cache.blocks),
        block_size=runner.block_size,
        max_num_seqs=options.requests,
        max_batched_tokens=128,
        max_model_len=runner.max_model_len,
        max_waiting=options.requests,
        prefix_caching=False,
        stages=runner.ranks.stages,
    )
    loop = StepLoop(scheduler, runner, ahead=False, stages=runner.ranks.stages)
    vocabulary = runner.model.vocab_size
    answers.clear()
    for number in range(options.requests):
        prompt = [(number * 131 + i * i * 7 + i) % (vocabulary - 2) + 2 for i in range(options.prompt)]
        params = SamplingParams(max_tokens=tokens, temperature=0)
        scheduler.submit(Request(number, prompt, params))
    began = time.perf_counter()
    while not scheduler.idle or loop.in_flight:
        landed = loop.step()
        for output in landed.outputs if landed else ():
            answers.setdefault(output.request_id, []).extend(output.tokens)
    return time.perf_counter() - began


def read(model: Path, config: EngineConfig, rank: int) -> int:
    """Bytes of the file."""
    total = 0

    class Reader(SafetensorsReader):
        def _count(self, name: str, tensor: torch.Tensor) -> None:
            nonlocal total
            total += tensor.nbytes
            super()._count(name, tensor)

    part = join_part(config, rank, None, vocabulary=True)
    with patch.object(registry, "SafetensorsReader", Reader):
        registry.load_model(model, torch.device("cpu"), torch.float32, part=part)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: list[Found] = []
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or write(Path(folder))
        expected: dict[int, list[int]] | None = None
        print("| | ranks | start s | prefill tok/s | decode tok/s | weights of a rank, MiB | same tokens |")
        print("|---|---|---|---|---|---|---|")
        for name, split in ROWS.items():
            row, answers = measure(name, model, options, **split)
            expected = expected or answers
            row.same = answers == expected
            found.append(row)
            print(
                f"| {name} | {row.ranks} | {row.start:.1f} | {row.prefill:.0f} | {row.decode:.0f} | "
                f"{row.weights:.0f} | {'yes' if row.same else 'no'} |",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in found], indent=1))


if __name__ == "__main__":
    main()
