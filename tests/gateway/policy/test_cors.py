"""The policy key ``cors``: origins as browsers write them, and none too many."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gateway.policy.schema import Cors


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("*", "*"),
        ("null", "null"),
        ("https://chat.example.com", "https://chat.example.com"),
        ("HTTPS://Chat.Example.com", "https://chat.example.com"),
        ("https://example.com:443", "https://example.com"),
        ("http://example.com:443", "http://example.com:443"),
        ("http://localhost:*", "http://localhost:*"),
        ("https://*.example.com:8443", "https://*.example.com:8443"),
        ("http://*.localhost:*", "http://*.localhost:*"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("chrome-extension://abcdefgh", "chrome-extension://abcdefgh"),
        ("tauri://localhost", "tauri://localhost"),
    ],
)
def test_origins(written: str, meant: str) -> None:
    assert Cors(allow_origins=(written,)).allow_origins == (meant,)


@pytest.mark.parametrize(
    "written",
    [
        "example.com",
        "https://example.com/",
        "https://example.com/path",
        "https://*",
        "https://*.com",
        "https://a.*.com",
        "https://*example.com",
        "*://example.com",
        "https://example.com:*0",
        "https://user@example.com",
        "",
    ],
)
def test_what_is_no_origin(written: str) -> None:
    with pytest.raises(ValidationError, match=r"write an origin|top-level domain"):
        Cors(allow_origins=(written,))


def test_credentials_are_for_origins_by_name() -> None:
    with pytest.raises(ValidationError, match="needs origins by name"):
        Cors(allow_origins=("*",), allow_credentials=True)


def test_headers_have_names() -> None:
    assert Cors(allow_headers=("X-Mine",)).allow_headers == ("x-mine",)
    with pytest.raises(ValidationError, match="not the name of a header"):
        Cors(allow_headers=("a b",))
