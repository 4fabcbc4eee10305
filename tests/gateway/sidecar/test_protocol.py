from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sidecar.api import SidecarBusy, SidecarDown, SidecarError, SidecarLoading
from gateway.sidecar.protocol import (
    HELLO,
    MAX_FRAME,
    Frame,
    FrameReader,
    ProtocolError,
    encode,
    failure,
    greeted,
    raise_failure,
)

numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
headers = st.dictionaries(st.text(), values, max_size=4)


@given(
    st.lists(st.tuples(headers, st.binary(max_size=300)), max_size=5),
    st.lists(st.integers(1, 60), min_size=1),
)
def test_frames_survive_any_way_of_cutting_them(
    sent: list[tuple[dict[str, Any], bytes]], cuts: list[int]
) -> None:
    stream = b"".join(encode(header, payload) for header, payload in sent)
    reader, got, at, turn = FrameReader(), list[Frame](), 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        got += reader.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert got == [Frame(header, payload) for header, payload in sent]


@given(st.binary(max_size=200))
def test_nonsense_is_refused_and_nothing_else_happens(data: bytes) -> None:
    try:
        frames = FrameReader().feed(data)
    except ProtocolError:
        return
    assert all(isinstance(frame.header, dict) for frame in frames)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\0\0\0\0",
        (MAX_FRAME // 2 + 1).to_bytes(4, "little") * 2,
        b"\x02\0\0\0\0\0\0\0[]",
        b"\x01\0\0\0\0\0\0\0{",
    ],
    ids=["header too large", "too large together", "no object", "no JSON"],
)
def test_what_is_no_frame(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameReader().feed(data)


def test_what_no_frame_can_hold_is_not_sent() -> None:
    with pytest.raises(SidecarError, match="too large"):
        encode({}, bytes(MAX_FRAME))


def test_half_a_surrogate_pair_becomes_one_character() -> None:
    (frame,) = FrameReader().feed(encode({"texts": ["a\ud800b", "c"]}))
    assert frame.header == {"texts": ["a?b", "c"]}


def test_another_version_is_refused() -> None:
    greeted(HELLO)
    for other in ({}, {"tollgate-sidecar": 0}):
        with pytest.raises(ProtocolError, match="different versions"):
            greeted(other)


@pytest.mark.parametrize("kind", [SidecarError, SidecarDown, SidecarBusy, SidecarLoading])
def test_errors_arrive_as_what_they_were(kind: type[SidecarError]) -> None:
    with pytest.raises(SidecarError, match="why") as caught:
        raise_failure(failure(kind("why")))
    assert type(caught.value) is kind


def test_an_answer_is_no_error() -> None:
    raise_failure({"id": 1})
