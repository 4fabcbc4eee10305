from __future__ import annotations

import io
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.recording.data_key import DataKey
from gateway.recording.recorded_request import OUTCOMES, RecordedRequest
from gateway.recording.segment import SEGMENT_HEAD, SegmentError, SegmentFile, frames
from tests.examples import examples

ACME, OTHER = DataKey.made("acme"), DataKey.made("other")
TEXTS = st.text(max_size=20)
REQUESTS = st.builds(
    RecordedRequest,
    at=st.floats(0, 1e10),
    request_id=TEXTS,
    tenant=TEXTS,
    stream=st.booleans(),
    prompt_tokens=st.integers(0, 2**40),
    max_tokens=st.none() | st.integers(0, 2**31),
    blocks=st.lists(st.integers(0, 2**48), max_size=5).map(tuple),
    outcome=st.sampled_from(sorted(OUTCOMES)),
    findings=st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple),
    ttft=st.none() | st.floats(0, 1e6),
    priority=st.integers(-5, 5),
    text=st.none() | TEXTS,
)


def some(first: int, count: int = 3) -> list[RecordedRequest]:
    return [RecordedRequest(at=float(first + n), request_id=f"r{first + n}") for n in range(count)]


def read(path: Path, *keys: DataKey) -> list[RecordedRequest]:
    by_id = {key.id: key for key in keys}
    return [
        one
        for frame in frames(io.BytesIO(path.read_bytes()))
        if frame.key_id in by_id
        for one in frame.requests_of(by_id[frame.key_id])
    ]


@settings(max_examples=examples(60))
@given(st.lists(REQUESTS, min_size=1, max_size=8), st.lists(REQUESTS, min_size=1, max_size=3))
def test_what_was_appended_is_read_by_who_has_its_key(
    tmp_path_factory: pytest.TempPathFactory, first: list[RecordedRequest], second: list[RecordedRequest]
) -> None:
    segment = SegmentFile.create(tmp_path_factory.mktemp("segments"))
    segment.append(ACME, first)
    segment.append(OTHER, second)
    segment.append(ACME, second)
    segment.release()
    assert read(segment.path, ACME) == [*first, *second]
    assert read(segment.path, OTHER) == second
    assert segment.size == segment.path.stat().st_size
    part = segment.parts[ACME.id]
    assert part.requests == len(first) + len(second)
    assert part.began == min(one.at for one in [*first, *second])


def test_nothing_of_it_can_be_read_without_its_key(tmp_path: Path) -> None:
    segment = SegmentFile.create(tmp_path)
    segment.append(ACME, [RecordedRequest(at=1, tenant="acme", text="the secret plan")])
    segment.release()
    assert b"acme" not in segment.path.read_bytes() and b"secret" not in segment.path.read_bytes()
    (frame,) = frames(io.BytesIO(segment.path.read_bytes()))
    with pytest.raises(SegmentError, match="changed, or sealed with another key"):
        list(frame.requests_of(DataKey(ACME.id, "acme", OTHER.secret)))


def test_a_frame_that_was_changed_or_moved_is_not_read(tmp_path: Path) -> None:
    one, two = SegmentFile.create(tmp_path), SegmentFile.create(tmp_path)
    for segment in (one, two):
        segment.append(ACME, some(0))
        segment.append(ACME, some(10))
        segment.release()
    whole = one.path.read_bytes()
    first, second = (frame.head + frame.sealed for frame in frames(io.BytesIO(whole)))
    for odd in (
        whole[:SEGMENT_HEAD] + second + first,  # in another order
        two.path.read_bytes()[:SEGMENT_HEAD] + first,  # in another segment
        whole[:-1] + bytes([whole[-1] ^ 1]),
        whole[: SEGMENT_HEAD + 7] + bytes([whole[SEGMENT_HEAD + 7] ^ 1]) + whole[SEGMENT_HEAD + 8 :],
    ):
        with pytest.raises(SegmentError):
            for frame in frames(io.BytesIO(odd)):
                list(frame.requests_of(ACME))


@settings(max_examples=examples(60))
@given(st.integers(0, 10_000))
def test_cut_anywhere_it_holds_all_whole_frames(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    segment = SegmentFile.create(tmp_path_factory.mktemp("segments"))
    ends = []
    for first in (0, 10, 20):
        segment.append(ACME, some(first))
        ends.append(segment.size)
    segment.release()
    cut = min(cut, segment.size)
    os.truncate(segment.path, cut)
    if cut < SEGMENT_HEAD:
        with pytest.raises(SegmentError):
            SegmentFile.adopt(segment.path)
        return
    adopted = SegmentFile.adopt(segment.path)
    assert adopted is not None
    whole = sum(end <= cut for end in ends)
    assert adopted.size == segment.path.stat().st_size == (ends[whole - 1] if whole else SEGMENT_HEAD)
    assert [one.request_id for one in read(segment.path, ACME)] == [
        one.request_id for first in (0, 10, 20)[:whole] for one in some(first)
    ]
    assert sum(part.requests for part in adopted.parts.values()) == 3 * whole
    adopted.release()


def test_only_what_nobody_writes_is_adopted(tmp_path: Path) -> None:
    segment = SegmentFile.create(tmp_path)
    segment.append(ACME, some(0))
    assert SegmentFile.adopt(segment.path) is None
    segment.release()
    adopted = SegmentFile.adopt(segment.path)
    assert adopted is not None and adopted.parts[ACME.id].requests == 3
    assert SegmentFile.adopt(segment.path) is None
    adopted.remove()
    assert SegmentFile.adopt(segment.path) is None and not segment.path.exists()


WRITER = """
import sys, time
from pathlib import Path
from gateway.recording.data_key import DataKey
from gateway.recording.recorded_request import RecordedRequest
from gateway.recording.segment import SegmentFile
segment = SegmentFile.create(Path(sys.argv[1]))
key = DataKey(b"k" * 16, "acme", b"s" * 32)
for number in range(10**9):
    segment.append(key, [RecordedRequest(at=float(number), request_id=f"r{number}")] * 50)
    print(number, flush=True)
"""


def test_a_writer_that_is_killed_loses_no_frame_that_it_had_written(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    with writer.stdout as told:
        numbers = [int(told.readline()) for _ in range(20)]
        writer.send_signal(signal.SIGKILL)
        numbers += map(int, told.read().split())
    writer.wait()
    (path,) = tmp_path.glob("*.segment")
    adopted = SegmentFile.adopt(path)
    assert adopted is not None
    key = DataKey(b"k" * 16, "acme", b"s" * 32)
    found = [int(one.at) for one in read(path, key)][::50]
    assert found[: len(numbers)] == numbers and len(found) <= len(numbers) + 1
    adopted.release()


@contextmanager
def full_beyond(size: int) -> Iterator[None]:
    """As on a disk that is full, for this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_of_a_frame_that_does_not_fit_nothing_is_left_and_the_next_one_is_whole(tmp_path: Path) -> None:
    segment = SegmentFile.create(tmp_path)
    segment.append(ACME, some(0))
    size = segment.size
    with full_beyond(size + 20), pytest.raises(OSError, match="File too large"):
        segment.append(ACME, some(10))
    assert segment.path.stat().st_size == segment.size == size
    segment.append(ACME, some(20))
    segment.release()
    assert [one.request_id for one in read(segment.path, ACME)][::3] == ["r0", "r20"]
