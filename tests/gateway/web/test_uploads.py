"""Uploaded forms that are passed on: what a server gets of them, what they cost, and what becomes of hostile ones."""

from __future__ import annotations

import asyncio
import gc
import os
import wave
from collections.abc import AsyncIterator
from contextlib import suppress
from email.message import Message
from email.parser import BytesParser
from email.policy import HTTP
from io import BytesIO
from typing import Any

import httpx
import openai
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI

from gateway.errors import BadRequest
from gateway.web.spool import IN_MEMORY
from gateway.web.upload import UploadedForm, receive_form
from tests.fakes import Action, FakeUpstream, Received, head, reply, sse, stream
from tests.serving import KEY, Gateway, RawConnection, a_policy, request, serving

pytestmark = pytest.mark.anyio

Part = tuple[str, str | None, bytes]
"""A name, a file's name, and what is in it."""


def parts_of(content_type: str, body: bytes) -> list[Part]:
    """By another parser than the gateway's."""
    found = BytesParser(policy=HTTP).parsebytes(
        b"content-type: " + content_type.encode() + b"\r\n\r\n" + body
    )
    parts: list[Part] = []
    for part in found.iter_parts():  # type: ignore[attr-defined]
        assert isinstance(part, Message)
        name = part.get_param("name", header="content-disposition")
        payload = part.get_payload(decode=True)
        assert isinstance(name, str) and isinstance(payload, bytes)
        parts.append((name, part.get_filename(), payload))
    return parts


def received(request: Received) -> dict[str, bytes]:
    assert int(request.headers["content-length"]) == len(request.body)
    parts = parts_of(request.headers["content-type"], request.body)
    assert len(parts) == len({name for name, _, _ in parts})
    return {name: payload for name, _, payload in parts}


def a_wave(seconds: float) -> bytes:
    file = BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(os.urandom(int(16000 * seconds)))
    return file.getvalue()


SOUND = a_wave(3)
TOLD = {"text": "Hello", "usage": {"type": "duration", "seconds": 3.0}}


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    http = httpx.AsyncClient(verify=False, trust_env=False)
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0, http_client=http) as it:
        yield it


