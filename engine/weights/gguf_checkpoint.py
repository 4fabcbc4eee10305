"""A GGUF file's tensors by the names, and in the layout, of Hugging Face checkpoints.

llama.cpp's converter interleaves the rows of llama's queries and keys, adds one to Gemma's norms and stacks experts,
which is undone here (https://github.com/ggml-org/llama.cpp, ``convert_hf_to_gguf.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.weights import dequantize
from engine.weights.gguf import Gguf, GgufTensor, parts
from engine.weights.gguf_config import number
from engine.weights.gguf_rows import GgufRows
from engine.weights.quantize import Int4Weight
from engine.weights.quantized_format import RawTensors

_TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
_GEMMA = _LAYER | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_OLMO = _LAYER | {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GLM = _LAYER | {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"}
_STARCODER = _LAYER | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
_LAYERS = {
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "olmo2": _OLMO,
    "glm4": _GLM,
    "starcoder2": _STARCODER,
}
_INTERLEAVED = ("llama", "granite", "smollm3")
"""Architectures whose queries and keys the converter reorders. In others whose rotary pairs are adjacent, those of
Hugging Face's layout are, too."""
_EXPERT = {
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "w1": "ffn_gate",
    "w3": "ffn_up",
    "w2": "ffn_down",
}
_IN_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_IN_EXPERT = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)")
_HELD = 64 * 2**20
"""Bytes of the file that are read before their pages are let go of."""
_ROTATION = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Read with the configuration."""


class GgufCheckpoint:
    """Raises ``ModelUnavailable`` if the file cannot be read, ``UnsupportedModel`` for types that are not known."""

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype) -> None:
        self._file = Gguf(path, texts=False)
        self.paths = parts(path)
        self._device = device
        self._dtype = dtype
        for name, stored in self._file.tensors.items():
            dequantize.check(name, stored.type)
        self._gemma = self._file.architecture.startswith("gemma")
        heads = number(self._file, "attention.head_count")
        self._interleaved = {}
        if self._file.architecture in _INTERLEAVED:
            self._interleaved = {
                "attn_q": heads,
                "attn_k": number(self._file, "attention.head_count_kv", heads),
            }
        self._held = 0
        self._left = set(self._file.tensors) - set(_ROTATION)
        self.total_bytes = sum(stored.data.nbytes for stored in self._file.tensors.values())
        self.on_read: Callable[[int], None] = lambda count: None
        """Called with the bytes of each tensor that was taken."""

    @property
    def quantized(self) -> bool:
        return any(stored.type not in dequantize.PLAIN for stored in self._file.tensors.values())

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor, in the compute dtype and on the device.

        Raises ``UnsupportedModel`` if there is none of that name and shape.
        """
        stored, stored_name = self._get(name)
        tensor = dequantize.plain(
            stored, torch.float32 if self._gemma and "norm" in stored_name else self._dtype
        )
        if tuple(tensor.shape) != shape:
            raise UnsupportedModel(
                f"The tensor {stored_name} ({name}) has the shape {tuple(tensor.shape)}, "
                f"but the metadata call for {shape}."
            )
        if self._gemma and stored_name.endswith("norm.weight"):
            tensor = tensor - 1
        return self._deinterleave(tensor, stored_name).to(self._device, self._dtype)

    def rows(self, layer: str, shape: tuple[int, int], *, grouped: bool) -> GgufRows | None:
        """As ``take`` and ``groups`` read them. Raises ``UnsupportedModel``."""
        stored, stored_name = self._get(f"{layer}.weight")
        if stored.type in dequantize.PLAIN:
            return None
        if stored.shape != shape:
            raise UnsupportedModel(
                f"The tensor {stored_name} has the shape {stored.shape}, but the metadata call for {shape}."
            )
        return GgufRows(stored, self._dtype, grouped=grouped)

    def release(self) -> None:
        """Lets go of the pages that were read: those that are needed again are read again."""
        self._file.release()
        self._held = 0

    def raw(self, name: str) -> Tensor:
        """The tensor's bytes [outer dimensions …, bytes of a row]. Raises ``UnsupportedModel``."""
        return torch.from_numpy(self._get(name)[0].data.copy())

    def holds_groups(self, layer: str) -> bool:
        """Whether the layer's weights are 4-bit codes in groups."""
        found = self._find(f"{layer}.weight")
        return found is not None and found[0].type in dequantize.GROUPED and len(found[0].shape) == 2

    def groups(self, layer: str, out_features: int, in_features: int) -> Int4Weight:
        """Raises ``UnsupportedModel`` if it has another shape; ``holds_groups`` must hold."""
        stored, stored_name = self._get(f"{layer}.weight")
        if stored.shape != (out_features, in_features):
            raise UnsupportedModel(
                f"The tensor {stored_name} has the shape {stored.shape}, but the metadata call for "
                f"{(out_features, in_features)}."
            )
        groups = dequantize.grouped(stored)
        parts = (
            self._deinterleave(part, stored_name) for part in (groups.codes, groups.scale, groups.offset)
        )
        return Int4Weight(*parts)

    def ignore(self, name: str) -> None:
        """Marks a tensor as unused by the model."""
        found = self._find(name)
        if found is not None:
            self._left.discard(found[1])

    def finish(self) -> None:
        """Raises ``UnsupportedModel`` if a tensor was left over, as the model would then not be computed in full."""
        if self._left:
            names = sorted(self._left)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise UnsupportedModel(
                f"{self._file.path} holds tensors that this model family does not use: {', '.join(names[:3])}{more}."
            )

    def _get(self, name: str) -> tuple[GgufTensor, str]:
        found = self._find(name)
        if found is None:
            raise UnsupportedModel(
                f"{self._file.path} lacks the tensor for {name}: it is not the whole model."
            )
        self._left.discard(found[1])
        self.on_read(found[0].data.nbytes)
        self._held += found[0].data.nbytes
        if self._held > _HELD:
            self.release()
        return found

    def _find(self, name: str) -> tuple[GgufTensor, str] | None:
        """The file's tensor for that name, and its own name."""
        within = _IN_LAYER.fullmatch(name)
        if within is None:
            part, _, kind = name.rpartition(".")
            return self._stored(f"{_TOP.get(part)}.{kind}")
        layer, part, kind = within.groups()
        expert = _IN_EXPERT.fullmatch(part)
        if expert is None:
            names = _LAYERS.get(self._file.architecture, _LAYER)
            return self._stored(f"blk.{layer}.{names.get(part)}.{kind}")
        which, part = int(expert[1]), _EXPERT.get(expert[2])
        # Early files have one tensor an expert.
        if found := self._stored(f"blk.{layer}.{part}.{which}.{kind}"):
            return found
        found = self._stored(f"blk.{layer}.{part}_exps.{kind}")
        if found is None or which >= len(found[0].data):
            return None
        stacked, stored_name = found
        return replace(stacked, shape=stacked.shape[1:], data=stacked.data[which]), stored_name

    def _stored(self, name: str) -> tuple[GgufTensor, str] | None:
        stored = self._file.tensors.get(name)
        return stored and (stored, name)

    def _deinterleave(self, rows: Tensor, stored_name: str) -> Tensor:
        """Rotary pairs are adjacent in llama.cpp, and half a head apart in Hugging Face's layout."""
        heads = self._interleaved.get(stored_name.split(".")[2]) if stored_name.startswith("blk.") else None
        if heads is None:
            return rows
        return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(rows.shape)


class GgufGroups:
    """A file's 4-bit weights are kept as they are."""

    name = "GGUF"
    unused = ()

    def holds(self, tensors: RawTensors, name: str) -> bool:
        return isinstance(tensors, GgufCheckpoint) and tensors.holds_groups(name)

    def read(self, tensors: RawTensors, name: str, out_features: int, in_features: int) -> Int4Weight:
        assert isinstance(tensors, GgufCheckpoint), "``holds`` says so"
        return tensors.groups(name, out_features, in_features)
