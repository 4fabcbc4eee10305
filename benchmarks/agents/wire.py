"""A client whose requests and answers can be read afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

PATIENCE_S = 600


def client(base_url: str, key: str, wire: Path | None, label: str) -> AsyncOpenAI:
    """With a ``wire`` each exchange is appended to it; streams then come at their end."""

    async def note(response: Any) -> None:
        await response.aread()
        told = {
            "task": label,
            "path": response.request.url.path,
            "request": json.loads(response.request.content or b"null"),
            "status": response.status_code,
            "id": response.headers.get("x-request-id"),
            "answer": response.text,
        }
        with wire.open("a") as file:  # type: ignore[union-attr]
            file.write(json.dumps(told, ensure_ascii=False) + "\n")

    http = DefaultAsyncHttpxClient(event_hooks={"response": [note]} if wire else {}, timeout=PATIENCE_S)
    return AsyncOpenAI(base_url=base_url, api_key=key, http_client=http, timeout=PATIENCE_S, max_retries=0)