async def stages(gateway: Gateway, answer: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = (await gateway.http.get(f"/v1/requests/{answer.headers['x-request-id']}")).json()
    return found["stages"]


async def test_a_transcription_by_the_sdk(client: AsyncOpenAI, upstream: FakeUpstream) -> None:
    upstream.scripts = [reply(TOLD)]
    answer = await client.audio.transcriptions.create(
        model="up", file=("a talk.wav", SOUND, "audio/wav"), language="en", prompt="names", temperature=0.2
    )
    assert answer.text == "Hello"
    sent = upstream.requests[0]
    assert sent.path == "/v1/audio/transcriptions"
    assert sent.headers["authorization"] == "Bearer sk-upstream-secret"
    assert received(sent) == {
        "model": b"upstream-model",
        "file": SOUND,
        "language": b"en",
        "prompt": b"names",
        "temperature": b"0.2",
    }
    names = {name: filename for name, filename, _ in parts_of(sent.headers["content-type"], sent.body)}
    assert names["file"] == "a talk.wav"
    assert b"content-type: audio/wav" in sent.body


@pytest.mark.parametrize(
    ("format", "kind", "body"),
    [
        ("text", "text/plain; charset=utf-8", "Hello\n"),
        ("srt", "text/plain", "1\n00:00"),
        ("vtt", "text/vtt", "WEBVTT"),
    ],
)
async def test_other_forms_of_the_answer(
    client: AsyncOpenAI, upstream: FakeUpstream, format: Any, kind: str, body: str
) -> None:
    upstream.scripts = [reply(body, kind=kind)]
    raw = await client.audio.transcriptions.with_raw_response.create(
        model="up", file=SOUND, response_format=format
    )
    assert (raw.headers["content-type"], raw.text) == (kind, body)


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
async def test_a_translation_by_the_sdk(client: AsyncOpenAI, upstream: FakeUpstream) -> None:
    upstream.scripts = [reply({"text": "Hello"})]
    assert (await client.audio.translations.create(model="up", file=SOUND)).text == "Hello"
    assert upstream.requests[0].path == "/v1/audio/translations"


async def test_a_transcription_in_events(client: AsyncOpenAI, upstream: FakeUpstream) -> None:
    go_on = asyncio.Event()
    usage = {"type": "tokens", "input_tokens": 30, "output_tokens": 5, "total_tokens": 35}
    upstream.scripts = [
        stream(
            sse({"type": "transcript.text.delta", "delta": "Hel"}),
            go_on,
            sse({"type": "transcript.text.delta", "delta": "lo"}),
            sse({"type": "transcript.text.done", "text": "Hello", "usage": usage}),
        )
    ]
    events = await client.audio.transcriptions.create(model="up", file=SOUND, stream=True)
    first = await anext(aiter(events))
    assert first.type == "transcript.text.delta"
    go_on.set()
    rest = [event async for event in events]
    assert [event.type for event in rest] == ["transcript.text.delta", "transcript.text.done"]
    assert received(upstream.requests[0])["stream"] == b"true"


async def test_an_edit_by_the_sdk(client: AsyncOpenAI, upstream: FakeUpstream) -> None:
    upstream.scripts = [reply({"created": 1, "data": [{"b64_json": "AA=="}]})]
    pictures: Any = [("a.png", b"\x89PNG1", "image/png"), ("b.png", b"\x89PNG2", "image/png")]
    await client.images.edit(model="up", image=pictures, mask=b"\x89PNGm", prompt="a hat", n=2)
    sent = upstream.requests[0]
    parts = parts_of(sent.headers["content-type"], sent.body)
    assert [payload for name, _, payload in parts if name == "image[]"] == [b"\x89PNG1", b"\x89PNG2"]
    assert {name: payload for name, _, payload in parts if name != "image[]"} == {
        "model": b"upstream-model",
        "prompt": b"a hat",
        "n": b"2",
        "mask": b"\x89PNGm",
    }


@pytest.mark.parametrize(
    ("price", "told", "kind", "dollars", "source"),
    [
        ({"minute": 0.6}, orjson.dumps(TOLD), "application/json", 0.03, "backend"),
        ({"minute": 0.6}, b'{"text": "", "duration": "4.0"}', "application/json", 0.04, "backend"),
        ({"minute": 0.6}, b"Hello", "text/plain", 0.03, "estimated"),
        (
            {"input": 6.0, "output": 10.0},
            b'{"usage": {"type": "tokens", "input_tokens": 30, "output_tokens": 5, "total_tokens": 35}}',
            "application/json",
            0.00023,
            "backend",
        ),
        ({"input": 6.0, "output": 10.0}, b'{"text": ""}', "application/json", None, "estimated"),
    ],
)
async def test_sound_is_billed_by_the_minute_or_by_tokens(
    gateway: Gateway,
    upstream: FakeUpstream,
    price: dict[str, float],
    told: bytes,
    kind: str,
    dollars: float | None,
    source: str,
) -> None:
    gateway.write(a_policy(upstream.base_url, prices={"upstream-model": price}))
    await gateway.generation(2)
    upstream.scripts = [reply(told, kind=kind)]
    answer = await gateway.http.post(
        "/v1/audio/transcriptions", data={"model": "up"}, files={"file": ("a.wav", SOUND)}
    )
    found = await stages(gateway, answer)
    quota = found["quota"]
    assert quota["source"] == source
    assert quota["cost_usd"] == pytest.approx(dollars) if dollars is not None else quota["cost_usd"] > 0
    assert quota["spent"][0]["unit"] == "second"


async def test_a_budget_holds_the_minutes_before_they_are_heard(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    budget = {"acme": {"budget": {"usd_per_day": 0.035}}}
    gateway.write(a_policy(upstream.base_url, prices={"upstream-model": {"minute": 0.6}}, tenants=budget))
    await gateway.generation(2)
    upstream.scripts = [reply(TOLD)]

    async def ask(sound: bytes, name: str) -> httpx.Response:
        form: Any = {"data": {"model": "up"}, "files": {"file": (name, sound)}}
        return await gateway.http.post("/v1/audio/transcriptions", **form)

    assert (await ask(a_wave(4), "long.wav")).status_code == 429, "0.04 dollars"
    refused = await ask(b"?" * 4000, "unknown.bin")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "sound_without_length")
    assert (await ask(SOUND, "a.wav")).status_code == 200
    assert (await ask(SOUND, "a.wav")).status_code == 429, "spent"
    assert len(upstream.requests) == 1


async def test_another_gets_the_same_upload(gateway: Gateway, upstream: FakeUpstream) -> None:
    """Whatever has become of the first, in the middle of the upload too."""
    sound = SOUND + os.urandom(30_000)
    async with FakeUpstream(reply(TOLD)) as other:
        policy = a_policy(upstream.base_url)
        policy["backends"]["other"] = {"kind": "openai", "base_url": other.base_url}
        policy["models"]["second"] = {"targets": [{"backend": "other", "model": "other-model"}]}
        policy["models"]["up"]["fallbacks"] = ["second"]
        gateway.write(policy)
        await gateway.generation(2)
        upstream.scripts = [reply({"error": {"message": "busy"}}, status=503)]
        answer = await gateway.http.post(
            "/v1/audio/transcriptions", files={"file": ("a.wav", sound), "model": (None, "up")}
        )
        assert (answer.status_code, answer.headers["x-tollgate-model"]) == (200, "second"), answer.text
        assert received(upstream.requests[0]) == {"model": b"upstream-model", "file": sound}
        assert received(other.requests[0]) == {"model": b"other-model", "file": sound}


async def test_a_large_upload_goes_to_a_file_and_on(upstream: FakeUpstream, tmp_path: Any) -> None:
    sound = os.urandom(3 * IN_MEMORY + 7)
    before = set(os.listdir("/proc/self/fd"))
    async with serving(tmp_path / "policies", a_policy(upstream.base_url)) as gateway:
        upstream.scripts = [reply(TOLD)]
        answer = await gateway.http.post(
            "/v1/audio/transcriptions", data={"model": "up"}, files={"file": ("a.wav", sound)}
        )
        assert answer.status_code == 200, answer.text
        assert received(upstream.requests[0])["file"] == sound
        deleted = [fd for fd in set(os.listdir("/proc/self/fd")) - before if "deleted" in _target(fd)]
        assert not deleted, "nothing is left of it"


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


async def test_a_server_that_refuses_need_not_read_it_all(tmp_path: Any) -> None:
    """Its answer counts, not that it closed the connection while the upload was under way."""
    refusal = orjson.dumps({"error": {"message": "too loud", "code": "loud"}})

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            head(413, {"content-type": "application/json", "content-length": str(len(refusal))}) + refusal
        )
        await writer.drain()
        await refused.wait()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        closed.set()

    refused, closed = asyncio.Event(), asyncio.Event()
    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, serving(tmp_path / "policies", a_policy(f"http://127.0.0.1:{port}/v1")) as gateway:
        answer = await gateway.http.post(
            "/v1/audio/transcriptions", data={"model": "up"}, files={"file": ("a.wav", os.urandom(2**24))}
        )
        assert answer.status_code in (400, 413), answer.text
        assert "too loud" in answer.json()["error"]["message"]
        refused.set()
        await closed.wait()


