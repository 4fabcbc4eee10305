"""Asks servers which adapters they list, again and again: those of backends under ``adapters.listed``."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import httpx

from gateway.adapters.listed import ListedAdapters
from gateway.adapters.servers import ModelsServer, models_server
from gateway.backends.lora_names import Listing, loras_in_use
from gateway.errors import Upstream
from gateway.policy.schema import Backend, EngineBackend, OpenAIBackend, Policy

log = logging.getLogger(__name__)

EVERY = 2.0
"""Seconds between two questions to one server;"""
MANY, SLOWEST = 100, 30.0
"""of more servers each is asked less often, down to once in so many seconds."""
PATIENCE = 2.0
"""Seconds for an answer."""
FORGET_AFTER = 30.0
"""Seconds without an answer until a server is taken to list nothing. Breakers tell sooner that it is away."""
FIRST = 1.0
"""Seconds that a policy waits for the first answer of a new backend's servers before it is in force."""


class ListingRoom:
    """One per worker; it outlives policies."""

    def __init__(
        self,
        *,
        on_gone: Callable[[str, str], object] = lambda server, asked: None,
        transport: Callable[[], httpx.AsyncBaseTransport] | None = None,
    ) -> None:
        """``on_gone``: as ``ListedAdapters``'."""
        self.adapters = ListedAdapters(on_gone=on_gone)
        self._transport = transport
        self._asked: dict[str, tuple[object, _Question]] = {}
        """By server, with the settings that it is of."""
        self._closing: set[asyncio.Task[None]] = set()

    async def use(self, policy: Policy, names: Mapping[str, str]) -> None:
        """``policy`` is to be in force. ``names`` are the servers that may be asked, replicas among them, and the
        backends that they are of. Waits a little for those of backends that were not asked before."""
        listed = policy.adapters.listed if policy.adapters is not None else {}
        servers = {
            name: backend for name, backend in names.items() if backend in listed and name in policy.backends
        }
        known = {names.get(name) for name in self._asked}
        self.adapters.keep(servers)
        new: list[_Question] = []
        for name in self._asked.keys() | servers.keys():
            config = policy.backends.get(name) if name in servers else None
            before = self._asked.get(name)
            if before is not None and before[0] == config:
                continue
            if before is not None:
                del self._asked[name]
                closing = asyncio.create_task(before[1].aclose())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            if config is not None and (server := self._server(name, config)) is not None:
                question = _Question(name, server, self.adapters, self._interval)
                self._asked[name] = config, question
                if servers[name] not in known:
                    new.append(question)
        if new:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST):
                    await asyncio.gather(*(one.answered.wait() for one in new))

    def problem(self, server: str) -> str | None:
        """Why it does not say what it has, where it does not."""
        asked = self._asked.get(server)
        return asked[1].problem if asked is not None else None

    def page(self, server: str, page: bytes) -> None:
        """What its ``/metrics`` say, which are read anyway."""
        if server in self._asked:
            with suppress(ValueError):
                if (in_use := loras_in_use(page)) is not None:
                    self.adapters.uses(server, in_use)

    async def aclose(self) -> None:
        asked, self._asked = self._asked, {}
        self.adapters.keep({})
        await asyncio.gather(*self._closing, *(one.aclose() for _, one in asked.values()))

    def _interval(self) -> float:
        return max(EVERY, min(EVERY * len(self._asked) / MANY, SLOWEST))

    def _server(self, name: str, config: Backend) -> ModelsServer | None:
        transport = self._transport() if self._transport is not None else None
        match config:
            case EngineBackend():
                return models_server(name, f"{config.base_url.rstrip('/')}/v1", None, transport)
            case OpenAIBackend():
                key = config.api_key.get_secret_value() if config.api_key is not None else None
                return models_server(name, config.base_url, key, transport)
        return None


class _Question:
    """To one server."""

    def __init__(
        self,
        name: str,
        server: ModelsServer,
        adapters: ListedAdapters,
        interval: Callable[[], float],
    ) -> None:
        self.answered = asyncio.Event()
        """Whether it has answered, or failed to, once."""
        self.problem: str | None = None
        self._name = name
        self._server = server
        self._adapters = adapters
        self._interval = interval
        self._left_out = 0
        self._task = asyncio.create_task(self._ask_again_and_again(), name=f"adapters of {name}")

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._server.aclose()

    async def _ask_again_and_again(self) -> None:
        failing: float | None = None
        share = random.random()
        while True:
            try:
                async with asyncio.timeout(PATIENCE):
                    listing = await self._server.listing()
            except (Upstream, TimeoutError) as error:
                now = time.monotonic()
                self.problem = str(error) or "it is late"
                if failing is None:
                    failing = now
                    log.warning("'%s' does not say which adapters it has: %s", self._name, self.problem)
                self._adapters.restarted(self._name)
                if now - failing >= FORGET_AFTER:
                    self._adapters.update(self._name, Listing())
            else:
                failing = self.problem = None
                self._adapters.update(self._name, listing)
                if listing.left_out and not self._left_out:
                    log.warning(
                        "'%s' lists %d adapters that nobody can ask for: docs/adapters.md has what is one",
                        self._name,
                        listing.left_out,
                    )
                self._left_out = listing.left_out
            self.answered.set()
            # All are asked at once when they begin, and one after the other from then on.
            await asyncio.sleep(self._interval() * share)
            share = 1.0
