"""Tiny draft heads with random weights, in the layouts that published ones come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.engine.tiny import SHAPE


def eagle_weights(
    shape: dict[str, Any] = SHAPE, *, vocabulary: list[int] | None = None, seed: int = 0
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator) * (1.5 / size[-1] ** 0.5)

    hidden, width, dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    heads, kv_heads, vocab = shape["num_attention_heads"], shape["num_key_value_heads"], shape["vocab_size"]
    vocabulary = vocabulary or list(range(vocab))
    ids = torch.tensor(vocabulary)
    marks = torch.zeros(vocab, dtype=torch.bool)
    marks[ids] = True
    return {
        "fc.weight": random(hidden, 3 * hidden),
        "midlayer.self_attn.q_proj.weight": random(heads * dim, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": random(kv_heads * dim, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": random(kv_heads * dim, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": random(hidden, heads * dim),
        "midlayer.mlp.gate_proj.weight": random(width, hidden),
        "midlayer.mlp.up_proj.weight": random(width, hidden),
        "midlayer.mlp.down_proj.weight": random(hidden, width),
        "midlayer.hidden_norm.weight": 1 + 0.1 * random(hidden),
        "midlayer.input_layernorm.weight": 1 + 0.1 * random(hidden),
        "midlayer.post_attention_layernorm.weight": 1 + 0.1 * random(hidden),
        "norm.weight": 1 + 0.1 * random(hidden),
        "lm_head.weight": random(len(ids), hidden) * 2,
        "d2t": ids - torch.arange(len(ids)),
        "t2d": marks,
    }


def eagle_config(draft_vocab: int, shape: dict[str, Any] = SHAPE, **more: Any) -> dict[str, Any]:
    return {
        **shape,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": draft_vocab,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 0, 1]},
        **more,
    }


def write_eagle(
    folder: Path,
    *,
    weights: dict[str, torch.Tensor] | None = None,
    pickled: bool = False,
    seed: int = 0,
    **more: Any,
) -> Path:
    """With every second token of the tiny model's."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = weights or eagle_weights(vocabulary=list(range(0, SHAPE["vocab_size"], 2)), seed=seed)
    config = eagle_config(len(weights["d2t"]), **more)
    (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors")
    return folder


def write_medusa(folder: Path, *, heads: int = 3, pickled: bool = False, prefix: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    hidden, vocab = SHAPE["hidden_size"], SHAPE["vocab_size"]
    weights = {}
    for i in range(heads):
        weights |= {
            f"{prefix}{i}.0.linear.weight": torch.randn(hidden, hidden, generator=generator) / hidden**0.5,
            f"{prefix}{i}.0.linear.bias": torch.randn(hidden, generator=generator) * 0.1,
            f"{prefix}{i}.1.weight": torch.randn(vocab, hidden, generator=generator) / hidden**0.5,
        }
    config = {"medusa_num_heads": heads, "medusa_num_layers": 1, "base_model_name_or_path": "tiny"}
    (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(weights, folder / "medusa_lm_head.pt")
    else:
        save_file(weights, folder / "medusa_lm_head.safetensors")
    return folder
