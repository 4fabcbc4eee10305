"""LoRA adapters as PEFT saves them: adapter_config.json and adapter_model.safetensors.

The format: https://huggingface.co/docs/peft/developer_guides/checkpoint. Unsupported features (DoRA, biases, whole
modules, embeddings) are rejected by name."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from engine.adapter_files import CONFIG, WEIGHTS
from engine.errors import InvalidRequest

_TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_UNSUPPORTED = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "modules_to_save": "modules_to_save",
    "lora_bias": "lora_bias",
    "fan_in_fan_out": "fan_in_fan_out",
    "layer_replication": "layer_replication",
    "megatron_config": "megatron_config",
    "target_parameters": "target_parameters",
    "trainable_token_indices": "trainable_token_indices",
    "alora_invocation_tokens": "aLoRA",
    "arrow_config": "Arrow",
}
_LONGEST_NAME = 200
"""Characters of a layer's name."""
_LONGEST_PATTERN = 500
_MOST_CHOICES = 3
"""Of a pattern: repeats, optional parts, and groups with alternatives. One search takes less than a second then."""
_MOST_SECONDS = 5.0
"""Of the processor's time, for all patterns of an adapter and all its layers."""
_REPEATED = re.compile(r"\)[*+{]")
_CHOICE = re.compile(r"[*+{]|(?<!\()\?")
_SPECIAL_GROUP = re.compile(r"\(\?(?!:)")
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq")
"""Initialisations that change the base model's weights, so that the adapter does not fit the original ones."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """An adapter's addition to one layer: ``scale · up(down(x))``."""

    down: Tensor
    """A: float [rank, in]"""
    up: Tensor
    """B: float [out, rank]"""
    scale: float

    def check(self, name: str, out_features: int, in_features: int) -> None:
        """Raises ``InvalidRequest`` if the layer has another shape."""
        found = (self.up.shape[0], self.down.shape[1])
        if found != (out_features, in_features):
            raise InvalidRequest(
                f"The adapter's matrices for {name} are for a layer of {found[1]} inputs and {found[0]} outputs, "
                f"but the model's has {in_features} and {out_features}: it was made for another model."
            )


@dataclass(frozen=True, slots=True)
class Adapter:
    modules: Mapping[str, LowRank]
    """By the layer's name in the base model's checkpoint."""
    digest: str
    """``engine/adapter_files.py`` says of what."""

    @property
    def rank(self) -> int:
        """The highest rank of its layers."""
        return max(module.down.shape[0] for module in self.modules.values())


def read_adapter(folder: Path) -> Adapter:
    """Raises ``InvalidRequest`` if the folder holds no adapter, or one that cannot be run as it was trained: without
    the folder, as it is for whoever sent the adapter."""
    path = folder / CONFIG
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{CONFIG} cannot be read: {error.strerror or error}.") from error
    config = _parse_config(raw)
    path = folder / WEIGHTS
    if not path.is_file():
        raise InvalidRequest(f"The folder lacks {WEIGHTS}; adapters are read from safetensors files only.")
    try:
        # In one piece: what was hashed is what is used.
        data = path.read_bytes()
        tensors = load(data)
    except OSError as error:
        raise InvalidRequest(f"{WEIGHTS} cannot be read: {error.strerror or error}.") from error
    except (SafetensorError, KeyError) as error:
        raise InvalidRequest(f"{WEIGHTS} cannot be read: {error}. Is the download whole?") from error
    sides: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        found = _TENSOR.fullmatch(name)
        if found is None or tensor.dim() != 2:
            raise InvalidRequest(
                f"The adapter's tensor {name} is not supported: only LoRA on linear layers is."
            )
        if len(found["module"]) > _LONGEST_NAME:
            raise InvalidRequest(
                f"The adapter's layer {name[:80]}… has a name of over {_LONGEST_NAME} characters."
            )
        sides.setdefault(found["module"], {})[found["side"]] = tensor.float()
    if not sides:
        raise InvalidRequest(f"{WEIGHTS} holds no tensors.")
    patterns = _Patterns()
    modules = {name: _module(name, pair, config, patterns) for name, pair in sides.items()}
    digest = hashlib.sha256(raw)
    digest.update(data)
    return Adapter(modules, digest.hexdigest())


