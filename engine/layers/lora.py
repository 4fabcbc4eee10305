"""LoRA: many adapters in one batch over one base model (https://arxiv.org/abs/2106.09685).

An adapter adds ``scale · B(A(x))`` to some linear layers, where A and B have a low rank. Each step the bank gets the
rows of the batch that each adapter applies to, and every adapted layer adds one pair of small products for each adapter
in use, over its rows only; other rows are unchanged to the last bit. The cost of a step depends on the adapters in use,
not on those loaded.

On a GPU all adapters' products are computed at once (kernels/lora.py): each adapter has a slot in tensors allocated at
the start, and each step uploads the slot of each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from engine.config import EngineConfig
from engine.errors import InvalidRequest
from engine.layers.linear import Linear
from engine.parallel.group import TPGroup
from engine.weights.adapters import Adapter, read_adapter
from kernels.launch import on_triton
from kernels.lora import Bank, Prepared, lora

_RANK_MULTIPLE = 8
"""Ranks are padded to a multiple of it: MKL's products with other widths are not the same to the last bit for a row
whatever rows stand before it (seen with widths 1, 5, 6 and 10, never with multiples of 4)."""


WARM_UP = "warm-up"
"""The adapter of steps that only compile kernels, and is in no slot."""

_Pair = tuple[Linear, Linear] | Prepared
"""A and B."""


@dataclass(frozen=True, slots=True)
class HostAdapter:
    """An adapter as slots take it: this rank's shard, merged as its layers are, in their dtype."""

    digest: str
    pairs: Sequence[_Pair | None]
    """By layer; ``None``: it does not change this one."""


