"""Azure OpenAI, scripted: OpenAI's API at Azure's addresses, with its filters' verdicts
(https://learn.microsoft.com/azure/ai-foundry/openai/reference).

python -m benchmarks.conformance.providers.azure PORT
"""

from __future__ import annotations

import sys
from typing import Any

import orjson
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benchmarks.conformance.providers import openai

KEY = "azure-conformance"
MODEL = openai.MODEL
EMBEDDER = openai.EMBEDDER
"""Deployments with their models' names."""

SAFE = {name: {"filtered": False, "severity": "safe"} for name in ("hate", "self_harm", "sexual", "violence")}
PROMPT = [
    {
        "prompt_index": 0,
        "content_filter_results": {**SAFE, "jailbreak": {"filtered": False, "detected": False}},
    }
]
FIRST = {"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": PROMPT}
"""What a stream begins with: an event that is about the prompt alone."""


def app() -> ASGIApp:
    return Azure(openai.app())


class Azure:
    """``served`` at ``/openai/v1``, for who has Azure's key."""

    def __init__(self, served: ASGIApp) -> None:
        self._served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._served(scope, receive, send)
        headers = dict(scope["headers"])
        path = scope["path"].removeprefix("/openai")
        if headers.get(b"api-key", b"").decode() != KEY or path == scope["path"]:
            told = {"code": "401", "message": "Access denied due to invalid subscription key."}
            response = Response(orjson.dumps({"error": told}), 401, media_type="application/json")
            return await response(scope, receive, send)
        headers[b"authorization"] = f"Bearer {openai.KEY}".encode()
        inner = {**scope, "path": path, "raw_path": path.encode(), "headers": list(headers.items())}
        chats = path == "/v1/chat/completions"
        await self._served(inner, receive, _Filtered(send) if chats else send)


class _Filtered:
    """Adds the verdicts to a chat's answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._streams = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = dict(message["headers"]).get(b"content-type", b"")
            self._streams = kind.startswith(b"text/event-stream")
            if not self._streams:
                self._start = message
                return
            await self._send(message)
            first = b"data: " + orjson.dumps(FIRST) + b"\n\n"
            await self._send({"type": "http.response.body", "body": first, "more_body": True})
            return
        if self._start is not None:
            message = {**message, "body": _judged(message["body"])}
            length = str(len(message["body"])).encode()
            headers = [
                (name, length if name == b"content-length" else value)
                for name, value in self._start["headers"]
            ]
            await self._send({**self._start, "headers": headers})
            self._start = None
        await self._send(message)


def _judged(body: bytes) -> bytes:
    answer: dict[str, Any] = orjson.loads(body)
    if "choices" not in answer:
        return body
    choices = [{**choice, "content_filter_results": SAFE} for choice in answer["choices"]]
    return orjson.dumps({**answer, "choices": choices, "prompt_filter_results": PROMPT})


if __name__ == "__main__":
    uvicorn.run(app(), port=int(sys.argv[1]), log_level="warning")
