"""Tiny random models of transformers, in the folders that it saves, and the engine's logits for them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from engine.core.plan import Plan, ScheduledRequest
from engine.kv_cache import KVCache
from engine.models.registry import Model, load_model
from engine.state_cache import StateCache
from engine.worker.batch import BatchBuilder

BLOCK = 4
CPU = torch.device("cpu")

COMMON: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
"""Of multi-head latent attention."""
LATENT_MOE: dict[str, Any] = {
    **LATENT,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
GEMMA3N: dict[str, Any] = {
    "head_dim": 16,
    "sliding_window": 9,
    "vocab_size_per_layer_input": 300,
    "hidden_size_per_layer_input": 32,
    "laurel_rank": 8,
    "num_hidden_layers": 6,
    "num_kv_shared_layers": 3,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "activation_sparsity_pattern": [0.9, 0.8] + [0.0] * 4,
}
LLAMA4: dict[str, Any] = {
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "head_dim": 16,
    "intermediate_size": 40,
    "intermediate_size_mlp": 56,
    "floor_scale": 7,
    "attn_scale": 0.5,
}


def save(folder: Path, family: str, **changes: Any) -> transformers.PreTrainedModel:
    """Writes the folder and returns the model that it holds. ``family`` as in the names of transformers' classes."""
    config = getattr(transformers, f"{family}Config")(**{**COMMON, **changes})
    config._attn_implementation = "eager"
    head = "ForCausalLM"
    return save_model(folder, getattr(transformers, family.removesuffix("Text") + head)(config))


def save_model(folder: Path, model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """Weights are large enough for attention to matter, and none of them is a round number."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if "norm" in name:
                weight.add_(0.2 * noise)
            elif weight.dim() == 1:
                weight.copy_(0.5 * noise)
            else:
                weight.copy_(noise * (1.5 / weight.shape[-1] ** 0.5))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
    model.float().eval()
    model.save_pretrained(folder)
    return model


@torch.no_grad()
def expected(model: transformers.PreTrainedModel, tokens: list[int]) -> Tensor:
    """transformers' logits [tokens, vocab], from one pass over all tokens."""
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def greedy(model: transformers.PreTrainedModel, prompt: list[int], answer: list[int]) -> list[int]:
    """What transformers would have said in place of each token of ``answer``."""
    return expected(model, prompt + answer)[len(prompt) - 1 : -1].argmax(-1).tolist()


class Paged:
    """Drives a model over a paged cache of its own, request by request or several at once."""

    def __init__(
        self, folder: Path, dtype: torch.dtype = torch.float32, *, stored: str = "auto", **options: Any
    ) -> None:
        """``stored``: the dtype of the cache."""
        self.model: Model = load_model(folder, CPU, dtype, **options)
        self._blocks = 80
        shape = self.model.state_shape
        # A slot for each request.
        states = StateCache(shape, 2, CPU, dtype) if shape else None
        self._cache = KVCache(self.model.kv_shape, self._blocks, BLOCK, CPU, dtype, stored, states=states)
        self._builders = [BatchBuilder(self._cache, CPU, invariant=tiled) for tiled in (False, True)]

    def step(self, *chunks: tuple[int, list[int], int], tiled: bool = False) -> list[Tensor]:
        """``chunks``: (request, tokens, start) → their logits. Requests 0 and 1 have blocks of their own. ``tiled``: as
        the engine does in float32, where a row's bits are the same however its prompt is cut."""
        scheduled = []
        for request, tokens, start in chunks:
            # In turns and from the end, so that no request's blocks lie in a row.
            blocks = [b for b in reversed(range(self._blocks)) if b % 2 == request % 2]
            scheduled.append(
                ScheduledRequest(
                    request,
                    tokens,
                    start,
                    blocks[: -(-(start + len(tokens)) // BLOCK)],
                    None,
                    True,
                    state=request % 2,
                )
            )
        with torch.inference_mode():
            batch = self._builders[tiled].build(Plan(scheduled))
            hidden = self.model.forward(batch.tokens, batch.positions, batch.attention, self._cache)
            logits = self.model.logits(hidden)
        # The builder orders them as it likes; the blocks tell whose a row is.
        owners = batch.attention.slots // BLOCK % 2
        return [logits[owners == request % 2] for request, _, _ in chunks]

    def run(self, tokens: list[int], cuts: list[int], request: int = 0, *, tiled: bool = False) -> Tensor:
        """The logits of all tokens, computed in chunks that end at ``cuts``."""
        edges = [0, *cuts, len(tokens)]
        parts = [
            self.step((request, tokens[start:end], start), tiled=tiled)[0]
            for start, end in itertools.pairwise(edges)
            if end > start
        ]
        return torch.cat(parts)
