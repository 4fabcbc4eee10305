"""The features that are verified, and the flag that switches each off where it fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Feature:
    name: str
    off: str
    """The flag of ``python -m engine serve`` that switches it off, or the one to leave out."""
    both: Options = field(default_factory=dict)
    """Settings (``EngineConfig``) of both the engine and its reference."""
    engine: Options = field(default_factory=dict)
    """Settings of the engine only."""
    blocks: int | None = None
    """KV blocks of its scheduler, where they are to be scarce."""
    caching: bool = False
    """Whether its prefix cache is on, and every request is sent twice."""
    grammar: bool = False
    """Whether answers are constrained by a grammar."""
    seen: str = ""
    """The counter of ``Counts`` that shows that it was exercised."""
    tolerance: float = 0.0
    """Tolerance of log-probabilities, where it is larger than for plain weights."""
    only: str = ""
    """The device type that it needs."""


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
    Feature("KV cache int4", "--kv-cache-dtype auto", {"kv_cache_dtype": "int4"}, tolerance=0.5),
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
    Feature(
        "CUDA graphs, LoRA", "--enforce-eager", {"max_adapters": 2}, {"cuda_graphs": True}, seen="replays"
    ),
    Feature("chunked prefill", "--no-chunked-prefill", engine={"max_batched_tokens": 24}, seen="chunks"),
    Feature("prefix caching", "--no-prefix-caching", caching=True, seen="hit_tokens"),
    # With small blocks a sequence grows by several of them.
    Feature("preemption", "--no-preemption", engine={"block_size": 4}, blocks=48, seen="preempted"),
)
