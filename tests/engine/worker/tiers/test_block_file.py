"""KV blocks in a file: found again after a restart or a kill, refused where they are not what was written."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import StartupError
from engine.worker.tiers.block_file import ENGINES, NAME, BlockFile

SIZE = 3000
MODEL = {"model": "a", "dtype": "bfloat16"}
WRITER = """
import random, sys
from pathlib import Path
from engine.worker.tiers.block_file import BlockFile
from tests.engine.worker.tiers.test_block_file import MODEL, SIZE, content, key
file = BlockFile(Path(sys.argv[1]), MODEL, SIZE, 200_000)
rng = random.Random(0)
for number in range(1_000_000_000):
    file.write(rng.randrange(file.places), key(number), 1 + number % 7, memoryview(content(number)))
    if number == 200:
        print("going", flush=True)
"""


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


def content(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


def opened(folder: Path, size: int = 200_000, **changes: object) -> BlockFile:
    return BlockFile(folder, {**MODEL, **changes}, SIZE, size, patience=0.0)


def read(file: BlockFile, place: int, number: int) -> bytes | None:
    found = bytearray(SIZE)
    return bytes(found) if file.read(place, key(number), memoryview(found)) else None


def test_what_was_written_is_found_after_a_restart_the_deepest_first(tmp_path: Path) -> None:
    file = opened(tmp_path / "kv")
    assert file.entries() == [] and file.places > 50
    for number in range(10):
        assert file.write(number * 3, key(number), number + 1, memoryview(content(number)))
    assert file.write(3, key(100), 1, memoryview(content(100)))
    file.close()
    file = opened(tmp_path / "kv")
    there = file.entries()
    assert [depth for _, _, depth in there] == [10, 9, 8, 7, 6, 5, 4, 3, 1, 1]
    assert sorted(place for place, _, _ in there) == [number * 3 for number in range(10)]
    assert [read(file, place, int.from_bytes(found, "little")) for place, found, _ in there] == [
        content(int.from_bytes(found, "little")) for _, found, _ in there
    ]
    assert read(file, 3, 1) is None
    file.close()
    assert (tmp_path / "kv" / NAME).stat().st_size <= 200_000
    assert (tmp_path / "kv" / NAME).stat().st_mode & 0o077 == 0


def test_after_a_kill_in_the_middle_of_a_write_nothing_wrong_is_read(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout is not None and child.stdout.readline() == b"going\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    file = opened(tmp_path)
    numbers = {place: int.from_bytes(found, "little") for place, found, _ in file.entries()}
    found = [(number, read(file, place, number)) for place, number in numbers.items()]
    assert len(found) > 40
    assert sum(one is None for _, one in found) <= 1
    assert all(one in (None, content(number)) for number, one in found)
    file.close()


@pytest.mark.parametrize("where", ["content", "header", "end"])
def test_what_was_changed_is_refused(tmp_path: Path, where: str) -> None:
    file = opened(tmp_path)
    for number in range(file.places):
        file.write(number, key(number), 1, memoryview(content(number)))
    start, places = file._start, file.places
    file.close()
    with (tmp_path / NAME).open("r+b") as raw:
        if where == "end":
            raw.truncate(start + (places - 1) * SIZE + 10)
        else:
            raw.seek(
                start + (places - 1) * SIZE + 100 if where == "content" else 4096 + (places - 1) * 64 + 7
            )
            raw.write(b"\x55")
    file = opened(tmp_path)
    listed = [place for place, _, _ in file.entries()]
    assert (places - 1 in listed) == (where != "header")
    assert [read(file, place, place) == content(place) for place in range(places)] == [
        *[True] * (places - 1),
        False,
    ]
    file.close()


def test_a_full_disk_is_told_and_what_is_there_stays(tmp_path: Path) -> None:
    file = opened(tmp_path)
    assert file.write(0, key(0), 1, memoryview(content(0)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file._start + 2 * SIZE + 100, hard))
    try:
        assert file.write(1, key(1), 1, memoryview(content(1)))
        assert not file.write(2, key(2), 1, memoryview(content(2)))
        assert not file.write(5, key(5), 1, memoryview(content(5)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [read(file, place, place) for place in (0, 1, 2, 5)] == [content(0), content(1), None, None]
    assert file.write(2, key(2), 1, memoryview(content(2))) and read(file, 2, 2) == content(2)
    file.close()


def test_of_a_block_that_is_there_twice_the_newer_one_is_found(tmp_path: Path) -> None:
    """The other one was refused, and the block computed again."""
    file = opened(tmp_path)
    for place, number in ((0, 1), (1, 2), (2, 1)):
        file.write(place, key(number), 1, memoryview(content(number)))
    file.close()
    file = opened(tmp_path)
    assert file.entries() == [(1, key(2), 1), (2, key(1), 1)]
    file.close()


def test_each_engine_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Such as the one that replaces another without a break."""
    files = [opened(tmp_path) for _ in range(ENGINES)]
    with pytest.raises(StartupError, match="in use by 8 other engines"):
        opened(tmp_path)
    for number, file in enumerate(files):
        file.write(0, key(number), 1, memoryview(content(number)))
    assert [read(file, 0, number) for number, file in enumerate(files)] == list(map(content, range(ENGINES)))
    files[3].close()
    files[3] = opened(tmp_path)
    assert files[3].path.name == f"{NAME}.3" and files[3].entries() == [(0, key(3), 1)]
    for file in files:
        file.close()


def test_blocks_of_others_are_not_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for changes, words in (
        ({"model": "b"}, "another model,"),
        ({"model": "b", "dtype": "float32"}, "another dtype and model,"),
        ({"dtype": "float32" * 200}, "another dtype,"),
    ):
        file = opened(tmp_path)
        file.write(0, key(0), 1, memoryview(content(0)))
        file.close()
        caplog.clear()
        file = opened(tmp_path, **changes)
        assert file.entries() == [] and words in caplog.text
        file.close()
    file = BlockFile(tmp_path, MODEL, SIZE + 1, 200_000)
    assert file.entries() == []
    file.close()
    file = opened(tmp_path, size=100_000)
    assert file.entries() == [] and (tmp_path / NAME).stat().st_size <= 100_000
    file.close()


def test_what_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"something else")
    with pytest.raises(StartupError, match="not a file of KV blocks"):
        opened(tmp_path)
    assert (tmp_path / NAME).read_bytes() == b"something else"
    for size in (5000, 4096 + 64 + SIZE):
        with pytest.raises(StartupError, match="less than one KV block"):
            opened(tmp_path / "small", size=size)
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match="cannot be used"):
        opened(tmp_path / "file")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / NAME).symlink_to(tmp_path / "file")
    with pytest.raises(StartupError, match="cannot be used"):
        opened(tmp_path / "link")
