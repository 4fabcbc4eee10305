"""The short cut of a streamed answer is open only where every stage between says that it takes part."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.splice import Splice


def linked(*streams: object) -> tuple[Splice[str], list[str]]:
    """A splice whose stages read each other's streams, and what they saw."""
    splice, seen = Splice[str](), list[str]()
    splice.made(streams[0])
    splice.reads(streams[0])
    for stream in streams[1:]:
        splice.made(stream)
        splice.reads(stream, seen.append)
    return splice, seen


def test_pieces_go_to_the_client_and_then_to_all_who_look() -> None:
    splice, seen = linked(object(), object(), object())
    assert not splice.is_open
    written: list[str] = []

    def write(pieces: Sequence[str]) -> bool:
        written.extend(pieces)
        return True

    splice.ends_in(write)
    assert splice.is_open
    assert splice.take(["a", "b"])
    assert written == ["a", "b"]
    assert seen == ["a", "a", "b", "b"]


def test_what_cannot_be_written_is_seen_by_nobody() -> None:
    splice, seen = linked(object(), object())
    splice.ends_in(lambda pieces: False)
    assert not splice.take(["a"])
    assert not seen


def test_a_stage_that_says_nothing_closes_it() -> None:
    splice, _ = linked(object(), object())
    splice.ends_in(lambda pieces: True)
    splice.reads(object())  # what somebody has made of the last stream
    assert not splice.is_open
    inner = object()
    splice.made(inner)
    splice.reads(inner)
    assert not splice.is_open  # for good
