"""Other implementations of the same operations: torch, cuDNN, and FlashInfer and vLLM where they are installed.

Each is given the case's own inputs in the layout that it likes, and its result is compared before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.bench.case import Rival

_WORKSPACE = 128 << 20
"""Bytes, as FlashInfer's documentation has them."""


def gathered(cache: Tensor, tables: Tensor, length: int) -> Tensor:
    """[sequences, kv_heads, length, head_dim] of a cache [blocks, kv_heads, block_size, head_dim]."""
    return cache[tables].transpose(1, 2).flatten(2, 3)[:, :, :length].contiguous()


def decode_rivals(length: int, scale: float) -> tuple[Rival, ...]:
    """For plain decode attention: all sequences of one length, one new token each."""

    def whole(q: Tensor, k: Tensor, v: Tensor, tables: Tensor, *_: Any) -> tuple[Tensor, ...]:
        return q[:, :, None].contiguous(), gathered(k, tables, length), gathered(v, tables, length)

    def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True).squeeze(2)

    def flashinfer(q: Tensor, k: Tensor, v: Tensor, tables: Tensor, lengths: Tensor, *_: Any) -> Any:
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper

        heads, (_, kv_heads, page, head_dim) = q.shape[1], k.shape
        wrapper = BatchDecodeWithPagedKVCacheWrapper(_workspace(q.device), "HND", use_tensor_cores=True)
        wrapper.plan(
            *_pages(tables, lengths, page),
            heads,
            kv_heads,
            head_dim,
            page,
            q_data_type=q.dtype,
            kv_data_type=k.dtype,
        )
        return wrapper, q.contiguous(), (k, v)

    def vllm(q: Tensor, k: Tensor, v: Tensor, tables: Tensor, lengths: Tensor, *_: Any) -> Any:
        starts = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
        return _vllm_inputs(q, k, v, tables, lengths, starts, 1, length, scale)

    return (
        Rival("torch SDPA", whole, sdpa),
        Rival("FlashInfer", flashinfer, _run_wrapper),
        Rival("vLLM flash-attn", vllm, _run_vllm),
    )


