"""Llama as the papers have it, without cache, pages, batches or fused products: what the engine must agree with."""

from __future__ import annotations

import torch
from torch import Tensor


def logits(weights: dict[str, Tensor], shape: dict, tokens: list[int]) -> Tensor:
    """[len(tokens), vocab] in float32."""
    dim, heads, kv_heads = shape["head_dim"], shape["num_attention_heads"], shape["num_key_value_heads"]
    length = len(tokens)
    angles = torch.outer(
        torch.arange(length, dtype=torch.float32),
        shape["rope_theta"] ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim),
    )
    turn = torch.polar(torch.ones_like(angles), angles)

    def norm(x: Tensor, name: str) -> Tensor:
        rms = (x.pow(2).mean(-1, keepdim=True) + shape["rms_norm_eps"]).sqrt()
        return x / rms * weights[f"{name}.weight"]

    def rotate(x: Tensor) -> Tensor:
        """Complex multiplication: pairs are (i, i + dim / 2)."""
        pairs = torch.complex(*x.chunk(2, -1)) * turn
        return torch.cat([pairs.real, pairs.imag], -1)

    def split(x: Tensor, count: int) -> Tensor:
        return x.view(length, count, dim).transpose(0, 1)

    x = weights["model.embed_tokens.weight"][tokens]
    for i in range(shape["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        h = norm(x, f"{layer}.input_layernorm")
        q, k, v = (h @ weights[f"{layer}.self_attn.{name}_proj.weight"].T for name in "qkv")
        q, k, v = rotate(split(q, heads)), rotate(split(k, kv_heads)), split(v, kv_heads)
        k, v = (t.repeat_interleave(heads // kv_heads, 0) for t in (k, v))
        scores = q @ k.transpose(1, 2) / dim**0.5
        scores += torch.full((length, length), -torch.inf).triu(1)
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(length, heads * dim)
        x = x + mixed @ weights[f"{layer}.self_attn.o_proj.weight"].T
        h = norm(x, f"{layer}.post_attention_layernorm")
        gate, up = (h @ weights[f"{layer}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (torch.nn.functional.silu(gate) * up) @ weights[f"{layer}.mlp.down_proj.weight"].T
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return norm(x, "model.norm") @ head.T


def greedy(weights: dict[str, Tensor], shape: dict, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits(weights, shape, tokens)[-1].argmax()))
    return tokens[len(prompt) :]
