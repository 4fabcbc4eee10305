"""A body that is larger than the gateway takes: every client reads why it was refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.gateways import serving
from tests.serving import key

LIMIT = 8 * 2**20
SIZE = 4 * LIMIT
"""More than twice as much, and than the systems at both ends hold."""
POLICY = {
    "version": 1,
    "backends": {"up": {"kind": "fake", "script": [{"reply": "Hello"}]}},
    "models": {"m": {"targets": [{"backend": "up", "model": "m"}]}},
    "keys": [key("tg-large", "k")],
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("large")
    with serving(folder, POLICY, TOLLGATE_MAX_BODY_BYTES=str(LIMIT)) as url:
        yield url


@pytest.mark.parametrize("closing", [False, True], ids=["kept", "to be closed"])
@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
def test_httpx_reads_why_a_body_is_refused(url: str, chunked: bool, closing: bool) -> None:
    content = (b" " * 2**18 for _ in range(SIZE // 2**18)) if chunked else b" " * SIZE
    headers = {"authorization": "Bearer tg-large", **({"connection": "close"} if closing else {})}
    with httpx.Client(timeout=300, trust_env=False) as client:
        answer = client.post(f"{url}/v1/chat/completions", content=content, headers=headers)
        assert answer.status_code == 413
        assert str(LIMIT) in answer.json()["error"]["message"]
        ask = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        assert client.post(f"{url}/v1/chat/completions", json=ask, headers=headers).status_code == 200


@pytest.mark.anyio
@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
async def test_a_client_that_does_not_block_reads_why_a_body_is_refused(url: str, chunked: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(SIZE // 2**18):
            yield b" " * 2**18

    headers = {"authorization": "Bearer tg-large"}
    async with httpx.AsyncClient(timeout=300, trust_env=False) as client:
        content = pieces() if chunked else b" " * SIZE
        answer = await client.post(f"{url}/v1/chat/completions", content=content, headers=headers)
        assert answer.status_code == 413


def test_openais_client_reads_why_a_body_is_refused(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="tg-large", max_retries=0, timeout=300)
    with pytest.raises(openai.APIStatusError) as refusal:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * SIZE}])
    assert refusal.value.status_code == 413
