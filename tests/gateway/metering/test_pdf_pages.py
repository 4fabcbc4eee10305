"""Pages are what the file itself says, in each of the ways in which it may; and a hostile one costs little."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metering.pdf_pages import MOST_PAGES, Unpacking, pages_of
from tests.gateway.metering.files import file_of, packed_pdf, pdf


def pages(data: bytes) -> int | None:
    return pages_of(file_of(data), Unpacking())


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
    added = b"2 0 obj\n<</Type/Pages/Kids[]/Count 7>>\nendobj\n"
    table = b"xref\n2 1\n%010d 00000 n \ntrailer\n<</Size 5/Root 1 0 R/Prev %d>>\nstartxref\n%d\n%%%%EOF\n"
    assert pages(data + added + table % (at, start, at + len(added))) == 7


def test_a_file_for_the_web_says_it_at_once() -> None:
    head = b"%%PDF-1.5\n1 0 obj\n<</Linearized 1/L %06d/N 12>>\nendobj\n"
    whole = head % 1000 + bytes(1000 - len(head % 1000))
    assert pages(whole) == 12
    # Something was added to it since, so that its length is another.
    assert pages(whole + b"more") is None


def test_what_cannot_be_told() -> None:
    assert pages(b"") is None and pages(b"no pdf") is None
    assert pages(pdf(2)[:-60]) is None
    assert pages(pdf(2).replace(b"/Root", b"/Encrypt 9 0 R /Root")) is None
    assert pages(packed_pdf(1, count=MOST_PAGES + 1)) is None
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
    count = pages(broken)
    assert count is None or 0 < count <= MOST_PAGES
