"""An EAGLE-3 head that can be trained: plain torch, its tensors named as published checkpoints name them.

The engine does not run it; that ``engine/models/eagle.py`` computes the same is tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class HeadShape:
    hidden: int
    """Of the head and of the model alike."""
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    """Draft tokens."""
    eps: float
    theta: float

    def config(self, *, vocab: int, positions: int, layers: tuple[int, ...]) -> dict[str, Any]:
        """config.json. ``layers``: of the model, those whose input is read."""
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.width,
            "num_hidden_layers": 1,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.eps,
            "rope_theta": self.theta,
            "max_position_embeddings": positions,
            "vocab_size": vocab,
            "draft_vocab_size": self.vocab,
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in layers]},
        }


class Attention(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        inner, outer = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(2 * shape.hidden, inner, bias=False)
        self.k_proj = nn.Linear(2 * shape.hidden, outer, bias=False)
        self.v_proj = nn.Linear(2 * shape.hidden, outer, bias=False)
        self.o_proj = nn.Linear(inner, shape.hidden, bias=False)

    def forward(self, x: Tensor, depth: int, chain: list[tuple[Tensor, Tensor]], mask: Tensor) -> Tensor:
        """``x`` [rows, places, 2 * hidden]: at each place the drafts' ``depth``-th input of a chain that begins there;
        the first are those of all places, of which the last have chains: [rows, chains, hidden] is returned.

        It attends to the chain's own keys so far, and to the first ones of all places up to its beginning. Appends its
        own to ``chain``. ``mask``: bool [rows, 1, chains, length].
        """
        shape, (chains, length) = self.shape, mask.shape[-2:]
        rows = len(x)
        q, k, v = (
            proj(read).view(rows, read.shape[1], -1, shape.head_dim).transpose(1, 2)
            for proj, read in ((self.q_proj, x[:, -chains:]), (self.k_proj, x), (self.v_proj, x))
        )
        positions = torch.arange(length) + depth
        q = _rotated(q, positions[-chains:], shape.theta)
        k = _rotated(k, positions[-x.shape[1] :], shape.theta)
        group = shape.heads // shape.kv_heads
        chain.append((k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
        scale = shape.head_dim**-0.5
        scores = (q @ chain[0][0].transpose(2, 3)).float() * scale
        scores = [scores.masked_fill(~mask, float("-inf"))]
        scores += [((q * keys).sum(-1, keepdim=True)).float() * scale for keys, _ in chain[1:]]
        weights = torch.cat(scores, -1).softmax(-1).to(v.dtype)
        out = weights[..., :length] @ chain[0][1]
        for place, (_, values) in enumerate(chain[1:]):
            out = out + weights[..., length + place, None] * values
        return self.o_proj(out.transpose(1, 2).reshape(rows, chains, -1))


class GatedMLP(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.width, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.width, bias=False)
        self.down_proj = nn.Linear(shape.width, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = GatedMLP(shape)
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.hidden_norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)


class TrainedHead(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(3 * shape.hidden, shape.hidden, bias=False)
        self.midlayer = Layer(shape)
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.lm_head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                narrow = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.01 if narrow else 0.02)
        with torch.no_grad():
            # At first the highest of the three layers alone counts.
            self.fc.weight.normal_(std=0.002)
            self.fc.weight[:, 2 * shape.hidden :] += torch.eye(shape.hidden)

    def adopt(self, tensors: Mapping[str, Tensor]) -> None:
        """Begins with the model's own weights: ``lm_head``, ``norm`` and those of a layer, as far as they fit."""
        own = self.state_dict()
        for name, tensor in tensors.items():
            if name not in own:
                continue
            if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
                tensor = torch.cat([torch.zeros_like(tensor), tensor], 1)
            if own[name].shape == tensor.shape:
                own[name].copy_(tensor)

    def forward(self, embeddings: Tensor, states: Tensor, mask: Tensor, depth: int) -> list[Tensor]:
        """Hidden states [rows, chains, hidden] of ``depth`` draft tokens, each of which goes on from the one before.

        ``embeddings`` [rows, length + depth - 1, hidden]: of the token after each place. ``states`` [rows, length,
        3 * hidden]: the model's. ``mask``, bool [rows, 1, chains, length]: what the last places, where chains begin,
        see. ``logits`` of the ``i``-th tell the token ``i + 2`` places on.
        """
        chains, length = mask.shape[-2:]
        hidden, chain, found = self.fc(states), [], []
        layer = self.midlayer
        for step in range(depth):
            embedded = layer.input_layernorm(embeddings[:, step + length - hidden.shape[1] : step + length])
            x = torch.cat([embedded, layer.hidden_norm(hidden)], -1)
            hidden = hidden[:, -chains:] + layer.self_attn(x, step, chain, mask)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            found.append(hidden)
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(self.norm(hidden))


def _rotated(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Over halves, as Hugging Face's Llama has them. ``x`` [rows, heads, length, head_dim]."""
    dim = x.shape[-1]
    angles = torch.outer(positions.float(), theta ** -(torch.arange(0, dim, 2) / dim)).repeat(1, 2)
    one, other = x.chunk(2, dim=-1)
    return x * angles.cos().to(x.dtype) + torch.cat((-other, one), -1) * angles.sin().to(x.dtype)