class AdapterBank:
    """The adapters in slots and in host memory, by key, and the layers that they apply to."""

    def __init__(
        self, max_slots: int, max_rank: int, tp: TPGroup, *, invariant: bool = False, max_tokens: int = 0
    ) -> None:
        """``max_slots``: how many adapters a step can use. ``invariant``: as of ``Linear``. ``max_tokens``: of
        a step, if that is known."""
        self.max_slots = max_slots
        self.max_rank = max_rank
        self.tp = tp
        self.invariant = invariant
        self.held: dict[str, HostAdapter] = {}
        """In host memory: those in slots can be there, too."""
        self.rows: list[tuple[str, slice | Tensor]] = []
        """Adapters of this step's batch, and their rows."""
        self.index: Tensor | None = None
        """On a GPU instead: int32, each row's adapter slot, or -1. Rows past its end have none."""
        self.active = False
        """Whether any row has an adapter."""
        self._slots: dict[str, int] = {}
        self._max_tokens = max_tokens
        self._stacked = False
        self._layers: list[AdaptedLinear] = []

    @property
    def loaded(self) -> set[str]:
        """Those that have a slot."""
        return set(self._slots)

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """(outputs, inputs) of the layers that adapters may change, by their names in the checkpoint."""
        return {name: (out, layer.in_features) for layer in self._layers for name, out in layer.parts.items()}

    @property
    def recordable(self) -> bool:
        """Whether a step reads from ``index`` alone which rows have which adapter."""
        return self._stacked

    def reserve(self, rows: int, device: torch.device) -> None:
        """``index`` is where it is from now on, for steps of as many rows: recordings read it there."""
        self._max_tokens = max(self._max_tokens, rows)
        if self.index is None or len(self.index) < self._max_tokens:
            self.index = torch.full((self._max_tokens,), -1, dtype=torch.int32, device=device)

    def register(self, layer: AdaptedLinear) -> None:
        self._layers.append(layer)
        self._stacked = layer.stacked

    def read(self, folder: Path) -> HostAdapter:
        """From the disk, ready to be put into a slot. It changes nothing, and may run beside a step.

        Raises ``InvalidRequest`` if it cannot be read or does not fit the model."""
        adapter = read_adapter(folder)
        if adapter.rank > self.max_rank:
            raise InvalidRequest(
                f"The adapter's rank is {adapter.rank}, but --max-adapter-rank is {self.max_rank}."
            )
        known = {name for layer in self._layers for name in layer.parts}
        if unknown := sorted(adapter.modules.keys() - known):
            raise InvalidRequest(
                f"The adapter changes {', '.join(unknown[:3])}{' and others' if len(unknown) > 3 else ''}, "
                "which are not linear layers of this model that can be adapted."
            )
        return HostAdapter(adapter.digest, [layer.weights_for(adapter) for layer in self._layers])

    def hold(self, key: str, adapter: HostAdapter) -> None:
        """In host memory, until ``drop``."""
        self.held[key] = adapter

    def drop(self, key: str) -> None:
        """A slot that has it keeps it."""
        self.held.pop(key, None)

    def place(self, slot: int, key: str) -> None:
        """In place of what the slot has. Raises ``KeyError`` if it is not held."""
        adapter = self.held[key]
        for before in [one for one, other in self._slots.items() if other == slot]:
            self._clear(before)
        for layer, pair in zip(self._layers, adapter.pairs, strict=True):
            layer.set(key, slot, pair)
        self._slots[key] = slot

    def unload(self, key: str) -> None:
        """Out of its slot and of host memory, wherever it is."""
        if key in self._slots:
            self._clear(key)
        self.held.pop(key, None)

    @property
    def free_slot(self) -> int | None:
        free = set(range(self.max_slots)) - set(self._slots.values())
        return min(free, default=None)

    def _clear(self, key: str) -> None:
        slot = self._slots.pop(key)
        for layer in self._layers:
            layer.set(key, slot, None)

    def select(self, runs: Sequence[tuple[str, int, int]], device: torch.device) -> None:
        """Sets the next batch's (adapter, first row, row after its last), in any order."""
        self.active = bool(runs)
        for key, _, _ in runs:
            if key not in self._slots and key != WARM_UP:
                # Without this it would answer as the base model.
                raise RuntimeError(f"a step has rows of the adapter {key}, which is in no slot")
        if self._stacked:
            if runs:
                self._write_index(runs, device)
            return
        by_key: dict[str, list[tuple[int, int]]] = {}
        for key, start, stop in runs:
            spans = by_key.setdefault(key, [])
            if spans and spans[-1][1] == start:
                spans[-1] = (spans[-1][0], stop)
            else:
                spans.append((start, stop))
        self.rows = [(key, _rows(spans, device)) for key, spans in by_key.items()]

    def _write_index(self, runs: Sequence[tuple[str, int, int]], device: torch.device) -> None:
        """Writes the rows' slots to ``index``, in place unless it is too short."""
        length = max(self._max_tokens, *(stop for _, _, stop in runs))
        owners = torch.full((length,), -1, dtype=torch.int32)
        for key, start, stop in runs:
            owners[start:stop] = self._slots.get(key, -1)
        if self.index is None or len(self.index) < length:
            self.index = owners.to(device)
        else:
            self.index[:length].copy_(owners)
            self.index[length:].fill_(-1)


def start_bank(config: EngineConfig, tp: TPGroup) -> AdapterBank | None:
    """``None`` if adapters are disabled."""
    max_slots = config.slots
    if not max_slots:
        return None
    return AdapterBank(
        max_slots,
        config.max_adapter_rank,
        tp,
        invariant=config.deterministic,
        max_tokens=config.max_batched_tokens,
    )