def prefill_rivals(length: int, heads: int, scale: float) -> tuple[Rival, ...]:
    """For causal attention of whole prompts of one length."""

    def whole(starts: Tensor, q: Tensor, k: Tensor, v: Tensor, tables: Tensor, *_: Any) -> tuple[Tensor, ...]:
        q = q.unflatten(0, (-1, length)).transpose(1, 2).contiguous()
        return q, gathered(k, tables, length), gathered(v, tables, length)

    def repeated(*inputs: Any) -> tuple[Tensor, ...]:
        q, k, v = whole(*inputs)
        # Without groups, which not all versions of cuDNN support.
        return q, *(x.repeat_interleave(heads // k.shape[1], 1) for x in (k, v))

    def sdpa(*backends: SDPBackend, groups: bool) -> Callable[..., Tensor]:
        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(list(backends) if q.is_cuda else [SDPBackend.MATH]):
                out = functional.scaled_dot_product_attention(
                    q, k, v, is_causal=True, scale=scale, enable_gqa=groups
                )
            return out.transpose(1, 2).flatten(0, 1)

        return run

    def flashinfer(
        starts: Tensor, q: Tensor, k: Tensor, v: Tensor, tables: Tensor, lengths: Tensor, *_: Any
    ) -> Any:
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

        _, kv_heads, page, head_dim = k.shape
        wrapper = BatchPrefillWithPagedKVCacheWrapper(_workspace(q.device), "HND")
        wrapper.plan(
            starts.int(),
            *_pages(tables, lengths, page),
            heads,
            kv_heads,
            head_dim,
            page,
            causal=True,
            q_data_type=q.dtype,
            kv_data_type=k.dtype,
        )
        return wrapper, q.contiguous(), (k, v)

    def vllm(
        starts: Tensor, q: Tensor, k: Tensor, v: Tensor, tables: Tensor, lengths: Tensor, *_: Any
    ) -> Any:
        return _vllm_inputs(q, k, v, tables, lengths, starts.int(), length, length, scale)

    return (
        Rival("torch flash", whole, sdpa(SDPBackend.FLASH_ATTENTION, groups=True)),
        Rival("cuDNN", repeated, sdpa(SDPBackend.CUDNN_ATTENTION, groups=False)),
        Rival("FlashInfer", flashinfer, _run_wrapper),
        Rival("vLLM flash-attn", vllm, _run_vllm),
    )


def linear_rivals(widen: Callable[..., Tensor]) -> tuple[Rival, ...]:
    """For a quantized product: cuBLAS with the widened weight, which ``widen`` computes from the case's inputs."""

    def prepare(x: Tensor, *weight: Any) -> tuple[Tensor, Tensor]:
        return x, widen(*weight).to(x.dtype)

    return (Rival("torch, weights in full", prepare, functional.linear, tolerance=0.3),)


def norm_rivals(eps: float) -> tuple[Rival, ...]:
    def plain(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return x, weight[: x.shape[-1]].to(x.dtype)

    def flashinfer(x: Tensor, residual: Tensor, weight: Tensor) -> Any:
        from flashinfer.norm import rmsnorm

        return rmsnorm, *plain(x, residual, weight)

    def vllm(x: Tensor, residual: Tensor, weight: Tensor) -> Any:
        from vllm import _custom_ops

        def run(x: Tensor, weight: Tensor, eps: float) -> Tensor:
            out = torch.empty_like(x)
            _custom_ops.rms_norm(out, x, weight, eps)
            return out

        return run, *plain(x, residual, weight)

    return (
        Rival("torch", plain, lambda x, weight: functional.rms_norm(x, weight.shape, weight, eps)),
        Rival("FlashInfer", flashinfer, lambda norm, x, weight: norm(x, weight, eps)),
        Rival("vLLM", vllm, lambda norm, x, weight: norm(x, weight, eps)),
    )


def gated_rivals(op: str) -> tuple[Rival, ...]:
    act = functional.silu if op == "swiglu" else lambda z: functional.gelu(z, approximate="tanh")
    name = "silu_and_mul" if op == "swiglu" else "gelu_tanh_and_mul"

    def flashinfer(x: Tensor) -> Any:
        from flashinfer import activation

        return getattr(activation, name), x

    def plain(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return act(gate) * up

    return (
        Rival("torch", lambda x: (x,), plain),
        Rival("FlashInfer", flashinfer, lambda gated, x: gated(x)),
    )


def _workspace(device: torch.device) -> Tensor:
    return torch.zeros(_WORKSPACE, dtype=torch.uint8, device=device)


def _pages(tables: Tensor, lengths: Tensor, page: int) -> tuple[Tensor, Tensor, Tensor]:
    """FlashInfer's (indptr, indices, last_page_len), int32 (https://docs.flashinfer.ai/tutorials/kv_layout.html)."""
    counts = (lengths + page - 1) // page
    indptr = functional.pad(counts.cumsum(0), (1, 0)).int()
    indices = torch.cat([table[:count] for table, count in zip(tables, counts.tolist(), strict=True)]).int()
    return indptr, indices, ((lengths - 1) % page + 1).int()


def _run_wrapper(wrapper: Any, q: Tensor, caches: tuple[Tensor, Tensor]) -> Tensor:
    return wrapper.run(q, caches)


def _vllm_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: Tensor,
    lengths: Tensor,
    starts: Tensor,
    most_new: int,
    longest: int,
    scale: float,
) -> tuple[Any, tuple[Tensor, ...], dict[str, Any]]:
    """Its caches have the heads after the tokens of a block."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    named = {
        "max_seqlen_q": most_new,
        "cu_seqlens_q": starts,
        "max_seqlen_k": longest,
        "seqused_k": lengths.int(),
        "block_table": tables.int(),
        "softmax_scale": scale,
        "causal": True,
    }
    caches = (x.transpose(1, 2).contiguous() for x in (k, v))
    return flash_attn_varlen_func, (q.contiguous(), *caches), named


def _run_vllm(attention: Any, inputs: tuple[Tensor, ...], named: dict[str, Any]) -> Tensor:
    return attention(*inputs, **named)
