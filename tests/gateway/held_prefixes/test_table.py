"""gateway/held_prefixes/table.py: one writes, others read, and neither stands still for the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from gateway.held_prefixes.table import MOST_REPLICAS, TableWriter, replica_key
from gateway.held_prefixes.table_reader import TableReader

ROOT = Path(__file__).resolve().parents[3]
WRITER = """
import sys
from pathlib import Path
from random import Random
from gateway.held_prefixes.table import TableWriter

# Key k is only ever held by the replicas that its own bits name: a reader must never see others.
table, random, held = TableWriter(Path(sys.argv[1]), places=1024), Random(7), {}
for name in range(128):
    table.add_replica(str(name))
    table.tell(str(name), 16, in_order=True)
print("writes", flush=True)
while True:
    for _ in range(200):
        key = random.randrange(1, 1 << 63)
        if len(held) >= 400:
            old = random.choice(list(held))
            for place in held.pop(old):
                table.drop(old, place)
        held[key] = {key % 128, key // 128 % 128}
        for place in held[key]:
            table.put(key, place)
    table.beat()
    table.remove_replica("7")
    table.add_replica("7")
    table.tell("7", 16, in_order=True)
    Path(sys.argv[2]).write_text(" ".join(map(str, held)))
"""


def test_readers_see_nothing_that_was_never_written_and_outlive_the_writer(tmp_path: Path) -> None:
    path, keys = tmp_path / "held", tmp_path / "keys"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(keys)], stdout=subprocess.PIPE, cwd=ROOT
    )
    reader = TableReader(path, stale=60.0)
    try:
        assert writer.stdout is not None and writer.stdout.readline()
        found, deadline = 0, time.monotonic() + 60
        while found < 3000 and time.monotonic() < deadline:
            assert len(reader.replicas().places) in (0, 127, 128)
            for key in [int(word) for word in keys.read_text().split()] if keys.exists() else []:
                places = reader.in_a_row([key], range(MOST_REPLICAS))
                assert places.keys() <= {key % 128, key // 128 % 128}
                found += bool(places)
        assert found >= 3000
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert writer.stdout is not None
        writer.stdout.close()
    # Whoever takes its place begins anew, under the same name: it is found once the old one is silent for long enough.
    late = TableReader(path, clock=lambda: time.monotonic() + 100, stale=60.0)
    assert not late.replicas().places
    successor = TableWriter(path, places=1024, clock=lambda: time.monotonic() + 100)
    successor.add_replica("a")
    successor.tell("a", 16, in_order=True)
    late._opened = 0.0
    assert late.replicas().places == {replica_key("a"): 0}
    for table in (reader, late, successor):
        table.close()


def test_any_keys_come_and_go(tmp_path: Path) -> None:
    """Few places, and keys that want the same ones: each is found as long as it is there."""
    table, random = TableWriter(tmp_path / "held", places=64), Random(3)
    reader, held = TableReader(tmp_path / "held"), set()
    reader.replicas()
    for _ in range(4000):
        key, place = (
            random.choice([1, 2, 3, 62, 63]) + 64 * random.randrange(12),
            random.choice([0, 63, 64, 127]),
        )
        if random.random() < 0.5:
            assert table.put(key, place) == ((key, place) in held or len({k for k, _ in held} | {key}) <= 32)
            if len({k for k, _ in held} | {key}) <= 32:
                held.add((key, place))
        else:
            table.drop(key, place)
            held.discard((key, place))
        assert table.blocks == len({k for k, _ in held})
        assert reader.in_a_row([key], range(128)).keys() == {p for k, p in held if k == key}
    table.close()
    assert not reader.replicas().places
    reader.close()


def test_there_is_nothing_to_read(tmp_path: Path) -> None:
    for content in (b"", b"x" * 4096, os.urandom(8192)):
        (tmp_path / "held").write_bytes(content)
        reader = TableReader(tmp_path / "held")
        assert not reader.replicas().places and not reader.knows("a") and reader.age is None
        assert reader.in_a_row([1], [0]) == {}
        reader.close()
    with pytest.raises(OSError):
        TableWriter(tmp_path / "nowhere" / "held")


def test_there_are_at_most_so_many_replicas(tmp_path: Path) -> None:
    table = TableWriter(tmp_path / "held", places=64)
    assert [table.add_replica(str(n)) for n in range(130)] == [*range(128), None, None]
    table.remove_replica("5")
    assert table.add_replica("another") == 5
    table.close()
