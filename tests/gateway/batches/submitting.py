"""Batches as OpenAI's SDK makes them and reads their files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import orjson
from openai.types import Batch

from gateway.batches.batch import ENDED
from tests.serving import KEY, Gateway, chat

CHAT = "/v1/chat/completions"


@asynccontextmanager
async def client(gateway: Gateway, token: str = KEY) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=token, max_retries=0) as made:
        yield made


def line(custom_id: str, content: str = "Hi", url: str = CHAT, **more: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": chat(content=content, **more)}


def written(*lines: Any) -> bytes:
    return b"\n".join(one if isinstance(one, bytes) else orjson.dumps(one) for one in lines)


async def create(openai: openai.AsyncOpenAI, *lines: Any, endpoint: Any = CHAT, **more: Any) -> Batch:
    file = await openai.files.create(file=("input.jsonl", written(*lines)), purpose="batch")
    return await openai.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more
    )


async def until(openai: openai.AsyncOpenAI, batch: Batch, completed: int) -> Batch:
    """So many lines have a result, or it has ended."""
    async with asyncio.timeout(300):
        while batch.status not in ENDED and (
            batch.request_counts is None or batch.request_counts.completed < completed
        ):
            await asyncio.sleep(0.02)
            batch = await openai.batches.retrieve(batch.id)
    return batch


async def end(openai: openai.AsyncOpenAI, batch: Batch) -> Batch:
    return await until(openai, batch, 10**6)


async def content(openai: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """Empty where there is no file."""
    if file_id is None:
        return []
    text = (await openai.files.content(file_id)).text
    return [orjson.loads(one) for one in text.splitlines()]
