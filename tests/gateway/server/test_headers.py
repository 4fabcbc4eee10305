"""Headers by their names: of several of one name the first counts, of lists all do."""

from __future__ import annotations

from gateway.server.headers import by_name


def test_each_by_its_name() -> None:
    assert by_name([]) == {}
    assert by_name([(b"a", b"1"), (b"b", b"2")]) == {b"a": b"1", b"b": b"2"}


def test_of_several_the_first_counts() -> None:
    sent = [(b"authorization", b"Bearer tg-1"), (b"a", b"1"), (b"authorization", b"Bearer tg-2")]
    assert by_name(sent) == {b"authorization": b"Bearer tg-1", b"a": b"1"}


def test_several_lists_are_one() -> None:
    sent = [(b"cache-control", b"no-cache"), (b"a", b"1"), (b"cache-control", b"max-age=1"), (b"a", b"2")]
    assert by_name(sent) == {b"cache-control": b"no-cache,max-age=1", b"a": b"1"}
