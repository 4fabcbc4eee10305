from __future__ import annotations

import pytest

from engine.errors import DeadlineUnreachable, QueueFull
from engine.pooling.messages import SubmitTexts
from engine.pooling.text_queue import TextQueue


def queue(**options: float) -> TextQueue:
    defaults = {"max_num_seqs": 8, "max_batched_tokens": 100, "max_waiting": 2, "priority_ageing": 10.0}
    return TextQueue(**{**defaults, **options})  # type: ignore[arg-type]


def request(number: int, *lengths: int, at: float = 0.0, **more: object) -> SubmitTexts:
    rows = [[0] * length for length in lengths]
    return SubmitTexts(number, rows, list(lengths), at, **more)  # type: ignore[arg-type]


def picked(texts: TextQueue) -> list[tuple[int, int]]:
    return sorted((one.message.request_id, index) for one, index in texts.batch())


def test_a_batch_stays_within_its_tokens_and_texts() -> None:
    texts = queue()
    texts.submit(request(1, *[30] * 9), 0)
    assert len(texts.batch()) == 3
    texts = queue(max_num_seqs=2)
    texts.submit(request(1, *[30] * 9), 0)
    assert len(texts.batch()) == 2


def test_a_text_longer_than_a_batch_is_alone_in_one() -> None:
    texts = queue()
    texts.submit(request(1, 400, 10), 0)
    assert picked(texts) == [(1, 0)]


def test_texts_of_a_batch_are_in_the_order_of_their_lengths() -> None:
    texts = queue()
    texts.submit(request(1, 5, 30, 2, 20), 0)
    assert [index for _, index in texts.batch()] == [2, 0, 3, 1]


def test_requests_take_turns() -> None:
    texts = queue()
    texts.submit(request(1, *[40] * 50), 0)
    texts.submit(request(2, 40, at=1), 1)
    assert picked(texts) == [(1, 0), (2, 0)]


def test_a_higher_priority_goes_first_until_the_others_have_waited() -> None:
    texts = queue(max_batched_tokens=10)
    texts.submit(request(1, 10), 0)
    texts.submit(request(2, 10, at=5, priority=1), 5)
    assert picked(texts) == [(2, 0)]
    texts = queue(max_batched_tokens=10)
    texts.submit(request(1, 10), 0)
    texts.submit(request(2, 10, at=15, priority=1), 15)
    assert picked(texts) == [(1, 0)]


def test_requests_end_when_their_last_text_is_done() -> None:
    texts = queue()
    texts.submit(request(1, *[60] * 2), 0)
    first = texts.batch()
    assert [one.message.request_id for one in texts.done(first, 0.1)] == [1]
    assert (len(texts), texts.running) == (1, 1)
    assert texts.done(texts.batch(), 0.1) == []
    assert len(texts) == 0 and texts.batch() == []


def test_a_full_queue_refuses() -> None:
    texts = queue(max_num_seqs=1)
    for number in range(3):
        texts.submit(request(number, 1), 0)
    with pytest.raises(QueueFull):
        texts.submit(request(3, 1), 0)
    texts.remove(0)
    texts.submit(request(3, 1), 0)


def test_deadlines_are_met_or_refused() -> None:
    texts = queue()
    texts.submit(request(1, 100), 0)
    texts.done(texts.batch(), 1.0)
    with pytest.raises(DeadlineUnreachable):
        texts.submit(request(2, 300, deadline=2.0), 0)
    texts.submit(request(3, 300, deadline=4.0), 0)
    texts.submit(request(4, 300, at=1), 1)
    with pytest.raises(DeadlineUnreachable):
        # It takes turns with the two before it.
        texts.submit(request(5, 50, at=2, deadline=3.0), 2)
    assert texts.expired(3.9) == [] and [one for one, _ in texts.expired(4.0)] == [3]
    assert len(texts) == 1
