"""Models and steps by which recordings are tested without a GPU: a recorder that runs again in place of replaying."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.attention.metadata import AttentionMetadata
from engine.core.plan import ScheduledRequest
from engine.kv_cache import KVCache, KVShape
from engine.layers.lora import AdapterBank
from engine.parallel.group import TPGroup

CPU = torch.device("cpu")


class Given:
    """A model whose hidden states are all that it was given for each row."""

    vocab_size, max_positions, kv_shape = 320, 512, KVShape(1, 1, 16)

    def forward(self, tokens: Tensor, positions: Tensor, batch: AttentionMetadata, cache: KVCache) -> Tensor:
        (group,) = batch.decodes
        given = [tokens, positions, batch.slots, group.seq_lens, group.block_tables[:, 0]]
        return torch.stack(given, 1)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden


class Recorder:
    def __init__(self) -> None:
        self.replays = 0

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        hidden = run()

        def replay() -> None:
            self.replays += 1
            hidden.copy_(run())

        return replay, hidden


def decode(request_id: int, length: int, **more: int) -> ScheduledRequest:
    return ScheduledRequest(request_id, [40 + request_id], length, [request_id], None, True, **more)


OTHERS = [decode(1, 4), decode(2, 9)]
SHORT_PROMPT = ScheduledRequest(0, [5, 6, 7, 8, 9], 0, [0], None, False)
PROMPT = ScheduledRequest(0, list(range(20)), 0, [0, 3], None, False)
CHUNK = ScheduledRequest(0, list(range(20)), 7, [0, 3], None, False)
DRAFTS = ScheduledRequest(0, [5, 6, 7], 8, [0], None, True, num_draft_tokens=2)
SLOTS = {"one": 1, "two": 3, None: -1}
"""Of adapters in ``adapter_bank``; without one there is none."""


def adapter_bank() -> AdapterBank:
    bank = AdapterBank(4, 8, TPGroup(), max_tokens=4)
    bank._slots, bank._stacked = {name: slot for name, slot in SLOTS.items() if name is not None}, True
    return bank


class AdapterOfRow(Given):
    """Whose hidden states are each row's token and its slot in ``bank``; -2 where no adapter is active."""

    def __init__(self, bank: AdapterBank) -> None:
        self._bank = bank

    def forward(self, tokens: Tensor, positions: Tensor, batch: AttentionMetadata, cache: KVCache) -> Tensor:
        rows = len(tokens)
        slots = self._bank.index[:rows].long() if self._bank.active else torch.full((rows,), -2)
        assert not self._bank.active or (slots[batch.slots < 0] == -1).all()
        return torch.stack([tokens, slots], 1)


def by_layer(model: type[Given]) -> type[Given]:
    """The same, that looks at the batch as each layer has it."""

    class ByLayer(model):  # type: ignore[misc, valid-type]
        def forward(
            self, tokens: Tensor, positions: Tensor, batch: AttentionMetadata, cache: KVCache
        ) -> Tensor:
            each = [model.forward(self, tokens, positions, own, cache) for _, own in cache.by_layer(batch)]
            return torch.cat(each, 1)

    return ByLayer
