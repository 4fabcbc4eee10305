"""Whether two files are an adapter that can be served: PEFT's configuration and the header of its weights.

The format: https://huggingface.co/docs/peft/developer_guides/checkpoint. What the bundled engine and vLLM refuse is
refused here, before anybody loads it. Patterns are regular expressions of strangers, and are not run: a rank is what
the matrices have, and has to be one that the configuration names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.adapters.safetensors import TensorShape

MOST_CONFIG = 2**20
"""Bytes of ``adapter_config.json``."""
_TENSOR = re.compile(r"base_model\.model\.([\w.-]+)\.lora_([AB])\.weight", re.ASCII)
_REFUSED = (
    *("use_dora", "use_qalora", "use_bdlora", "modules_to_save", "lora_bias", "fan_in_fan_out"),
    *("layer_replication", "megatron_config", "target_parameters", "trainable_token_indices"),
    *("alora_invocation_tokens", "arrow_config"),
)
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq")
"""Initialisations that change the base model's weights."""


class NotAnAdapter(ValueError):
    """What is wrong, for whoever sent it. ``field`` names the file."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Layers:
    """What an adapter changes."""

    rank: int
    """The highest."""
    targets: tuple[str, ...]
    """The last components of their names."""


def read_config(data: bytes) -> Mapping[str, Any]:
    """``adapter_config.json``. Raises ``NotAnAdapter``."""
    try:
        config = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise _config(f"is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise _config("is not a JSON object")
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise _config(f"is of peft_type {kind!r:.40}; 'LORA' is served")
    for field in _REFUSED:
        if config.get(field):
            raise _config(f"has '{field}', which no server here takes; train without it")
    bias = config.get("bias", "none")
    if bias != "none":
        raise _config(f"has bias {bias!r:.40}, which no server here takes; train with 'none'")
    init = str(config.get("init_lora_weights", True)).lower()
    if init.startswith(_CHANGES_BASE):
        raise _config(
            f"was initialised by {init!r:.40}, which changes the base model; save it converted to LoRA"
        )
    if not _is_alpha(config.get("lora_alpha")) or not all(map(_is_alpha, _patterns(config, "alpha_pattern"))):
        raise _config("has no 'lora_alpha' that is a finite number, or one in 'alpha_pattern' is none")
    return config


def check_layers(config: Mapping[str, Any], tensors: Mapping[str, TensorShape], most: int) -> Layers:
    """The layers of ``tensors``, of ranks up to ``most``. Raises ``NotAnAdapter``."""
    ranks = [rank for rank in (config.get("r"), *_patterns(config, "rank_pattern")) if type(rank) is int]
    if type(config.get("r")) is not int:
        raise _config("has no 'r', the rank, that is a whole number")
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, tensor in tensors.items():
        found = _TENSOR.fullmatch(name)
        if found is None or len(tensor.shape) != 2:
            raise _weights(f"hold '{name[:120]}': only lora_A and lora_B of linear layers are served")
        layers.setdefault(found[1], {})[found[2]] = tensor.shape
    if not layers:
        raise _weights("hold no tensors")
    targets, highest = set[str](), 0
    for name, sides in layers.items():
        if sides.keys() != {"A", "B"}:
            raise _weights(f"lack lora_A or lora_B of '{name[:120]}'")
        rank = sides["A"][0]
        if rank != sides["B"][1] or rank not in ranks or rank < 1:
            raise _weights(
                f"have the ranks {rank} and {sides['B'][1]} at '{name[:120]}'; adapter_config.json says {config['r']}"
            )
        highest = max(highest, rank)
        targets.add(name.rpartition(".")[2])
    if highest > most:
        raise _weights(f"have a rank of {highest}; {most} is the highest that this gateway takes")
    _check_targets(config.get("target_modules"), layers)
    return Layers(highest, tuple(sorted(targets)))


def _check_targets(named: Any, layers: Mapping[str, Any]) -> None:
    """A list names ends of layers' names; as one text it is a pattern, which is not run."""
    if not isinstance(named, list):
        return
    ends = tuple(f".{one}" for one in named if isinstance(one, str))
    for layer in layers:
        if not f".{layer}".endswith(ends):
            raise _weights(
                f"change '{layer[:120]}', which 'target_modules' of adapter_config.json does not name"
            )


def _patterns(config: Mapping[str, Any], field: str) -> list[Any]:
    patterns = config.get(field) or {}
    if not isinstance(patterns, dict):
        raise _config(f"has a '{field}' that is no JSON object")
    return list(patterns.values())


def _is_alpha(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _config(what: str) -> NotAnAdapter:
    return NotAnAdapter(f"adapter_config.json {what}.", "config_file_id")


def _weights(what: str) -> NotAnAdapter:
    return NotAnAdapter(f"The adapter's weights {what}.", "weights_file_id")
