"""The two files of a LoRA adapter, as PEFT names them, and the digest that tells adapters apart."""

from __future__ import annotations

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
FILES = (CONFIG, WEIGHTS)
"""Their digest is the SHA-256 of the one behind the other: ``cat adapter_config.json adapter_model.safetensors |
sha256sum``."""