async def test_guards_read_its_texts_and_say_what_they_do_not(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    guards = {"pii": {"on": ["input"], "action": "mask", "entities": ["EMAIL_ADDRESS"]}}
    gateway.write(a_policy(upstream.base_url, guards=guards))
    await gateway.generation(2)
    upstream.scripts = [reply(TOLD)]
    fields = {"model": "up", "prompt": "I am a@example.com", "new_field": "so is b@example.com"}
    answer = await gateway.http.post(
        "/v1/audio/transcriptions", data=fields, files={"file": ("a.wav", SOUND)}
    )
    assert answer.status_code == 200
    sent = received(upstream.requests[0])
    assert b"@example.com" not in sent["prompt"] + sent["new_field"]
    assert sent["file"] == SOUND
    assert (await stages(gateway, answer))["guard_input"]["unread"] == ["audio"]


async def test_a_caller_that_leaves_stops_the_server(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [(Action.HANG,)]
    body = form(MODEL, FILE)
    async with RawConnection(gateway.port) as wire:
        kind = "multipart/form-data; boundary=x"
        wire.send(request("POST", "/v1/audio/transcriptions", body, content_type=kind))
        sent = await upstream.arrived()
        assert received(sent)["file"] == b"RIFF"
    async with asyncio.timeout(300):
        await sent.left.wait()


async def test_azures_path_names_the_model(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [reply(TOLD)]
    path = "/openai/deployments/up/audio/transcriptions?api-version=2024-06-01"
    answer = await gateway.http.post(path, files={"file": ("a.wav", SOUND)})
    assert answer.status_code == 200, answer.text
    assert received(upstream.requests[0])["model"] == b"upstream-model"


def form(*parts: bytes, end: bytes = b"--x--\r\n") -> bytes:
    return b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + end


FILE = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF'
MODEL = b'Content-Disposition: form-data; name="model"\r\n\r\nup'
HOSTILE: dict[str, tuple[bytes, str, str | None]] = {
    "no model": (form(FILE), "missing_required_parameter", "model"),
    "no file": (form(MODEL), "missing_required_parameter", "file"),
    "a file that is a field": (
        form(MODEL, b'Content-Disposition: form-data; name="file"\r\n\r\nRIFF'),
        "missing_required_parameter",
        "file",
    ),
    "two models": (form(FILE, MODEL, MODEL.replace(b"up", b"fake")), "invalid_value", "model"),
    "two files": (form(FILE, FILE, MODEL), "invalid_value", "file"),
    "five hundred parts": (form(*[MODEL] * 500), "too_many_parts", None),
    "a huge field": (
        form(b'Content-Disposition: form-data; name="prompt"\r\n\r\n' + b"a" * (2**20 + 1), FILE, MODEL),
        "string_above_max_length",
        "prompt",
    ),
    "another name beside": (
        form(FILE, MODEL, b'Content-Disposition: form-data; name="a\\"; name=\\"model"\r\n\r\nfake'),
        "invalid_form",
        None,
    ),
    "a part without a name": (form(FILE, MODEL, b"X: y\r\n\r\nfake"), "invalid_form", None),
    "cut off": (form(FILE, MODEL, end=b""), "invalid_form", None),
    "no text": (
        form(FILE, MODEL, b'Content-Disposition: form-data; name="prompt"\r\n\r\n\xff'),
        "invalid_form",
        "prompt",
    ),
    "no form": (b"RIFF", "invalid_form", None),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_forms(upstream: FakeUpstream, tmp_path: Any, name: str) -> None:
    body, code, param = HOSTILE[name]
    async with serving(tmp_path / "policies", a_policy(upstream.base_url)) as gateway:
        answer = await gateway.http.post(
            "/v1/audio/transcriptions",
            content=body,
            headers={"content-type": "multipart/form-data; boundary=x"},
        )
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, code, param), error
        assert not upstream.requests


async def test_hostile_sizes_and_types(gateway: Gateway, upstream: FakeUpstream) -> None:
    json = await gateway.http.post("/v1/audio/transcriptions", json={"model": "up", "file": "x"})
    assert (json.status_code, json.json()["error"]["code"]) == (400, "invalid_content_type")
    large = await gateway.http.post(
        "/v1/audio/transcriptions", data={"model": "up"}, files={"file": ("a", b"a" * 200_000)}
    )
    assert large.status_code == 413
    numbers = await gateway.http.post(
        "/v1/images/edits", data={"model": "up", "prompt": "a", "n": "1e9"}, files={"image": b"P"}
    )
    assert (numbers.status_code, numbers.json()["error"]["param"]) == (400, "n")
    other = await gateway.http.post(
        "/v1/audio/transcriptions", data={"model": "nope"}, files={"file": ("a", SOUND)}
    )
    assert other.status_code == 404
    assert not upstream.requests


async def test_a_cut_upload_leaves_nothing(gateway: Gateway, upstream: FakeUpstream) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    head_ = (
        f"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        "content-type: multipart/form-data; boundary=x\r\ncontent-length: 90000\r\n\r\n"
    )
    writer.write(head_.encode() + form(MODEL, FILE, end=b"")[:100])
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await gateway.http.get("/v1/models")).status_code == 200
    gc.collect()
    assert not upstream.requests


async def test_the_sdks_error(client: AsyncOpenAI, upstream: FakeUpstream) -> None:
    upstream.scripts = [reply({"error": {"message": "Unrecognized file format."}}, status=400)]
    with pytest.raises(openai.BadRequestError, match="Unrecognized file format"):
        await client.audio.transcriptions.create(model="up", file=b"?")


NAMES = st.text(alphabet="abcdefgh_[]0123456789.-", min_size=1, max_size=20)
TEXTS = st.text(max_size=60)
PARTS = st.lists(
    st.one_of(
        st.tuples(NAMES, st.none(), TEXTS.map(str.encode)),
        st.tuples(
            NAMES, st.sampled_from(["a.wav", "b c.mp3", "ü.ogg", 'q".flac', "n"]), st.binary(max_size=200)
        ),
    ),
    min_size=1,
    max_size=8,
)


def written(parts: list[Part], boundary: bytes) -> bytes:
    body = b""
    for name, filename, payload in parts:
        shown = b"" if filename is None else b'; filename="%b"' % filename.replace('"', "%22").encode()
        body += b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (
            boundary,
            name.encode(),
            shown,
            payload,
        )
    return body + b"--%b--\r\n" % boundary


async def read(body: bytes, sizes: list[int]) -> UploadedForm:
    """The form, as it arrives in pieces of these sizes."""
    pieces, at = [], 0
    for size in [*sizes, len(body)]:
        pieces.append(body[at : at + size])
        at += size

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    headers = {b"content-type": b"multipart/form-data; boundary=bound"}
    return await receive_form(headers, receive, 10**6)


@settings(max_examples=80, deadline=None)
@given(parts=PARTS, sizes=st.lists(st.integers(1, 60), max_size=8), model=TEXTS)
def test_only_the_model_is_exchanged(parts: list[Part], sizes: list[int], model: str) -> None:
    """However a form is cut up, its parts are sent on in order, byte for byte, but for the model's name."""
    parts = [*[part for part in parts if part[0] != "model"], ("model", None, b"asked")]
    parts.sort(key=lambda part: part[2])

    async def sent() -> tuple[str, bytes]:
        form = await read(written(parts, b"bound"), sizes)
        try:
            body = b"".join([piece async for piece in form.parts({"model": [model]})])
            assert len(body) == form.size({"model": [model]})
            return form.content_type, body
        finally:
            form.close()

    if any(b"--bound" in payload for _, _, payload in parts):
        return
    content_type, body = asyncio.run(sent())
    expected = [
        (name, filename, model.encode() if name == "model" else payload) for name, filename, payload in parts
    ]
    boundary = content_type.partition("boundary=")[2].encode()
    assert body == _canonical(expected, boundary)


def _canonical(parts: list[Part], boundary: bytes) -> bytes:
    whole = b""
    for name, filename, payload in parts:
        more = b""
        if filename is not None:
            shown = filename.replace('"', "%22").encode()
            more = b'; filename="%b"\r\ncontent-type: application/octet-stream' % shown
        whole += b'--%b\r\ncontent-disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (
            boundary,
            name.encode(),
            more,
            payload,
        )
    return whole + b"--%b--\r\n" % boundary


def test_a_text_that_is_none_is_refused() -> None:
    body = b'--bound\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n\xff\r\n--bound--\r\n'
    with pytest.raises(BadRequest):
        asyncio.run(read(body, []))