class AdaptedLinear:
    """A linear layer of any kind, plus the loaded adapters. ``x`` [tokens, in] → [tokens, out].

    Where several layers are merged into one (q, k and v; gate and up), so are their adapters: the As are stacked and
    the Bs are block-diagonal, so that they need a single pair of products."""

    def __init__(
        self,
        base: Callable[[Tensor], Tensor],
        bank: AdapterBank,
        parts: Mapping[str, int],
        in_features: int,
        cut: int | None,
        device: torch.device,
        dtype: torch.dtype,
        rows: Mapping[str, Tensor] | None = None,
    ) -> None:
        """``parts``: names and output sizes of the unsharded layers; ``cut``: the dimension of [out, in] that is
        sharded, if one is; ``rows``: the order of this rank's outputs, for the parts that have another than the
        checkpoint."""
        self.parts = dict(parts)
        self._base = base
        self._bank = bank
        self.in_features = in_features
        self._cut = cut
        self._rows = rows or {}
        self._device = device
        self._dtype = dtype
        self._pairs: dict[str, tuple[Linear, Linear]] = {}
        self._stack: Bank | None = None
        if on_triton(torch.empty(0, device=device)):
            tp = bank.tp
            wide = tp.divide(in_features, "inputs") if cut == 1 else in_features
            high = sum(tp.divide(out, "outputs") if cut == 0 else out for out in parts.values())
            self._stack = Bank.empty(bank.max_slots, len(parts) * bank.max_rank, wide, high, device, dtype)
        bank.register(self)

    @property
    def stacked(self) -> bool:
        return self._stack is not None

    def __call__(self, x: Tensor) -> Tensor:
        y = self._base(x)
        if self._stack is not None:
            if self._bank.active:
                index = self._bank.index
                rows = min(len(x), len(index))
                lora(y[:rows], x[:rows], index[:rows], self._stack)
            return y
        for key, rows in self._bank.rows:
            pair = self._pairs.get(key)
            if pair is None:
                continue
            if isinstance(rows, slice):
                y[rows] += pair[1](pair[0](x[rows]))
            else:
                y.index_add_(0, rows, pair[1](pair[0](x[rows])))
        return y

    def set(self, key: str, slot: int, pair: _Pair | None) -> None:
        """``None``: the adapter does not change this layer, or was unloaded."""
        if self._stack is not None:
            if isinstance(pair, Prepared):
                self._stack.place(slot, pair)
            else:
                self._stack.clear(slot)
        elif pair is None or isinstance(pair, Prepared):
            self._pairs.pop(key, None)
        else:
            self._pairs[key] = pair

    def weights_for(self, adapter: Adapter) -> _Pair | None:
        """The adapter's weights for this layer. Raises ``InvalidRequest`` if their shapes do not match."""
        if not any(name in adapter.modules for name in self.parts):
            return None
        tp = self._bank.tp
        downs: list[Tensor] = []
        ups: list[Tensor] = []
        for name, out_features in self.parts.items():
            width = tp.divide(out_features, "outputs") if self._cut == 0 else out_features
            module = adapter.modules.get(name)
            if module is None:
                ups.append(torch.zeros(width, 0))
                continue
            module.check(name, out_features, self.in_features)
            down, up = module.down, module.up * module.scale
            downs.append(tp.shard(down, 1, "inputs") if self._cut == 1 else down)
            up = tp.shard(up, 0, "outputs") if self._cut == 0 else up
            order = self._rows.get(name)
            ups.append(up if order is None else up[order.to(up.device)])
        down, up = torch.cat(downs), torch.block_diag(*ups)
        missing = -len(down) % _RANK_MULTIPLE
        down, up = functional.pad(down, (0, 0, 0, missing)), functional.pad(up, (0, missing))
        if self._stack is not None:
            return self._stack.prepare(down, up)
        return self._linear(down), self._linear(up)

    def _linear(self, weight: Tensor) -> Linear:
        weight = weight.to(self._device, self._dtype).contiguous()
        return Linear(weight, invariant=self._bank.invariant)


def _rows(spans: list[tuple[int, int]], device: torch.device) -> slice | Tensor:
    if len(spans) == 1:
        return slice(*spans[0])
    return torch.cat([torch.arange(start, stop) for start, stop in spans]).to(device)
