"""The process as it is, over its socket."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest

from gateway.sidecar.client import SidecarClient
from tests.sidecars import SidecarProcess

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(sidecar: SidecarProcess) -> AsyncIterator[SidecarClient]:
    client = sidecar.client()
    yield client
    await client.aclose()


def dot(a: bytes, b: bytes) -> float:
    one, other = (struct.unpack(f"<{len(x) // 4}f", x) for x in (a, b))
    return sum(x * y for x, y in zip(one, other, strict=True))


async def test_like_sentences_have_like_embeddings_of_length_one(client: SidecarClient) -> None:
    cat, kitten, tax = await client.embed(["A cat sleeps.", "A kitten is asleep.", "Taxes are due in April."])
    assert len(cat) == 4 * 384
    assert dot(cat, cat) == pytest.approx(1, abs=1e-5)
    assert dot(cat, kitten) > 0.6 > 0.3 > dot(cat, tax)


async def test_company_in_a_batch_changes_nothing(client: SidecarClient) -> None:
    texts = [f"Sentence number {n} " + "goes on " * n for n in range(12)]
    together = await client.embed([f"{text}!" for text in texts])
    alone = [(await client.embed([f"{text}!"]))[0] for text in texts]
    assert together == alone
    apart = await asyncio.gather(*(client.embed([text]) for text in texts))
    assert min(dot(a[0], b) for a, b in zip(apart, together, strict=True)) > 0.8


async def test_status_tells_of_each_model(client: SidecarClient) -> None:
    status = await client.status()
    assert status["models"]["embedder"] == "ready"
    assert status["queue"] == 0
