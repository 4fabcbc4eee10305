"""A scripted vLLM: chat completions, ``/tokenize``, and KV events on real sockets. Each word is a token.

Its prefix cache is a plain dictionary: blocks come as prompts are answered, and go when a test says so.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from tests.fakes import (
    DONE,
    FakeUpstream,
    Received,
    Script,
    completion,
    delta,
    reply,
    sse,
    stream,
    usage_event,
)
from tests.gateway.held_prefixes.published import CLEARED, removed, stored
from tests.gateway.held_prefixes.publisher import EventServer

SIZE = 16


def ids_of(body: dict[str, Any]) -> list[int]:
    text = " ".join(f"<{one['role']}> {one['content']}" for one in body["messages"])
    return [zlib.crc32(word.encode()) % 100_000 for word in text.split()]


class VllmServer(FakeUpstream):
    def __init__(self, host: str = "127.0.0.1", beside: VllmServer | None = None) -> None:
        """``beside`` one at another host its events have the same ports."""
        super().__init__()
        self.host = host
        ports = (beside.events.port, beside.events.replay_port) if beside is not None else ()
        self.events = EventServer(host, *ports)
        self.held: dict[int, None] = {}
        self.tells = True
        """Whether it publishes what it stores."""
        self.reports = True
        """Whether usage has ``cached_tokens``."""
        self.remembers = True
        """Whether it keeps anything of what it computes."""
        self.tokenizes: bytes | None = b""
        """What ``/tokenize`` answers: ids, where this is empty; None: nothing, ever."""
        self.asked: list[dict[str, Any]] = []
        """Bodies of chat completions."""
        self.tokenized = 0
        self._last: Received | None = None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.events.stop()
        await super().__aexit__(kind, error, trace)

    def took(self, request: Received) -> None:
        self._last = request
        super().took(request)

    def next_script(self) -> Script:
        assert self._last is not None
        body = self._last.json()
        ids = ids_of(body)
        if self._last.path.endswith("/tokenize"):
            self.tokenized += 1
            if self.tokenizes is None:
                return [3600.0]
            if self.tokenizes:
                return [self.tokenizes]
            return reply({"count": len(ids), "max_model_len": 100_000, "tokens": ids})
        self.asked.append(body)
        cached = self._compute(ids, body.get("cache_salt"))
        usage: dict[str, Any] = {
            "prompt_tokens": len(ids),
            "completion_tokens": 1,
            "total_tokens": len(ids) + 1,
        }
        if self.reports:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        if body.get("stream"):
            words = [sse(delta(word)) for word in ("Hello ", "there")]
            return stream(*words, sse(delta(finish="stop")), sse(usage_event(**usage)), DONE)
        return reply(completion(usage=usage))

    def clear(self) -> None:
        self.held.clear()
        self.events.publish(CLEARED)

    def evict(self) -> None:
        """Everything, block by block."""
        gone, self.held = list(self.held), {}
        self.events.publish(*(removed(one) for one in gone))

    def compute(self, body: dict[str, Any], salt: str | None) -> None:
        """As if it had been asked by another."""
        self._compute(ids_of(body), salt)

    def claim(self, body: dict[str, Any], salt: str | None) -> None:
        """Say that it holds the prompt of ``body``, which it does not."""
        ids = ids_of(body)
        self.events.publish(_stored(_hashes(ids, salt), 0, ids, salt))

    def _compute(self, ids: Sequence[int], salt: str | None) -> int:
        """How many of the prompt's tokens were there; all are afterwards."""
        hashes = _hashes(ids, salt)
        known = next((at for at, one in enumerate(hashes) if one not in self.held), len(hashes))
        if known < len(hashes) and self.remembers:
            self.held.update(dict.fromkeys(hashes[known:]))
            if self.tells:
                self.events.publish(_stored(hashes, known, ids, salt))
        return known * SIZE

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self


def _hashes(ids: Sequence[int], salt: str | None) -> list[int]:
    found, before = [], hash((salt, "seed"))
    for start in range(0, len(ids) - SIZE + 1, SIZE):
        before = hash((before, tuple(ids[start : start + SIZE])))
        found.append(before)
    return found


def _stored(hashes: Sequence[int], first: int, ids: Sequence[int], salt: str | None) -> list[Any]:
    extras = [[salt] if at == 0 and salt else None for at in range(first, len(hashes))]
    return stored(
        list(hashes[first:]),
        hashes[first - 1] if first else None,
        list(ids[first * SIZE : len(hashes) * SIZE]),
        SIZE,
        extras=extras,
    )
