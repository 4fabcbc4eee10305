"""What proposes draft tokens in a folder: a small model, an EAGLE-3 head or Medusa heads."""

from __future__ import annotations

import json
from pathlib import Path

_EAGLE = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel")


def draft_kind(folder: Path) -> str:
    """``draft``, ``eagle`` or ``medusa``, by config.json; what is not there is taken for a model."""
    try:
        raw = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return "draft"
    if not isinstance(raw, dict):
        return "draft"
    names = raw.get("architectures")
    if "draft_vocab_size" in raw or (isinstance(names, list) and any(name in _EAGLE for name in names)):
        return "eagle"
    return "medusa" if "medusa_num_heads" in raw else "draft"
