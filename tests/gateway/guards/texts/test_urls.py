"""URLs decoded, and edits of what was decoded put where it was encoded."""

from __future__ import annotations

import pytest

from gateway.guards.texts.edits import Edit, applied
from gateway.guards.texts.urls import is_data, readable_url

PLAIN = "https://example.com/a.png?x=1#y"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (PLAIN, PLAIN),
        ("https://e.com/%41n%6E%40x?q=%C3%A9", "https://e.com/Ann@x?q=é"),
        ("https://e.com/?q=%ff%zz%4", "https://e.com/?q=\ufffd%zz%4"),
        (
            "https://a.blob.core.windows.net/c?SV=2024&sp=r&sig=a%2Fb&name=ann",
            "https://a.blob.core.windows.net/c?SV=&sp=&sig=&name=ann",
        ),
        (
            "https://b.s3.amazonaws.com/k?X-Amz-Signature=ab%2Fcd",
            "https://b.s3.amazonaws.com/k?X-Amz-Signature=",
        ),
        ("https://e.com/sig=1?design=2", "https://e.com/sig=1?design=2"),
    ],
)
def test_it_is_read_as_its_server_does_without_what_signs_it(url: str, text: str) -> None:
    found = readable_url(url)
    assert found.text == text
    assert len(found.spans) == len(text)


@pytest.mark.parametrize(
    ("url", "word", "changed"),
    [
        ("https://e.com/?u=ann%40x.org&v=1", "ann@x.org", "https://e.com/?u=*&v=1"),
        ("https://e.com/?u=%61%6e%6e%C3%A9&v=1", "nn", "https://e.com/?u=%61*%C3%A9&v=1"),
        ("https://e.com/?sig=%41&u=bob", "bob", "https://e.com/?sig=%41&u=*"),
    ],
)
def test_what_is_edited_is_what_was_read(url: str, word: str, changed: str) -> None:
    found = readable_url(url)
    start = found.text.index(word)
    edits = found.in_url([Edit(start, start + len(word), "x", len(word))])
    assert applied(url, edits, ["*"]) == changed


def test_edits_of_one_broken_part_do_not_overlap() -> None:
    found = readable_url("https://e.com/%ff%61%62")
    at = found.text.index("a")
    edits = found.in_url([Edit(at, at + 1, "x", 1), Edit(at + 1, at + 2, "x", 1)])
    assert applied("https://e.com/%ff%61%62", edits, ["1", "2"]) == "https://e.com/12"


def test_data_is_no_address() -> None:
    assert is_data("DATA:image/png;base64,AAAA") and not is_data(PLAIN)
