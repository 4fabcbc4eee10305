"""Compressed bodies: taken apart within bounds, or refused by name."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import orjson
import pytest
from backports import zstd

from gateway.errors import BadRequest, UnsupportedCoding
from gateway.web.content_coding import MEMBERS, STEP, Inflater, coding_of
from tests.serving import Gateway, RawConnection, chat

TEXT = orjson.dumps(chat(content="Hello " * 200))


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(data) + stream.flush()


def wide(data: bytes) -> bytes:
    """A frame whose decoder would have to hold 16 MiB."""
    stream = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 24})
    return stream.compress(data) + stream.flush()


FORMS = {
    "gzip": ("gzip", gzip.compress(TEXT)),
    "two files of gzip": ("gzip", gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:])),
    "x-gzip": ("X-GZip", gzip.compress(TEXT)),
    "zlib": ("deflate", zlib.compress(TEXT)),
    "bare deflate": ("deflate", raw_deflate(TEXT)),
    "zstd": ("zstd", zstd.compress(TEXT)),
    "two frames of zstd": ("zstd", zstd.compress(TEXT[:100]) + zstd.compress(TEXT[100:])),
    "with identity": ("identity, gzip", gzip.compress(TEXT)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_body_comes_out_as_it_went_in(form: str, size: int) -> None:
    name, data = FORMS[form]
    coding = coding_of({b"content-encoding": name.encode()})
    assert coding is not None
    inflater = Inflater(coding)
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    assert b"".join(piece for part in parts for piece in inflater.feed(part)) == TEXT
    inflater.end()


def test_what_ends_just_behind_a_step_is_whole() -> None:
    """zlib may have read the last of a body and still hold some of what it stands for."""
    for size in range(STEP, STEP + 300):
        inflater = Inflater("deflate")
        assert sum(map(len, inflater.feed(raw_deflate(b"a" * size)))) == size
        inflater.end()


def test_what_needs_no_taking_apart() -> None:
    assert coding_of({b"content-type": b"x"}) is None
    assert coding_of({b"content-encoding": b"identity"}) is None
    assert coding_of({b"content-encoding": b""}) is None


@pytest.mark.parametrize("name", ["br", "compress", "gzip, gzip", "gzip, zstd", "gzip, br", "nonsense"])
def test_what_is_not_understood_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedCoding, match=f"'{name}'.*content-encoding") as caught:
        coding_of({b"content-encoding": name.encode()})
    assert caught.value.headers == {"accept-encoding": "gzip, deflate, zstd"}


@pytest.mark.parametrize(
    ("coding", "data"),
    [
        ("gzip", TEXT),
        ("deflate", TEXT),
        ("gzip", gzip.compress(TEXT)[:-1]),
        ("gzip", gzip.compress(TEXT)[:-8] + b"x" * 8),
        ("gzip", gzip.compress(TEXT) + b"more"),
        ("gzip", gzip.compress(b"") * (MEMBERS + 1)),
        ("deflate", zlib.compress(TEXT) + b"more"),
        ("deflate", zlib.compress(TEXT)[:-1]),
        ("gzip", b"\x1f"),
        ("zstd", TEXT),
        ("zstd", zstd.compress(TEXT)[:-1]),
        ("zstd", zstd.compress(TEXT) + b"more"),
        ("zstd", zstd.compress(b"") * (MEMBERS + 1)),
        ("zstd", b"("),
        ("zstd", wide(TEXT)),
    ],
    # Names of their own: the data holds the time at which it was compressed, and workers must agree on names.
    ids=[
        "gzip-plain",
        "deflate-plain",
        "gzip-cut",
        "gzip-wrong-sum",
        "gzip-more",
        "gzip-members",
        "deflate-more",
        "deflate-cut",
        "gzip-one-byte",
        "zstd-plain",
        "zstd-cut",
        "zstd-more",
        "zstd-frames",
        "zstd-one-byte",
        "zstd-window",
    ],
)
def test_what_is_not_what_it_says(coding: str, data: bytes) -> None:
    inflater = Inflater(coding)
    with pytest.raises(BadRequest, match="cannot be decompressed as") as caught:
        for _ in inflater.feed(data):
            pass
        inflater.end()
    assert caught.value.code == "invalid_encoding"


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_a_bomb_goes_off_in_small_steps(coding: str) -> None:
    plain = bytes(100 * 2**20)
    bomb = gzip.compress(plain, compresslevel=1) if coding == "gzip" else zstd.compress(plain)
    del plain
    tracemalloc.start()
    inflater = Inflater(coding)
    assert all(len(piece) <= STEP for piece, _ in zip(inflater.feed(bomb), range(100), strict=False))
    assert tracemalloc.get_traced_memory()[1] < 4 * STEP + 2 * len(bomb)
    tracemalloc.stop()


# Over sockets


@pytest.mark.anyio
@pytest.mark.parametrize("form", FORMS)
async def test_an_endpoint_takes_it(gateway: Gateway, form: str) -> None:
    name, data = FORMS[form]
    response = await gateway.http.post(
        "/v1/chat/completions", content=data, headers={"content-encoding": name}
    )
    assert response.status_code == 200


@pytest.mark.anyio
async def test_another_coding_is_refused_and_the_connection_stays(gateway: Gateway) -> None:
    async with RawConnection(gateway.port) as wire:
        wire.post(b"(/\xb5/\xfd", content_encoding="br")
        answer = await wire.answer()
        assert (answer.status, answer.headers["accept-encoding"]) == (415, "gzip, deflate, zstd")
        assert answer.json()["error"]["code"] == "unsupported_content_encoding"
        wire.post(chat())
        assert (await wire.answer()).status == 200


@pytest.mark.anyio
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/messages", "/v1/moderations", "/v1/embeddings"]
)
async def test_a_bomb_is_too_large(gateway: Gateway, path: str) -> None:
    bomb = gzip.compress(bytes(20 * 2**20), compresslevel=1)
    assert len(bomb) < 100_000
    async with RawConnection(gateway.port) as wire:
        wire.post(bomb, path, content_encoding="gzip")
        assert (await wire.answer()).status == 413
        wire.post(chat())
        assert (await wire.answer()).status == 200


@pytest.mark.anyio
async def test_a_byte_order_mark_is_no_part_of_the_body(gateway: Gateway) -> None:
    for body, headers in (
        (b"\xef\xbb\xbf" + TEXT, {}),
        (gzip.compress(b"\xef\xbb\xbf" + TEXT), {"content-encoding": "gzip"}),
    ):
        response = await gateway.http.post("/v1/chat/completions", content=body, headers=headers)
        assert response.status_code == 200
