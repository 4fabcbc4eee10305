"""gateway/held_prefixes/subscriber.py, on sockets: events that come, are missed and repeated, and who goes away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from gateway.held_prefixes.block_keys import keys_of, packed
from gateway.held_prefixes.subscriber import Publisher, Subscriber
from gateway.held_prefixes.table_reader import TableReader, places_of
from tests.gateway.held_prefixes.published import batch, stored
from tests.gateway.held_prefixes.publisher import EventServer

PROMPT = list(range(12))


@pytest.fixture
def server() -> Iterator[EventServer]:
    with EventServer() as made:
        yield made


@pytest.fixture
def subscriber(tmp_path: Path) -> Iterator[Subscriber]:
    made = Subscriber(tmp_path / "held")
    made.start()
    yield made
    made.close()


def held(reader: TableReader) -> int:
    places = places_of(reader.replicas(), ["a"])
    return max(reader.in_a_row(keys_of(packed(PROMPT), 4), places).values(), default=0)


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_events_come_are_missed_and_repeated(
    tmp_path: Path, server: EventServer, subscriber: Subscriber
) -> None:
    server.publish(stored([1], None, PROMPT[:4]))  # before anybody listens
    subscriber.follow({"a": Publisher(server.endpoint, "", server.replay)})
    reader = TableReader(tmp_path / "held")
    until(lambda: held(reader) == 1)
    server.publish(stored([2], 1, PROMPT[4:8]), silently=True)
    server.publish(stored([3], 2, PROMPT[8:]))
    until(lambda: held(reader) == 3)
    until(lambda: "a" in subscriber.figures and subscriber.figures["a"].blocks == 3)
    assert subscriber.figures["a"].counts.gaps == 0
    server.stop()
    until(lambda: held(reader) == 0)
    server.start()
    server.publish(stored([1, 2], None, PROMPT[:8]))
    until(lambda: held(reader) == 2)
    subscriber.follow({})
    until(lambda: not reader.replicas().places)
    reader.close()


def test_without_a_port_that_repeats_a_gap_is_forgotten(
    tmp_path: Path, server: EventServer, subscriber: Subscriber
) -> None:
    subscriber.follow({"a": Publisher(server.endpoint, "kv@")})
    reader = TableReader(tmp_path / "held")
    server.topic = b"kv@llama"
    until(lambda: subscriber.figures and subscriber.figures["a"].connected)
    until(lambda: server.publish(stored([1], None, PROMPT[:4])) or held(reader) == 1)
    server.topic = b"other"
    server.publish(stored([2], 1, PROMPT[4:8]))
    server.topic = b"kv@llama"
    server.publish(stored([7], None, [9] * 4))
    until(lambda: held(reader) == 0)
    # The next event about a child proves what is before it.
    server.publish(stored([2], 1, PROMPT[4:8]))
    until(lambda: held(reader) == 2)
    server.send([b"kv@", b"short"])
    server.send([b"kv@llama", *batch(server.number)[1:2], b"\xc1 no msgpack"])
    until(lambda: held(reader) == 0)
    assert zmq.zmq_version_info() >= (4, 3)
    reader.close()
