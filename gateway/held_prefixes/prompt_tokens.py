"""The token ids of prompts: only the servers know their tokenizers and chat templates, so one of them is asked.

vLLM, SGLang and the bundled engine answer ``POST /tokenize``, beside their API. The request waits for that, for a
moment at most. The ids of whole prompts are kept, as retries, copies and evaluations ask again; those of a conversation
that goes on are asked anew, as no beginning of a text is sure to have the beginning of its ids.

https://docs.vllm.ai/en/stable/serving/openai_compatible_server/
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from random import Random
from typing import Any, NamedTuple

import httpx
import orjson

from gateway.held_prefixes.block_keys import packed
from gateway.media import media_in
from gateway.types import ChatRequest, Json

PATIENCE = 0.25
"""Seconds that a request waits for its ids."""
RESTS = 5.0
"""Seconds for which a server is not asked that did not answer, or not so."""
_LATE = 3
"""Times in a row that a server may be late before it rests."""
_REMEMBERED = 1024
_LARGE = 256 * 2**10
"""Bytes of an answer from which on it is read beside the event loop."""
KEPT_BYTES = 32 * 2**20
MOST_AT_ONCE = 64
MOST_BYTES = 32 * 2**20
"""Of an answer."""
_SHAPING = (
    *(
        "messages",
        "tools",
        "tool_choice",
        "chat_template_kwargs",
        "reasoning_effort",
        "reasoning",
        "thinking",
    ),
    *("documents", "add_generation_prompt", "continue_final_message", "chat_template", "prompt"),
)
"""The fields of a request that its prompt depends on."""


class Server(NamedTuple):
    url: str
    """Of ``/tokenize``."""
    headers: Mapping[str, str]


class PromptTokens:
    """One worker's; the transport is its own, closed with it."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport,
        *,
        patience: float = PATIENCE,
        random: Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._patience = patience
        self._random = random or Random()
        self._clock = clock
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._asking = 0
        self._resting: dict[str, float] = {}
        self._late: dict[str, int] = {}
        """How often in a row, by server."""
        self.outcomes = {"told": 0, "kept": 0, "late": 0, "failed": 0, "skipped": 0}
        """How often, by what came of it."""

    async def of(
        self,
        request: ChatRequest,
        model: str,
        servers: Sequence[Server],
        *,
        until: float | None = None,
        owner: str = "",
    ) -> bytes | None:
        """``packed``, by one of ``servers``, which are alike; None where nobody says so in time: at most until
        ``until`` on the event loop's clock. ``owner``: whose prompt it is; by the time that it takes nobody learns
        whether another has asked the same."""
        if isinstance(request.prompt, list) and request.messages is None:
            return _given(request.prompt)
        body = _body(request, model)
        if body is None:
            self.outcomes["skipped"] += 1
            return None
        return await self._of_body(body, servers, until, owner)

    async def of_beginning(
        self,
        request: ChatRequest,
        model: str,
        servers: Sequence[Server],
        ids: bytes,
        *,
        until: float | None = None,
    ) -> int:
        """How many of ``ids``, the whole prompt's, are its first message's, as far as that alone has the same."""
        if not request.messages:
            return 0
        alone = {"model": model, "messages": request.messages[:1], "add_generation_prompt": False}
        found = await self._of_body(orjson.dumps(alone), servers, until, "")
        if found is None:
            return 0
        return (
            next((at for at in range(0, len(found), 4) if found[at : at + 4] != ids[at : at + 4]), len(found))
            // 4
        )

    async def _of_body(
        self, body: bytes, servers: Sequence[Server], until: float | None, owner: str
    ) -> bytes | None:
        whose = blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        key = blake2b(body, digest_size=16, key=whose).digest()
        if (known := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            self.outcomes["kept"] += 1
            return known
        now = self._clock()
        awake = [one for one in servers if self._resting.get(one.url, 0.0) <= now]
        latest = (at := asyncio.get_running_loop().time()) + self._patience
        latest = latest if until is None else min(until, latest)
        if not awake or latest <= at or self._asking >= MOST_AT_ONCE:
            self.outcomes["skipped"] += 1
            return None
        self._asking += 1
        server = self._random.choice(awake)
        try:
            async with asyncio.timeout_at(latest):
                ids = await self._ask(server, body)
        except TimeoutError:
            self.outcomes["late"] += 1
            self._was_late(server, now)
            return None
        except (httpx.TransportError, ValueError, TypeError, OverflowError):
            self.outcomes["failed"] += 1
            self._rest(server, now)
            return None
        finally:
            self._asking -= 1
        self.outcomes["told"] += 1
        self._late.pop(server.url, None)
        self._keep(key, ids)
        return ids

    def _was_late(self, server: Server, now: float) -> None:
        if len(self._late) >= _REMEMBERED:  # replicas come and go
            self._late.clear()
        self._late[server.url] = self._late.get(server.url, 0) + 1
        if self._late[server.url] >= _LATE:  # or each request would wait for it
            self._rest(server, now)

    def _rest(self, server: Server, now: float) -> None:
        self._resting = {url: end for url, end in self._resting.items() if end > now}
        self._resting[server.url] = now + RESTS

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _ask(self, server: Server, body: bytes) -> bytes:
        """Raises ``httpx.TransportError``, ``ValueError``, ``TypeError`` or ``OverflowError``."""
        request = httpx.Request(
            "POST",
            server.url,
            content=body,
            headers={
                **server.headers,
                "content-type": "application/json",
                "accept-encoding": "identity",
                "user-agent": "tollgate",
            },
            extensions={"timeout": {"connect": self._patience}},
        )
        response = await self._transport.handle_async_request(request)
        try:
            if response.status_code != 200:
                raise ValueError(f"status {response.status_code}")
            answer = bytearray()
            async for part in response.aiter_raw():
                answer += part
                if len(answer) > MOST_BYTES:
                    raise ValueError("the answer is too long")
        finally:
            await response.aclose()
        return await asyncio.to_thread(_ids, answer) if len(answer) >= _LARGE else _ids(answer)

    def _keep(self, key: bytes, ids: bytes) -> None:
        if key not in self._kept:
            self._kept_bytes += len(ids)
        self._kept[key] = ids
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1])


def _ids(answer: bytes | bytearray) -> bytes:
    """Raises ``ValueError``, ``TypeError`` or ``OverflowError``."""
    said = orjson.loads(answer)
    tokens = said.get("tokens") if isinstance(said, dict) else None
    if not isinstance(tokens, list) or not tokens:
        raise ValueError("the answer has no tokens")
    return packed(tokens)


def _body(request: ChatRequest, model: str) -> bytes | None:
    """None where it cannot be asked for: several prompts, and media, which only a server makes tokens of."""
    asked: dict[str, Json] = {"model": model}
    if request.messages is not None:
        if media_in(request.messages):
            return None
        asked["messages"] = request.messages
        if request.continues:
            asked |= {"continue_final_message": True, "add_generation_prompt": False}
    elif isinstance(request.prompt, str):
        asked["prompt"] = request.prompt
    else:
        return None
    asked |= {name: request.params[name] for name in _SHAPING if name in request.params}
    try:
        return orjson.dumps(asked)
    except TypeError:  # a lone surrogate
        return None


def _given(prompt: Sequence[Any]) -> bytes | None:
    """A prompt of token ids, as some callers send."""
    try:
        return packed(prompt) if prompt and isinstance(prompt[0], int) else None
    except (TypeError, OverflowError):
        return None
