"""Forms, whole and in pieces of any size, and what is no form."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.web.form_parser import (
    MAX_HEADER,
    MAX_HEADERS,
    MAX_PARTS,
    FormParser,
    PartBegins,
    PartData,
    PartEnds,
    label_of,
)

TYPE = b"multipart/form-data; boundary=b"


def part(name: str, value: bytes, *headers: str, filename: str | None = None) -> bytes:
    told = f'form-data; name="{name}"' + ("" if filename is None else f'; filename="{filename}"')
    lines = [f"Content-Disposition: {told}", *headers]
    return b"--b\r\n" + "\r\n".join(lines).encode() + b"\r\n\r\n" + value + b"\r\n"


END = b"--b--\r\n"


def read(body: bytes, *cuts: int, content_type: bytes = TYPE) -> list[tuple[str, str | None, bytes]]:
    """Each part's name, filename and content."""
    form, found = FormParser(content_type), list[tuple[str, str | None, bytes]]()
    places = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    for start, end in pairwise(places):
        for event in form.feed(body[start:end]):
            if isinstance(event, PartBegins):
                found.append((event.name, event.filename, b""))
            elif isinstance(event, PartData):
                name, filename, data = found.pop()
                found.append((name, filename, data + event.data))
            else:
                assert isinstance(event, PartEnds)
    form.end()
    return found


@given(
    st.lists(st.tuples(st.binary(max_size=60), st.booleans()), max_size=4),
    st.lists(st.integers(0, 2**16), max_size=8),
)
def test_however_it_is_cut_it_is_the_same(contents: list[tuple[bytes, bool]], cuts: list[int]) -> None:
    contents = [(content.replace(b"--b", b"--c"), file) for content, file in contents]
    body = b"".join(
        part(f"n{i}", content, filename="f" if file else None) for i, (content, file) in enumerate(contents)
    )
    wanted = [(f"n{i}", "f" if file else None, content) for i, (content, file) in enumerate(contents)]
    assert read(body + END, *cuts) == wanted


def test_byte_by_byte_with_what_looks_like_a_boundary() -> None:
    tricky = b"\r\n--\r\n-b\r\n--bx\r\r\n--b-\r\n--"
    assert read(part("file", tricky, filename="f") + END, *range(200)) == [("file", "f", tricky)]


def test_a_quoted_boundary_and_names_in_utf_8() -> None:
    kind = b'Multipart/Form-Data; charset=utf-8; boundary="b"'
    body = part("file", b"1", "Content-Type: text/plain", filename="日本.jsonl")
    assert read(body + END, content_type=kind) == [("file", "日本.jsonl", b"1")]


@pytest.mark.parametrize(
    ("sent", "kept"),
    {
        "../../etc/passwd": "passwd",
        r"C:\temp\in.jsonl": "in.jsonl",
        "..": "..",
        "a/": "file",
        "": "file",
        "a\x00b\r\nc\x1b[31m\u202e.txt": "abc[31m.txt",
        "x" * 1000: "x" * 255,
        "say %22hi%22.txt": 'say "hi".txt',
    }.items(),
)
def test_a_filename_is_a_label(sent: str, kept: str) -> None:
    assert label_of(sent) == kept


NO_FORMS = {
    "empty": (b"", "last boundary"),
    "cut": (part("file", b"abc", filename="f")[:-5], "last boundary"),
    "no end": (part("file", b"abc", filename="f"), "last boundary"),
    "other boundary": (b"--c\r\n\r\n\r\n--c--", "not a form"),
    "JSON": (b'{"purpose": "batch"}', "not a form"),
    "no name": (b"--b\r\nContent-Type: text/plain\r\n\r\nx\r\n--b--", "no name"),
    "attachment": (b'--b\r\nContent-Disposition: attachment; name="a"\r\n\r\nx\r\n--b--', "no name"),
    "long header": (part("file", b"", "X: " + "x" * MAX_HEADER), "size exceeded"),
    "many headers": (part("file", b"", *["X: y"] * MAX_HEADERS), "count exceeded"),
    "endless header": (b"--b\r\nX" + b"x" * 10 * MAX_HEADER, "size exceeded"),
    "many parts": (part("n", b"") * (MAX_PARTS + 1), "more than"),
    "many boundaries": (part("n", b"\r\n--bx" * 10_000), "more than"),
}


@pytest.mark.parametrize(("body", "said"), NO_FORMS.values(), ids=NO_FORMS.keys())
def test_what_is_no_form_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        read(body)


@pytest.mark.parametrize(
    "kind",
    [
        b"",
        b"application/json",
        b"multipart/form-data",
        b"multipart/form-data; boundary=",
        b"multipart/mixed; boundary=b",
        b"multipart/form-data; boundary=" + b"b" * 10_000,
    ],
)
def test_what_names_no_form_is_refused(kind: bytes) -> None:
    with pytest.raises(BadRequest):
        FormParser(kind)
