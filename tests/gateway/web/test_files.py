"""``/v1/files`` over real sockets: OpenAI's client, and clients that mean no good."""

from __future__ import annotations

import asyncio
import gzip
import io
import time
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest

from tests.fakes import FakeUpstream
from tests.gateway.web.test_form_parser import END, part
from tests.serving import KEY, OTHER_KEY, Gateway, RawConnection, a_policy, chat, request, serving

pytestmark = pytest.mark.anyio

FORM = "multipart/form-data; boundary=b"


def whole(content: bytes = b"abc", filename: str = "x.jsonl", **fields: str) -> bytes:
    told = {"purpose": "batch", **fields}
    return (
        part("file", content, filename=filename)
        + b"".join(part(name, value.encode()) for name, value in told.items())
        + END
    )


async def upload(gateway: Gateway, body: bytes, kind: str = FORM, **headers: str) -> httpx.Response:
    return await gateway.http.post("/v1/files", content=body, headers={"content-type": kind, **headers})


def contents(gateway: Gateway) -> list[Path]:
    folder = gateway.folder.parent / "state" / "files"
    return list(folder.iterdir()) if folder.exists() else []


async def test_openais_client_does_all_of_it(gateway: Gateway) -> None:
    def work() -> None:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0)
        text = b'{"custom_id": "1"}\n' * 50_000
        file = client.files.create(
            file=("in.jsonl", io.BytesIO(text)),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert file.object == "file" and file.status == "processed" and file.purpose == "batch"
        assert (file.filename, file.bytes) == ("in.jsonl", len(text))
        assert file.expires_at == file.created_at + 3600 and abs(file.created_at - time.time()) < 300
        assert client.files.retrieve(file.id) == file
        assert client.files.content(file.id).read() == text
        with client.files.with_streaming_response.content(file.id) as answer:
            assert answer.headers["content-type"] == "application/octet-stream"
            assert b"".join(answer.iter_bytes()) == text
        others = [client.files.create(file=b"%d" % number, purpose="user_data") for number in range(4)]
        assert others[0].expires_at is None
        kept = client.files.create(file=b"", purpose="batch")
        assert kept.expires_at == kept.created_at + 30 * 86_400 and kept.bytes == 0
        assert client.files.content(kept.id).read() == b""
        ids = [file.id, *(other.id for other in others), kept.id]
        assert [one.id for one in client.files.list(limit=2)] == ids[::-1], "page by page"
        assert [one.id for one in client.files.list(order="asc", purpose="user_data", limit=3)] == ids[1:5]
        page = client.files.list(limit=2)
        assert page.has_more and not client.files.list().has_more
        assert page.to_dict()["first_id"] == ids[-1] and page.to_dict()["last_id"] == ids[-2]
        for one in client.files.list(limit=2):
            deleted = client.files.delete(one.id)
            assert deleted.deleted and deleted.id == one.id and deleted.object == "file"
        assert client.files.list().data == []
        with pytest.raises(openai.NotFoundError, match="No such File object"):
            client.files.retrieve(file.id)

    await asyncio.to_thread(work)
    assert contents(gateway) == []


async def test_what_is_anothers_does_not_exist(gateway: Gateway) -> None:
    file = (await upload(gateway, whole())).json()
    other = {"authorization": f"Bearer {OTHER_KEY}"}
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        theirs = await gateway.http.request(method, f"/v1/files/{file['id']}{path}", headers=other)
        nobodys = await gateway.http.request(method, f"/v1/files/file-{'0' * 32}{path}", headers=other)
        assert theirs.status_code == nobodys.status_code == 404
        assert theirs.text.replace(file["id"], "") == nobodys.text.replace(f"file-{'0' * 32}", "")
    assert (await gateway.http.get("/v1/files", headers=other)).json()["data"] == []
    assert (await gateway.http.get(f"/v1/files/{file['id']}/content")).content == b"abc"


async def test_it_needs_a_key(gateway: Gateway) -> None:
    for method, path in (("GET", "/v1/files"), ("POST", "/v1/files"), ("GET", "/v1/files/x/content")):
        answer = await gateway.http.request(method, path, headers={"authorization": "Bearer no"})
        assert answer.status_code == 401


@pytest.mark.parametrize(
    "path", ["/files", "/v1/files/", "/openai/files", "/openai/v1/files", "/v1/v1/files"]
)
async def test_base_urls_that_are_not_quite_right(gateway: Gateway, path: str) -> None:
    assert (await gateway.http.get(path)).json()["object"] == "list"


async def test_fields_after_and_before_the_file(gateway: Gateway) -> None:
    file = part("file", b"abc", filename="x")
    purpose = part("purpose", b"user_data")
    expiry = part("expires_after[anchor]", b"created_at") + part("expires_after[seconds]", b"3600")
    for body in (file + purpose + expiry, purpose + expiry + file, expiry + file + purpose):
        found = (await upload(gateway, body + END)).json()
        assert found["expires_at"] == found["created_at"] + 3600 and found["purpose"] == "user_data"


@pytest.mark.parametrize(
    ("body", "param"),
    {
        "no purpose": (part("file", b"a", filename="x"), "purpose"),
        "its purpose": (whole(purpose="evil").removesuffix(END), "purpose"),
        "the gateway's purpose": (whole(purpose="batch_output").removesuffix(END), "purpose"),
        "no file": (part("purpose", b"batch"), "file"),
        "a field for a file": (part("purpose", b"batch") + part("file", b"abc"), "file"),
        "two files": (part("file", b"a", filename="x") * 2, "file"),
        "another file": (part("data", b"a", filename="x"), "file"),
        "no anchor": (whole(**{"expires_after[seconds]": "3600"}), "expires_after[anchor]"),
        "its anchor": (whole(**{"expires_after[anchor]": "last_active_at"}), "expires_after[anchor]"),
        "no seconds": (whole(**{"expires_after[anchor]": "created_at"}), "expires_after[seconds]"),
        "a flat expiry": (whole(expires_after="3600"), "expires_after"),
        **{
            f"seconds {seconds}": (
                whole(**{"expires_after[anchor]": "created_at", "expires_after[seconds]": seconds}),
                "expires_after[seconds]",
            )
            for seconds in ("3599", "2592001", "-1", "1e9", "٣٦٠٠", "9" * 5000)
        },
        "a long field": (part("purpose", b"b" * 10_000), "purpose"),
    }.values(),
)
async def test_what_is_wrong_is_named_and_leaves_nothing(gateway: Gateway, body: bytes, param: str) -> None:
    answer = await upload(gateway, body if body.endswith(END) else body + END)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert contents(gateway) == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", whole()),
        ("multipart/form-data; boundary=other", whole()),
        (FORM, b""),
        (FORM, whole()[:-12]),
        (FORM, part("n", b"") * 10_000 + END),
        (FORM, part("file", b"", "X: " + "x" * 50_000, filename="x") + END),
        (FORM, b"--b\r\n" + b"X: y\r\n" * 8000),
    ],
    ids=["json", "no-boundary", "other-boundary", "empty", "cut", "10000-parts", "huge-header", "headers"],
)
async def test_what_is_no_form_is_refused_and_leaves_nothing(
    gateway: Gateway, kind: str, body: bytes
) -> None:
    answer = await upload(gateway, body, kind)
    assert answer.status_code == 400 and answer.json()["error"]["message"]
    assert contents(gateway) == []
    assert (await gateway.http.get("/v1/files")).json()["data"] == []


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=10001", "limit"), ("limit=x", "limit"), ("order=up", "order")],
)
async def test_a_page_that_cannot_be_had(gateway: Gateway, query: str, param: str) -> None:
    answer = await gateway.http.get(f"/v1/files?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_name_is_no_path_and_no_header(gateway: Gateway) -> None:
    for name in ("../../../tmp/evil", "..\\evil", "/etc/evil", "evil"):
        file = (await upload(gateway, whole(filename=name))).json()
        assert file["filename"] == "evil"
    assert all(path.name.isalnum() for path in contents(gateway))
    file = (await upload(gateway, whole(filename="%22; x=é日.html"))).json()
    answer = await gateway.http.get(f"/v1/files/{file['id']}/content")
    assert answer.headers["content-disposition"] == (
        "attachment; filename=\"_; x=__.html\"; filename*=UTF-8''%22%3B%20x%3D%C3%A9%E6%97%A5.html"
    )
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_an_upload_cut_in_the_middle_leaves_nothing(gateway: Gateway) -> None:
    body = whole(b"x" * 3_000_000)
    for length in (len(body), len(body) * 2):  # honest, and more than ever comes
        async with RawConnection(gateway.port) as connection:
            head = request("POST", "/v1/files", content_type=FORM).replace(
                b"content-length: 0", b"content-length: %d" % length
            )
            connection.send(head + body[: len(body) // 2])
            async with asyncio.timeout(300):
                while not contents(gateway):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(300):
            while contents(gateway):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert (await gateway.http.get("/v1/files")).json()["data"] == []
    assert (await upload(gateway, whole())).status_code == 200


async def test_a_length_that_is_too_short_keeps_nothing(gateway: Gateway) -> None:
    body = whole()
    async with RawConnection(gateway.port) as connection:
        head = request("POST", "/v1/files", content_type=FORM)
        connection.send(head.replace(b"content-length: 0", b"content-length: %d" % (len(body) - 10)) + body)
        await connection.reader.read()  # what follows is no request: the connection ends
    async with asyncio.timeout(300):
        while contents(gateway):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await gateway.http.get("/v1/files")).json()["data"] == []


async def test_compressed_and_without_a_length(gateway: Gateway) -> None:
    body = whole(b"abc" * 100_000)
    squeezed = await upload(gateway, gzip.compress(body), **{"content-encoding": "gzip"})
    assert squeezed.json()["bytes"] == 300_000

    async def pieces() -> Any:
        for start in range(0, len(body), 10_000):
            yield body[start : start + 10_000]

    answer = await gateway.http.post("/v1/files", content=pieces(), headers={"content-type": FORM})
    content = await gateway.http.get(f"/v1/files/{answer.json()['id']}/content")
    assert content.content == b"abc" * 100_000


async def test_bounds_hold_for_declared_streamed_and_compressed(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    limits = {"files": {"max_bytes": "1MiB", "max_tenant_bytes": "2MiB"}}
    async with serving(tmp_path / "policies", a_policy(upstream.base_url, **limits)) as gateway:
        large = whole(b"x" * 2**21)
        sent: list[Any] = [{"content": large}]

        async def pieces() -> Any:
            for start in range(0, len(large), 2**18):
                yield large[start : start + 2**18]

        sent.append({"content": pieces()})
        sent.append({"content": gzip.compress(large), "headers": {"content-encoding": "gzip"}})
        for one in sent:
            headers = {"content-type": FORM, **one.pop("headers", {})}
            answer = await gateway.http.post("/v1/files", headers=headers, **one)
            assert answer.status_code == 413 and answer.json()["error"]["type"] == "invalid_request_error"
            assert contents(gateway) == []
        assert (await upload(gateway, whole(b"x" * 2**20))).status_code == 200
        full = await gateway.http.post("/v1/files", content=pieces(), headers={"content-type": FORM})
        assert full.status_code == 413, "one of an unknown length holds the most that it may have"
        assert (await upload(gateway, whole(b"x"))).status_code == 200
        full = await upload(gateway, whole(b"x" * 2**20))
        assert (full.status_code, full.json()["error"]["code"]) == (400, "file_storage_full")
        assert len(contents(gateway)) == 2


async def test_requests_count_and_those_under_way_hold_a_place(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    limits = {"tenants": {"acme": {"quotas": {"requests_per_minute": 4, "concurrent_requests": 1}}}}
    async with serving(tmp_path / "policies", a_policy(upstream.base_url, **limits)) as gateway:
        async with RawConnection(gateway.port) as connection:
            body = whole(b"x" * 3_000_000)
            head = request("POST", "/v1/files", content_type=FORM)
            connection.send(head.replace(b"content-length: 0", b"content-length: %d" % len(body)) + body[:-9])
            async with asyncio.timeout(300):
                while not contents(gateway):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            refused = await gateway.http.get("/v1/files")
            assert refused.status_code == 429 and "at once" in refused.json()["error"]["message"]
            connection.send(body[-9:])
            assert (await connection.answer()).status == 200
        statuses = [(await gateway.http.get("/v1/files")).status_code for _ in range(4)]
        assert statuses[0] == 200 and statuses[-1] == 429
        asked = await gateway.http.post("/v1/chat/completions", json=chat())
        assert asked.status_code == 429, "they are requests like others"


async def test_a_reader_who_leaves_holds_nothing(gateway: Gateway) -> None:
    file = (await upload(gateway, whole(b"x" * 20_000_000))).json()
    async with RawConnection(gateway.port, receive_buffer=4096) as connection:
        connection.send(request("GET", f"/v1/files/{file['id']}/content"))
        status, headers = await connection.head()
        assert status == 200 and headers["content-length"] == "20000000"
    open_files = Path("/proc/self/fd")
    async with asyncio.timeout(300):
        while any(str(contents(gateway)[0]) == str(path) for path in _targets(open_files)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert (await gateway.http.delete(f"/v1/files/{file['id']}")).status_code == 200


def _targets(folder: Path) -> list[Path]:
    found = []
    for link in folder.iterdir():
        try:
            found.append(link.readlink())
        except OSError:
            continue  # it was closed meanwhile
    return found


async def test_a_large_file_is_never_held(gateway: Gateway) -> None:
    size = 64 * 2**20
    head, tail = whole(b"\0").split(b"\0")

    async def pieces() -> Any:
        yield head
        for _ in range(size // 2**16):
            yield b"x" * 2**16
        yield tail

    tracemalloc.start()
    try:
        answer = await gateway.http.post("/v1/files", content=pieces(), headers={"content-type": FORM})
        path, taken = f"/v1/files/{answer.json()['id']}/content", 0
        async with gateway.http.stream("GET", path) as download:
            async for piece in download.aiter_raw():
                taken += len(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken == size and peak < size / 4


async def test_switched_off_it_says_so(upstream: FakeUpstream, tmp_path: Path) -> None:
    off = a_policy(upstream.base_url, files={"enabled": False})
    async with serving(tmp_path / "policies", off) as gateway:
        answer = await upload(gateway, whole())
        assert answer.status_code == 404 and "files.enabled" in answer.json()["error"]["message"]


async def test_the_document_has_the_form(gateway: Gateway) -> None:
    document = orjson.loads((await gateway.http.get("/openapi.json")).content)
    body = document["paths"]["/v1/files"]["post"]["requestBody"]["content"]
    assert list(body) == ["multipart/form-data"]
    name = body["multipart/form-data"]["schema"]["$ref"].rpartition("/")[2]
    fields = document["components"]["schemas"][name]
    assert fields["required"] == ["file", "purpose"] and "expires_after[seconds]" in fields["properties"]
