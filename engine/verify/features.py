"""What is looked at, and how each is switched off where it fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Feature:
    name: str
    off: str
    """What to write behind ``python -m engine serve`` where it fails, or what to leave out."""
    both: Options = field(default_factory=dict)
    """Settings (``EngineConfig``) of the engine and of what it is compared with."""
    engine: Options = field(default_factory=dict)
    """Settings of the engine alone."""
    blocks: int | None = None
    """That its scheduler knows of."""
    caching: bool = False
    """Whether its prefix cache is on, and all is asked twice."""
    grammar: bool = False
    """Whether answers have a form."""
    seen: str = ""
    """Which of ``Counts`` shows that it happened at all."""
    tolerance: float = 0.0
    """What log-probabilities may be off, where that is more than a plain model's may."""
    only: str = ""
    """The device that has it."""


_KERNELS = "--kernels reference"
FEATURES = (
    Feature("kernels, eager", _KERNELS),
    Feature("kernels in float32", _KERNELS, {"dtype": "float32"}),
    Feature("kernels in bfloat16", _KERNELS, {"dtype": "bfloat16"}),
    Feature("structured output", _KERNELS, grammar=True),
    Feature("CUDA graphs", "--enforce-eager", engine={"cuda_graphs": True}, seen="replays"),
    Feature("weights int8", "without --quantization int8", {"quantization": "int8"}, tolerance=0.1),
    Feature("weights int4", "without --quantization int4", {"quantization": "int4"}, tolerance=0.5),
    Feature("weights fp8", "without --quantization fp8", {"quantization": "fp8"}, tolerance=0.5, only="cuda"),
    Feature("KV cache int8", "--kv-cache-dtype auto", {"kv_cache_dtype": "int8"}, tolerance=0.1),
    Feature("KV cache fp8", "--kv-cache-dtype auto", {"kv_cache_dtype": "fp8"}, tolerance=0.1),
    Feature(
        "CUDA graphs, KV cache fp8",
        "--enforce-eager",
        {"kv_cache_dtype": "fp8"},
        {"cuda_graphs": True},
        tolerance=0.1,
        seen="replays",
    ),
    Feature(
        "CUDA graphs, weights int4",
        "--enforce-eager",
        {"quantization": "int4"},
        {"cuda_graphs": True},
        tolerance=0.5,
        seen="replays",
    ),
    Feature("speculation ngram", "--speculation off", engine={"speculation": "ngram"}, seen="drafts"),
    Feature("speculation draft", "--speculation off", engine={"speculation": "draft"}, seen="drafts"),
    Feature("LoRA", "--max-adapters 0", {"max_adapters": 2}),
    Feature("chunked prefill", "--no-chunked-prefill", engine={"max_batched_tokens": 24}, seen="chunks"),
    Feature("prefix caching", "--no-prefix-caching", caching=True, seen="hit_tokens"),
    # In small blocks a sequence grows by several.
    Feature("preemption", "--no-preemption", engine={"block_size": 4}, blocks=48, seen="preempted"),
)
