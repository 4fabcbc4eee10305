from __future__ import annotations

import pytest

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.waiting_queue import WaitingQueue


def waiting(number: int, rank: float, priority: int = 0) -> Request:
    request = Request(number, [1], SamplingParams(max_tokens=1), priority=priority)
    request.rank = (rank, number)
    return request


def test_stands_in_order_and_counts_by_priority() -> None:
    queue = WaitingQueue()
    last, first, middle = waiting(1, 3.0, 1), waiting(2, -1.0), waiting(3, 0.5, 1)
    for request in (last, first, middle):
        queue.add(request)
    assert [request.id for request in queue] == [2, 3, 1]
    assert (len(queue), queue[0], queue.by_priority) == (3, first, {1: 2, 0: 1})
    assert [queue.ahead(request) for request in (first, middle, last)] == [0, 1, 2]
    queue.remove(middle)
    queue.remove(last)
    assert ([request.id for request in queue], queue.by_priority) == ([2], {0: 1})


def test_one_that_does_not_wait_is_not_removed() -> None:
    queue = WaitingQueue()
    queue.add(waiting(1, 1.0))
    for stranger in (waiting(1, 1.0), waiting(2, 0.0), waiting(3, 9.0)):
        with pytest.raises(ValueError, match="is not waiting"):
            queue.remove(stranger)
