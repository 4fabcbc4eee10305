"""gateway/held_prefixes: any history of a server that publishes its events, against what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.held_prefixes.block_keys import keys_of, packed
from gateway.held_prefixes.feed import Feed
from gateway.held_prefixes.kv_events import MOST_BYTES, Unreadable, read_batch
from gateway.held_prefixes.replica_blocks import ReplicaBlocks
from gateway.held_prefixes.table import TableWriter
from gateway.held_prefixes.table_reader import TableReader
from tests.examples import examples
from tests.gateway.held_prefixes.published import CLEARED, batch, removed, stored

SIZE = 4


class Watched:
    """A feed, its table, and how much of a prompt a reader finds there."""

    def __init__(self, path: Path, *, replays: bool = False, most: int = 1000, places: int = 1024) -> None:
        self.table = TableWriter(path, places=places)
        self.place = self.table.add_replica("a")
        assert self.place is not None
        self.asked: list[int] = []
        place = self.place
        blocks = ReplicaBlocks(
            lambda key: self.table.put(key, place),
            lambda key: self.table.drop(key, place),
            most=most,
            spare=4,
        )
        self.feed = Feed(blocks, self.asked.append if replays else None)
        self.reader = TableReader(path)
        self.feed.connect()

    def held(self, tokens: list[int], *, adapter: str = "", salt: bytes = b"") -> int:
        """Blocks."""
        self.table.tell("a", SIZE, in_order=True)
        assert self.reader.replicas().places
        keys = keys_of(packed(tokens), SIZE, adapter, salt)
        return self.reader.in_a_row(keys, [self.place or 0]).get(self.place or 0, 0)

    def close(self) -> None:
        self.reader.close()
        self.table.close()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path / "held")
    yield made
    made.close()


PROMPT = list(range(12))


def test_a_prompt_is_held_as_far_as_its_blocks_are_there(watched: Watched) -> None:
    watched.feed.received(batch(0, stored([1, 2, 3], None, PROMPT)))
    assert watched.held(PROMPT) == watched.held([*PROMPT, 99]) == 3
    assert watched.held([*PROMPT[:4], 0, 0, 0, 0]) == 1
    assert watched.held([7, *PROMPT]) == 0
    watched.feed.received(batch(1, removed(2)))
    assert watched.held(PROMPT) == 1
    # The last block is still there: the same tokens are found again as soon as what is before it has come back.
    watched.feed.received(batch(2, stored([2], 1, PROMPT[4:8])))
    assert watched.held(PROMPT) == 3
    watched.feed.received(batch(3, CLEARED))
    assert watched.held(PROMPT) == 0


def test_who_stores_a_block_holds_what_is_before_it(watched: Watched) -> None:
    watched.feed.received(batch(0, stored([1, 2], None, PROMPT[:8])))
    # One of two copies went, says vLLM by the same event: its hash is there still.
    watched.feed.received(batch(1, removed(1), removed(2)))
    assert watched.held(PROMPT) == 0
    watched.feed.received(batch(2, stored([3], 2, PROMPT[8:])))
    assert watched.held(PROMPT) == 3


def test_salt_and_adapter_make_other_blocks_of_the_same_tokens(watched: Watched) -> None:
    salted = stored([1, 2], None, PROMPT[:8], lora="sql", extras=[["sql", "pepper"], ["sql"]])
    watched.feed.received(batch(0, salted))
    assert (
        watched.held(PROMPT)
        == watched.held(PROMPT, adapter="sql")
        == watched.held(PROMPT, salt=b"pepper")
        == 0
    )
    assert watched.held(PROMPT, adapter="sql", salt=b"pepper") == 2
    assert watched.reader.knows("sql") and not watched.reader.knows("xql")
    # An adapter that has only a number is nobody's whom a request could name.
    watched.feed.received(batch(1, ["BlockStored", [8], None, [5, 6, 7, 8], 4, 3]))
    assert watched.held([5, 6, 7, 8]) == 0


def test_maps_arrays_old_fields_and_new_ones_say_the_same(watched: Watched) -> None:
    as_map = {
        "type": "BlockStored",
        "block_hashes": [b"\x07" * 32],
        "parent_block_hash": None,
        "token_ids": PROMPT[:4],
        "block_size": 4,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "something": {"new": 1},
    }
    payload = msgpack.packb({"ts": 1.5, "events": [as_map, {"type": "BlockMoved"}], "data_parallel_rank": 0})
    watched.feed.received([b"kv@a@llama", (0).to_bytes(8, "big"), payload])
    assert watched.held(PROMPT) == 1
    watched.feed.received(batch(1, ["BlockRemoved", [b"\x07" * 32]]))
    assert watched.held(PROMPT) == 0
    # SGLang, and vLLM 0.9: fewer fields, hashes that may be negative.
    watched.feed.received(batch(2, ["BlockStored", [-5, -6], None, PROMPT[:8], 4, None]))
    assert watched.held(PROMPT) == 2
    new = [*stored([9], -6, PROMPT[8:], extras=[None]), 0, "full_attention", None, "and", "more"]
    watched.feed.received(batch(3, new))
    assert watched.held(PROMPT) == 3
    # What a window's layers hold is no prefix.
    window = [*stored([11], None, PROMPT[:4], extras=[None]), 1, "sliding_window", 128]
    watched.feed.received(batch(4, window, ["BlockRemoved", [9], "GPU", 1]))
    assert watched.held(PROMPT) == 3


def test_a_block_is_there_as_long_as_one_medium_has_it(watched: Watched) -> None:
    watched.feed.received(batch(0, stored([1], None, PROMPT[:4])))
    watched.feed.received(batch(1, stored([1, 77], None, [], 0, medium="CPU"), removed(1)))
    assert watched.held(PROMPT) == 1
    watched.feed.received(batch(2, removed(1, medium="CPU")))
    assert watched.held(PROMPT) == 0


def test_what_was_missed_is_repeated(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "held", replays=True)
    assert watched.asked == [0]
    messages = [batch(n, stored([n], n - 1 or None, PROMPT[4 * n - 4 : 4 * n])) for n in (1, 2, 3)]
    watched.feed.received(batch(0))
    watched.feed.repeated([b"", *batch(0)[1:]])
    watched.feed.repeated([b"", b"\xff" * 8, b""])
    watched.feed.received(messages[0])
    watched.feed.received(messages[2])
    assert watched.asked == [0, 2] and watched.held(PROMPT) == 1
    watched.feed.repeated(messages[1])
    watched.feed.repeated([b"", b"\xff" * 8, b""])
    assert watched.held(PROMPT) == 3 and watched.feed.counts.gaps == 0
    watched.close()


def test_a_publisher_that_repeats_nothing_is_not_waited_for(tmp_path: Path) -> None:
    now = [0.0]
    watched = Watched(tmp_path / "held", replays=True)
    watched.feed._clock = lambda: now[0]
    watched.feed.connect()
    watched.feed.received(batch(7, stored([1], None, PROMPT[:4])))
    watched.feed.look()
    assert watched.held(PROMPT) == 0
    now[0] = 60.0
    watched.feed.look()
    assert watched.held(PROMPT) == 1
    watched.close()


def test_a_publisher_that_starts_again_is_believed_anew(watched: Watched) -> None:
    watched.feed.received(batch(5, stored([1, 2], None, PROMPT[:8])))
    watched.feed.received(batch(5, CLEARED))  # the same once more
    assert watched.held(PROMPT) == 2
    watched.feed.received(batch(0, stored([1], None, PROMPT[:4]), time=99.0))
    assert watched.held(PROMPT) == 1
    watched.feed.disconnect()
    assert watched.held(PROMPT) == 0


def test_what_is_too_much_is_not_known(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "held", most=4)
    for n in range(3):
        watched.feed.received(batch(n, stored([10 * n, 10 * n + 1], None, [n] * 8)))
    assert [watched.held([n] * 8) for n in range(3)] == [2, 2, 0]
    assert watched.feed.blocks.unknown == 2 and len(watched.feed.blocks) == 4
    watched.feed.received(batch(3, removed(0, 1), stored([30, 31], None, [3] * 8)))
    assert watched.held([3] * 8) == 2
    watched.close()


STEP = st.one_of(
    st.tuples(st.just("store"), st.lists(st.integers(0, 2), min_size=1, max_size=5)),
    st.tuples(st.just("remove"), st.integers(0, 50)),
    st.tuples(st.just("clear"), st.just(None)),
)
FATE = st.sampled_from(["comes", "comes", "comes", "twice", "lost"])


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        # A byte of each would be 64 of memory, and seconds in which nothing else is done.
        (b"\x92\x00\xdd" + (2**20).to_bytes(4, "big") + b"\x90" * 2**20, "lists and maps"),
        (b"\x92\x00\xdd" + (2**20).to_bytes(4, "big") + b"\x80" * 2**20, "lists and maps"),
        (b"\x91" * 2**20, "no msgpack"),
        (b"\xdd" + b"\xff" * 4, "no msgpack"),
        (b"\x92\x00\x90" + b"\xc0" * MOST_BYTES, "too many"),
    ],
)
def test_a_batch_that_would_fill_the_memory_is_not_read(payload: bytes, said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        read_batch(payload)


@settings(max_examples=examples(120), deadline=None)
@given(st.lists(st.tuples(STEP, FATE), max_size=40), st.booleans())
def test_any_history_against_a_server(tmp_path_factory: Any, steps: list[Any], repeats: bool) -> None:
    """What it is known to hold is never more than it holds, and all of it where nothing was missed or all repeated."""
    watched = Watched(tmp_path_factory.mktemp("held") / "table", replays=repeats)
    held: set[tuple[int, ...]] = set()
    told: list[list[bytes]] = []
    missed = False

    def answer() -> None:
        while watched.asked:
            for message in told[watched.asked.pop() :]:
                watched.feed.repeated(message[1:])
            watched.feed.repeated([b"\xff" * 8, b""])

    answer()
    for (what, which), fate in steps:
        if what == "store":
            paths = [tuple(which[:end]) for end in range(1, len(which) + 1)]
            event = [
                stored([hash(path)], hash(path[:-1]) if path[:-1] else None, [path[-1]] * SIZE)
                for path in paths
                if path not in held
            ]
            held.update(paths)
        elif what == "remove":
            gone = sorted(held)[which % len(held)] if held else ()
            event = [removed(hash(gone))] if gone else []
            held.discard(gone)
        else:
            event = [CLEARED]
            held.clear()
        told.append(batch(len(told), *event))
        if fate == "lost":
            missed = True
            continue
        watched.feed.received(told[-1])
        if fate == "twice":
            watched.feed.received(told[-1])
        answer()
        for path in {(*one, 9) for one in held} | {(0, 0, 0), (1, 2), (2, 1, 0)}:
            really = next((end for end in range(len(path)) if path[: end + 1] not in held), len(path))
            found = watched.held([token for token in path for _ in range(SIZE)])
            assert found == really if repeats or not missed else found <= really
    watched.feed.blocks.close()
    assert watched.table.blocks == 0
    watched.close()


LEAF = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=9),
    st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"]),
)
NESTED = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
FRAMES = st.lists(st.binary(max_size=40), max_size=4)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(FRAMES | NESTED, max_size=6))
def test_no_bytes_whatsoever_do_any_harm(tmp_path_factory: Any, messages: list[Any]) -> None:
    watched = Watched(tmp_path_factory.mktemp("held") / "table")
    for n, message in enumerate(messages):
        if not (isinstance(message, list) and all(isinstance(part, bytes) for part in message)):
            for body in (
                message,
                [1.0, [message]],
                [1.0, [["BlockStored", message, None, message, 4, None, message]]],
            ):
                watched.feed.received([b"", n.to_bytes(8, "big"), msgpack.packb(body)])
        else:
            watched.feed.received(message)
            watched.feed.received([b"", n.to_bytes(8, "big"), b"".join(message)])
    watched.feed.received(batch(99, stored([1], None, PROMPT[:4]), time=1e9))
    assert watched.held(PROMPT) == 1
    watched.close()
