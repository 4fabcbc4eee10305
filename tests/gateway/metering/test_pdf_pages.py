"""Pages are what the file itself says, in each of the ways in which it may; and a hostile one costs little."""

from __future__ import annotations

import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metering.pdf_objects import Unpacking
from gateway.metering.pdf_pages import MOST_PAGES, PageCount, pages_of
from tests.gateway.metering.files import file_of, packed_pdf, pdf, tree_pdf


def pages(data: bytes) -> int | None:
    """None also where nobody can be sure."""
    found = pages_of(file_of(data), Unpacking())
    return found.number if found is not None and found.certain else None


@pytest.mark.parametrize("count", [1, 3, 40])
def test_pages_of_each_layout(count: int) -> None:
    assert pages(pdf(count)) == count
    assert pages(packed_pdf(count)) == count
    assert pages(packed_pdf(count, predictor=1)) == count
    assert pages(b"junk before\n" + pdf(count)) == count


def test_a_file_that_was_added_to_has_its_newest_count() -> None:
    data = packed_pdf(2)
    start = int(data.rsplit(b"startxref", 1)[1].split()[0])
    at = len(data)
    added = b"2 0 obj\n<</Type/Pages/Kids[5 0 R 5 0 R]/Count 7>>\nendobj\n"
    table = b"xref\n2 1\n%010d 00000 n \ntrailer\n<</Size 5/Root 1 0 R/Prev %d>>\nstartxref\n%d\n%%%%EOF\n"
    assert pages(data + added + table % (at, start, at + len(added))) == 7


PAGE = b"<</Type/Page/Parent 2 0 R>>"


def node(count: int, *kids: int, before: bytes = b"", kids_name: bytes = b"/Kids") -> bytes:
    numbers = b" ".join(b"%d 0 R" % kid for kid in kids)
    return b"<</Type/Pages%s/Count %d%s[%s]>>" % (before, count, kids_name, numbers)


def found(data: bytes) -> PageCount | None:
    return pages_of(file_of(data), Unpacking())


def test_a_file_for_the_web_says_it_at_once() -> None:
    head = b"%%PDF-1.5\n1 0 obj\n<</Linearized 1/L %06d/N 12>>\nendobj\n"
    whole = head % 1000 + bytes(1000 - len(head % 1000))
    assert found(whole) == PageCount(12, certain=False), "of what it says nothing is seen"
    # Something was added to it since, so that its length is another.
    assert found(whole + b"more") is None


def test_a_file_that_tells_of_fewer_pages_has_as_many_as_it_has() -> None:
    assert pages(pdf(300).replace(b"/Count 300", b"/Count 1  ")) == 300
    assert pages(packed_pdf(200, count=1)) == 200
    kids = (node(1, *range(5, 105)), node(1, *range(105, 205)))
    leaves = (PAGE,) * 200
    assert pages(tree_pdf(node(1, 3, 4), *kids, *leaves)) == 200
    linear = b"9 0 obj\n<</Linearized 1/L %06d/N 1>>\nendobj\n"
    size = len(tree_pdf(node(1, 3, 4), *kids, *leaves, head=linear % 0))
    assert pages(tree_pdf(node(1, 3, 4), *kids, *leaves, head=linear % size)) == 200


def test_pages_that_are_named_often_count_as_often() -> None:
    assert pages(tree_pdf(node(1, *[3] * 300), PAGE)) == 300
    doubled = [node(1, at + 1, at + 1) for at in range(2, 9)]
    assert pages(tree_pdf(*doubled, PAGE)) == 2**7
    assert pages(tree_pdf(node(1, 2, 3), PAGE)) == 1, "a circle is none"
    assert pages(tree_pdf(*[node(1, *[at + 1] * 100) for at in range(2, 9)], PAGE)) == MOST_PAGES
    assert pages(packed_pdf(1, count=MOST_PAGES + 1)) == MOST_PAGES


@pytest.mark.parametrize(
    "tree",
    [
        node(1, *[3] * 300, before=b"/X(>>)endobj"),
        node(1, *[3] * 300, before=b"/X(\\)>>endobj)"),
        node(1, *[3] * 300, before=b"%>>endobj\n"),
        node(1, 3, before=b"/Kids[3 0 R 3 0 R]"),
        node(1, *[3] * 300, kids_name=b"/Kids % of it\n"),
        b"<</Type/Pages/Count 1/Kids 4 0 R>>",
        node(1, 3, 99),
    ],
)
def test_what_is_written_oddly_is_not_believed(tree: bytes) -> None:
    data = tree_pdf(tree, PAGE, b"[" + b"3 0 R " * 300 + b"]")
    answer = found(data)
    assert answer is not None and not answer.certain


def test_names_in_other_words_are_read() -> None:
    assert pages(tree_pdf(node(1, *[3] * 300, kids_name=b"/K#69ds"), PAGE)) == 300


def test_an_object_of_another_number_is_none() -> None:
    """Readers find the table broken then, and look for all objects."""
    data = tree_pdf(node(1, 3), PAGE, node(1, *[3] * 300))
    answer = found(data.replace(b"\n2 0 obj", b"\n7 0 obj"))
    assert answer is None


def test_so_many_pages_are_not_looked_through() -> None:
    assert pages(tree_pdf(node(1, *range(3, 1_503)), *[PAGE] * 1_500)) == 1_500
    data = file_of(tree_pdf(node(1, *range(3, 5_003)), *[PAGE] * 5_000))
    began = time.thread_time()
    assert pages_of(data, Unpacking()) == PageCount(5_000, certain=False)
    assert time.thread_time() - began < 0.5


def test_what_cannot_be_told() -> None:
    assert pages(b"") is None and pages(b"no pdf") is None
    assert pages(pdf(2)[:-60]) is None
    assert pages(pdf(2).replace(b"/Root", b"/Encrypt 9 0 R /Root")) is None
    assert pages(pdf(2).replace(b"/Count 2", b"/Count 5 0 R")) is None


def test_a_bomb_is_unpacked_up_to_a_bound_and_once_only() -> None:
    bomb = zlib.compress(bytes(2**26))
    data = (
        b"%%PDF-1.7\n4 0 obj\n<</W[1 2 1]/Size 5/Root 1 0 R/Filter/FlateDecode/Length %d>>\nstream\n"
        % len(bomb)
    )
    data += bomb + b"\nendstream\nendobj\nstartxref\n9\n%%EOF\n"
    unpacking = Unpacking()
    assert pages_of(file_of(data), unpacking) is None
    assert pages_of(file_of(packed_pdf(3)), unpacking) is None, "nothing is left to unpack for this request"


def test_references_in_a_circle_come_to_an_end() -> None:
    data = b"%PDF-1.4\nxref\n0 1\n0000000000 65535 f \ntrailer\n<</Root 1 0 R/Prev 9/XRefStm 9>>\nstartxref\n9\n%%EOF"
    assert pages(data) is None


@given(st.sampled_from([pdf(2), packed_pdf(2)]), st.data())
def test_any_bytes_have_pages_or_none(whole: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(whole)))
    broken = whole[:at] + data.draw(st.binary(max_size=30)) + whole[data.draw(st.integers(at, len(whole))) :]
    count = found(broken)
    assert count is None or 0 < count.number <= MOST_PAGES
