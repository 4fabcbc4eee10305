"""The memory of states, and a batch as layers read it."""

from __future__ import annotations

import torch

from engine.core.plan import ScheduledRequest
from engine.state_cache import StateCache, StateShape, StateTensor
from engine.worker.state_rows import state_batch

CPU = torch.device("cpu")
SHAPE = StateShape({0: (StateTensor((2, 3)),), 2: (StateTensor((2, 3)), StateTensor((4, 5, 6), exact=True))})


def scheduled(slot: int, start: int, count: int) -> ScheduledRequest:
    return ScheduledRequest(slot, [7] * count, start, [], None, False, state=slot)


def test_sums_are_exact_and_the_rest_is_in_the_compute_dtype() -> None:
    cache = StateCache(SHAPE, 3, CPU, torch.bfloat16)
    assert [tensor.dtype for layer in cache.layers.values() for tensor in layer] == [
        torch.bfloat16,
        torch.bfloat16,
        torch.float32,
    ]
    held = sum(tensor.nbytes for layer in cache.layers.values() for tensor in layer)
    assert held == 4 * SHAPE.slot_bytes(torch.bfloat16) == 4 * (2 * 12 + 480)
    assert cache.spare == 3


def test_copies_are_made_in_order() -> None:
    cache = StateCache(SHAPE, 3, CPU, torch.float32)
    for layer in cache.layers.values():
        for tensor in layer:
            tensor[0], tensor[1] = 1.0, 2.0
    cache.copy([(0, 2), (1, 0), (0, 1)])
    for layer in cache.layers.values():
        for tensor in layer:
            assert [tensor[slot].unique().tolist() for slot in range(3)] == [[2.0], [2.0], [1.0]]


def test_layers_come_in_the_models_order() -> None:
    cache = StateCache(SHAPE, 1, CPU, torch.float32)
    batch = state_batch([scheduled(0, 0, 2)], CPU)
    for paged, wanted in ((["a"], "0a2"), (["a", "b", "c"], "0a2bc")):
        found = list(cache.beside(iter([(one, one) for one in paged]), batch))
        names = {id(layer): str(number) for number, layer in cache.layers.items()}
        assert "".join(names.get(id(layer), layer) for layer, _ in found) == wanted
        assert all(own is batch for layer, own in found if id(layer) in names)


def test_a_row_finds_what_came_before_it() -> None:
    """In its state, in the batch, or in both."""
    batch = state_batch([scheduled(4, 9, 1), scheduled(2, 0, 3), scheduled(0, 5, 2)], CPU)
    taps, last = batch.taps(2)
    # Six rows of state, two of each request; then the batch's.
    assert taps.T.tolist() == [[0, 1, 6], [2, 3, 7], [3, 7, 8], [7, 8, 9], [4, 5, 10], [5, 10, 11]]
    assert last.tolist() == [[1, 6], [8, 9], [10, 11]]
    assert batch.taps(2)[0] is taps
    assert batch.single is not None and batch.single.slots.tolist() == [4]
    assert [(rows.start, rows.stop, rows.slot, rows.begins) for rows in batch.longer] == [
        (1, 4, 2, True),
        (4, 6, 0, False),
    ]


def test_who_begins_reads_zeros_whatever_the_slot_holds() -> None:
    batch = state_batch([scheduled(1, 0, 1), scheduled(0, 3, 1), scheduled(2, 0, 2)], CPU)
    states = torch.full((3, 2), float("nan"))
    states[0] = 5.0
    assert batch.all.read(states).tolist() == [[0, 0], [5, 5], [0, 0]]
    assert batch.single is not None and batch.single.read(states).tolist() == [[0, 0], [5, 5]]
    assert batch.longer[0].read(states).tolist() == [0, 0]
    assert batch.each[1].read(states).tolist() == [5, 5]