def _parse_config(raw: bytes) -> dict[str, Any]:
    try:
        config = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{CONFIG} cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise InvalidRequest(f"{CONFIG} is not a JSON object.")
    if (kind := config.get("peft_type", "LORA")) != "LORA":
        raise InvalidRequest(f"The adapter is of type {kind!r}; 'LORA' is supported.")
    for field, name in _UNSUPPORTED.items():
        if config.get(field):
            raise InvalidRequest(f"The adapter uses {name}, which is not supported.")
    if (bias := config.get("bias", "none")) != "none":
        raise InvalidRequest(f"The adapter has biases (bias: {bias!r}), which are not supported.")
    init = str(config.get("init_lora_weights", True)).lower()
    if init.startswith(_CHANGES_BASE):
        raise InvalidRequest(
            f"The adapter was initialised by {init!r}, which changes the base model's weights: "
            "save it converted to LoRA."
        )
    return config


def _module(name: str, pair: Mapping[str, Tensor], config: Mapping[str, Any], patterns: _Patterns) -> LowRank:
    if pair.keys() != {"A", "B"}:
        raise InvalidRequest(f"The adapter lacks lora_A or lora_B of {name}.")
    down, up = pair["A"], pair["B"]
    try:
        rank = int(patterns.find(config.get("rank_pattern"), name, config["r"]))
        alpha = float(patterns.find(config.get("alpha_pattern"), name, config["lora_alpha"]))
    except KeyError as error:
        raise InvalidRequest(f"adapter_config.json lacks {error}.") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"adapter_config.json gives {name} no sensible rank or alpha: {error}."
        ) from error
    if rank < 1 or down.shape[0] != rank or up.shape[1] != rank:
        raise InvalidRequest(
            f"The adapter's matrices for {name} have the ranks {down.shape[0]} and {up.shape[1]}, "
            f"but adapter_config.json says {rank}."
        )
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    if not (math.isfinite(scale) and down.isfinite().all() and up.isfinite().all()):
        raise InvalidRequest(f"The adapter's matrices for {name}, or their alpha, hold infinities or NaN.")
    return LowRank(down, up, scale)


class _Patterns:
    """Of one adapter. They are strangers' regular expressions, and a search that goes on for ever would hold up all
    requests: what may take long is refused."""

    def __init__(self) -> None:
        self._compiled: dict[str, re.Pattern[str]] = {}
        self._spent = 0.0

    def find(self, patterns: Any, name: str, default: Any) -> Any:
        """PEFT's rule: a pattern is a regular expression for the last components of a layer's name."""
        if not isinstance(patterns or {}, dict):
            raise InvalidRequest(f"{CONFIG} has patterns that are no JSON object: {patterns!r:.50}.")
        began = time.thread_time()
        try:
            for pattern, value in (patterns or {}).items():
                if self._spent + time.thread_time() - began > _MOST_SECONDS:
                    raise InvalidRequest(
                        f"{CONFIG} has {len(patterns)} patterns, which take too long to match: name layers in full, "
                        "and use fewer."
                    )
                compiled = self._compiled.get(pattern)
                if compiled is None:
                    compiled = self._compiled[pattern] = _compile(pattern)
                if compiled.fullmatch(name):
                    return value
        finally:
            self._spent += time.thread_time() - began
        return default


def _compile(pattern: str) -> re.Pattern[str]:
    choices = len(_CHOICE.findall(pattern)) + (pattern.count("(") if "|" in pattern else 0)
    if (
        len(pattern) > _LONGEST_PATTERN
        or choices > _MOST_CHOICES
        or _REPEATED.search(pattern)
        or _SPECIAL_GROUP.search(pattern)
    ):
        raise InvalidRequest(
            f"{CONFIG} has a pattern that may take too long to match: {pattern!r:.80}. Repeat no group, and use *, +, "
            f"?, {{}} and groups of alternatives {_MOST_CHOICES} times at most."
        )
    try:
        return re.compile(rf"(.*\.)?({pattern})")
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"{CONFIG} has a bad pattern {pattern!r:.80}: {error}.") from error
