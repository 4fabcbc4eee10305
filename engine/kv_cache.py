"""The memory that keys and values live in, in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from engine.attention.backend import KVLayer
from engine.attention.metadata import AttentionMetadata
from engine.attention.select import select_backend
from engine.errors import StartupError
from engine.kv_groups import KVGroup
from engine.state_cache import StateCache
from kernels.int4_kv import int4_block_bytes

_STORED = {"auto": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn, "int4": torch.uint8}


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token needs in the cache."""

    layers: int
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...] = ()
    """Each layer's sliding window, ``None`` where it has none; empty: no layer has one."""
    latent: int | None = None
    """The size of a token's latent, which layers of multi-head latent attention keep in place of values; their one key
    has ``head_dim``."""
    chunked: bool = False
    """Whether the windows are chunks of the context: a token sees what is before it in its own."""

    def block_bytes(
        self,
        block_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str = "auto",
        groups: Sequence[KVGroup] = (),
    ) -> int:
        """Of one group's layers, or of all, with the scales of a quantized cache. Raises ``StartupError``."""
        stored = stored_dtype(kv_cache_dtype)
        size = self.head_dim + (self.latent or self.head_dim)
        layers = max((len(group.layers) for group in groups), default=self.layers)
        if stored == torch.uint8:
            return layers * self.kv_heads * int4_block_bytes(block_size, self.head_dim)
        row = size * dtype.itemsize if stored is None else size + 2 * torch.float32.itemsize
        return layers * self.kv_heads * block_size * row


class KVCache:
    """``layers`` holds the keys and values of each layer; those at the same place in their groups share tensors.

    The one block more is never handed out: block tables are padded with it, and it stays zero, so that what is
    read past a sequence's end is finite. Raises ``StartupError`` for an unknown ``kv_cache_dtype``.
    """

    def __init__(
        self,
        shape: KVShape,
        blocks: int,
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
        kv_cache_dtype: str = "auto",
        groups: Sequence[KVGroup] = (),
        *,
        states: StateCache | None = None,
    ) -> None:
        """``groups``: of all layers; none: all layers have the same block tables, whatever their windows.
        ``states``: of the model's other layers, which are none of ``shape``'s."""
        self.states = states
        self.groups = list(groups) or [KVGroup(tuple(range(shape.layers)))]
        self.blocks = blocks
        self.block_size = block_size
        self.padding_block = blocks
        self.backend = select_backend(
            device, dtype, stored_dtype(kv_cache_dtype), shape.head_dim, block_size, shape.latent
        )
        self._places = [
            self.backend.allocate(blocks + 1, shape.kv_heads, block_size, shape.head_dim)
            for _ in range(max((len(group.layers) for group in self.groups), default=0))
        ]
        places = {
            layer: (self._places[place], number)
            for number, group in enumerate(self.groups)
            for place, layer in enumerate(group.layers)
        }
        self.layers = [places[layer][0] for layer in range(shape.layers)]
        self._group_of = [places[layer][1] for layer in range(shape.layers)]
        self._chunk_of = shape.windows if shape.chunked else (None,) * shape.layers
        self.chunks = [
            sorted({chunk for layer in group.layers if (chunk := self._chunk_of[layer])})
            for group in self.groups
        ]
        """Of each group, the sizes of chunks in which its layers attend."""
        if any(chunk % block_size for chunks in self.chunks for chunk in chunks):
            raise StartupError(
                f"--block-size {block_size} does not divide the chunks in which this model attends "
                f"({', '.join(map(str, sorted(set(chain(*self.chunks)))))} tokens): give one that does."
            )

    @property
    def tensors(self) -> list[Tensor]:
        """Of all layers; the first dimension of each is blocks."""
        return [tensor for layer in self._places for tensor in layer.tensors]

    def by_layer(self, batch: AttentionMetadata) -> Iterator[tuple[KVLayer, AttentionMetadata]]:
        """Each layer, and the batch as its group has it; layers with a state have theirs."""
        batches = (batch, *batch.others)
        layers = (
            (layer, batches[group].in_chunks[chunk] if chunk else batches[group])
            for layer, group, chunk in zip(self.layers, self._group_of, self._chunk_of, strict=True)
        )
        if self.states is None or batch.states is None:
            return layers
        return self.states.beside(layers, batch.states)

    def copy(self, pairs: Sequence[tuple[int, int]], slots: Sequence[tuple[int, int]] = ()) -> None:
        """Copies blocks, and slots of states: (from, to), in order."""
        if self.states is not None:
            self.states.copy(slots)
        for source, target in pairs:
            for layer in self._places:
                for tensor in layer.tensors:
                    tensor[target].copy_(tensor[source])

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Keys and values from slots to slots, (from, to), of models whose layers are all one group."""
        if pairs:
            sources, targets = torch.tensor(pairs, device=self.layers[0].keys.device).unbind(1)
            for layer in self.layers:
                self.backend.move(layer, sources, targets)


def stored_dtype(kv_cache_dtype: str) -> torch.dtype | None:
    """``None`` for ``auto``: the compute dtype. Raises ``StartupError``."""
    if kv_cache_dtype not in _STORED:
        raise StartupError(f"--kv-cache-dtype {kv_cache_dtype} is not one of {', '.join(_STORED)}.")
    return _STORED[kv_cache_dtype]
