"""A conversation that names a file of ``/v1/files`` is sent with its content, whatever API its model has."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from tests.fakes import FakeUpstream, completion, reply
from tests.gateway.metering.files import pdf
from tests.serving import KEY, OTHER_KEY, Gateway, a_policy, serving

pytestmark = pytest.mark.anyio

PDF = pdf(2)
URL = f"data:application/pdf;base64,{b64encode(PDF).decode()}"
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "c",
    "content": [{"type": "text", "text": "Two."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 1},
}


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream() as server:
        yield server


@pytest.fixture
async def gateway(tmp_path: Path, upstream: FakeUpstream) -> AsyncIterator[Gateway]:
    base = upstream.base_url.removesuffix("/v1")
    rules = a_policy(upstream.base_url)
    rules["backends"]["claude"] = {"kind": "anthropic", "base_url": base, "api_key": "k"}
    rules["models"]["claude"] = {"targets": [{"backend": "claude", "model": "c"}]}
    async with serving(tmp_path / "p", rules) as running:
        yield running


def client(gateway: Gateway, key: str = KEY) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)


def asking(**file: Any) -> Any:
    parts = [{"type": "text", "text": "How many pages?"}, {"type": "file", "file": file}]
    return [{"role": "user", "content": parts}]


async def test_in_chat_and_in_responses(gateway: Gateway, upstream: FakeUpstream) -> None:
    sdk = client(gateway)
    file = await sdk.files.create(file=("report.pdf", PDF), purpose="user_data")
    upstream.scripts = [reply(completion("Two."))] * 3
    await sdk.chat.completions.create(model="up", messages=asking(file_id=file.id, filename="r.pdf"))
    said = upstream.requests[-1].json()["messages"][0]["content"][1]
    assert said == {"type": "file", "file": {"filename": "r.pdf", "file_data": URL}}
    parts: Any = [
        {"type": "input_text", "text": "How many?"},
        {"type": "input_file", "file_id": file.id},
        {"type": "input_image", "file_id": file.id, "detail": "low"},
    ]
    first = await sdk.responses.create(model="up", input=[{"role": "user", "content": parts}])
    said = upstream.requests[-1].json()["messages"][0]["content"]
    assert said[1] == {"type": "file", "file": {"file_data": URL}}
    assert said[2] == {"type": "image_url", "image_url": {"url": URL, "detail": "low"}}
    await sdk.responses.create(model="up", input="And now?", previous_response_id=first.id)
    assert upstream.requests[-1].json()["messages"][0]["content"][1] == said[1]
    await sdk.close()


async def test_where_the_model_has_another_api(gateway: Gateway, upstream: FakeUpstream) -> None:
    sdk = client(gateway)
    file = await sdk.files.create(file=("report.pdf", PDF), purpose="user_data")
    upstream.scripts = [reply(MESSAGE)]
    await sdk.chat.completions.create(model="claude", messages=asking(file_id=file.id))
    source = {"type": "base64", "media_type": "application/pdf", "data": b64encode(PDF).decode()}
    assert upstream.requests[-1].json()["messages"][0]["content"][1] == {"type": "document", "source": source}
    await sdk.close()


async def test_anothers_file_does_not_exist(gateway: Gateway, upstream: FakeUpstream) -> None:
    sdk, stranger = client(gateway), client(gateway, OTHER_KEY)
    file = await sdk.files.create(file=("report.pdf", PDF), purpose="user_data")
    with pytest.raises(
        BadRequestError, match=r"messages\[0\].content\[1\].file.file_id' names no file of yours"
    ):
        await stranger.chat.completions.create(model="up", messages=asking(file_id=file.id))
    await sdk.files.delete(file.id)
    with pytest.raises(BadRequestError, match="names no file of yours"):
        await sdk.chat.completions.create(model="up", messages=asking(file_id=file.id))
    assert upstream.requests == []
    await sdk.close()
    await stranger.close()


async def test_what_lies_with_the_provider_is_for_it(gateway: Gateway, upstream: FakeUpstream) -> None:
    sdk = client(gateway)
    upstream.scripts = [reply(completion("Two."))]
    await sdk.chat.completions.create(model="up", messages=asking(file_id="file-abc123"))
    assert upstream.requests[-1].json()["messages"] == asking(file_id="file-abc123")
    with pytest.raises(BadRequestError, match="no file that this model's provider knows; send file_data"):
        await sdk.chat.completions.create(model="claude", messages=asking(file_id="file-abc123"))
    await sdk.close()


async def test_what_is_attached_is_bounded_as_a_body_is(tmp_path: Path, upstream: FakeUpstream) -> None:
    async with serving(tmp_path / "p", a_policy(upstream.base_url), max_body_bytes=4096) as gateway:
        sdk = client(gateway)
        file = await sdk.files.create(file=("a.txt", b"x" * 3000), purpose="user_data")
        other = await sdk.files.create(file=("b.txt", b"x" * 3000), purpose="user_data")
        upstream.scripts = [reply(completion("Two."))]
        await sdk.chat.completions.create(model="up", messages=asking(file_id=file.id))
        for second in (file.id, other.id):
            messages = asking(file_id=file.id) + asking(file_id=second)
            body = {"model": "up", "messages": messages}
            answer = await gateway.http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 413, answer.text
            assert "messages[1].content[1].file.file_id" in answer.json()["error"]["message"]
        await sdk.close()
