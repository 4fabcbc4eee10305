"""An upstream that keeps its own books: it bills what it computed, whoever has left meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson

PROMPT = 15
"""Tokens that it bills for a prompt; the gateway, which knows no tokenizer, takes it for some more."""
NATURAL = 60
"""Tokens of an answer that nobody caps."""


class BillingUpstream:
    """An OpenAI-compatible server that says in the prompt what it is to do, and bills for it."""

    def __init__(self) -> None:
        self.bills: list[tuple[float, int]] = []
        """When (monotonic seconds), and how many tokens."""
        self.most_at_once = 0
        self._at_once = 0

    @property
    def billed(self) -> int:
        """Tokens."""
        return sum(tokens for _, tokens in self.bills)

    def most_within(self, seconds: float) -> int:
        """Most tokens in any stretch of so many seconds."""
        most = now = first = 0
        for time_, tokens in self.bills:
            now += tokens
            while self.bills[first][0] <= time_ - seconds:
                now -= self.bills[first][1]
                first += 1
            most = max(most, now)
        return most

    def _bill(self, tokens: int) -> None:
        self.bills.append((time.monotonic(), tokens))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(
                (one for one in head.lower().split("\r\n") if one.startswith("content-length:")), "x:0"
            )
            body = orjson.loads(await reader.readexactly(int(length.partition(":")[2])) or b"{}")
            if body:
                answers = body.get("n") or 1
                self._at_once += answers
                self.most_at_once = max(self.most_at_once, self._at_once)
                try:
                    await self._answer(body, writer)
                finally:
                    self._at_once -= answers
        writer.close()

    async def _answer(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        words = body["messages"][-1]["content"]
        cap = body.get("max_completion_tokens") or body.get("max_tokens") or NATURAL
        tokens, answers = min(cap, NATURAL), body.get("n") or 1
        if "refuse" in words and body["model"] == "first":
            _write(writer, 503, b'{"error": {"message": "busy"}}')
            return
        self._bill(PROMPT)
        if not body.get("stream"):
            self._bill(tokens * answers)  # whether or not anybody waits for it
            await asyncio.sleep(0.3 if "slow" in words else 0.02)
            if "break" in words and body["model"] == "first":
                return
            _write(writer, 200, orjson.dumps(_whole(body["model"], words, tokens, answers)))
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for i in range(tokens):
            if "break" in words and body["model"] == "first" and i == tokens // 2:
                return
            text = " AKIAIOSFODNN7EXAMPLE" if "secret" in words and i == tokens // 2 else " word"
            # Billed as it is computed, which is before anybody can have read it.
            self._bill(answers)
            for index in range(answers):
                writer.write(_event({"delta": {"content": text}, "index": index, "finish_reason": None}))
            await writer.drain()
            await asyncio.sleep(0.02 if "slow" in words else 0.002)
        for index in range(answers):
            last = index == answers - 1
            end = {"delta": {}, "index": index, "finish_reason": "length"}
            writer.write(_event(end, _usage(tokens * answers)) if last else _event(end))
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()


def _write(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"connection: close\r\n\r\n" + body)


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": PROMPT, "completion_tokens": tokens, "total_tokens": PROMPT + tokens}


def _whole(model: str, words: str, tokens: int, answers: int) -> dict[str, Any]:
    text = " AKIAIOSFODNN7EXAMPLE" if "secret" in words else " word" * tokens
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [
            {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
            for index in range(answers)
        ],
        "usage": _usage(tokens * answers),
    }


def _event(choice: dict[str, Any], usage: dict[str, int] | None = None) -> bytes:
    event = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "x", "choices": [choice]}
    return b"data: " + orjson.dumps({**event, **({"usage": usage} if usage else {})}) + b"\n\n"
