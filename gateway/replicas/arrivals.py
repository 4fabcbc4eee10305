"""Replicas that have just been found: each is asked whether it answers before it is told on.

What it answers does not matter, unless that is an error of the server: who has no such path is there, too. One that
does not answer is asked again, and told on at last all the same: breakers say what is wrong with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

import httpx

from gateway.policy.members import Found

log = logging.getLogger(__name__)

TIMEOUT = 1.0
"""Seconds for one answer."""
PAUSE = 1.0
"""Seconds between two tries."""
_NOT_IMPLEMENTED = 501

Answers = Callable[[str], Awaitable[bool]]
"""Whether the server at this URL does."""


class Arrivals:
    """Of one backend. ``tell`` gets those that may be asked, whenever they were looked for or one has answered."""

    def __init__(
        self,
        backend: str,
        answers: Answers,
        tell: Callable[[Sequence[Found]], Awaitable[None]],
        *,
        within: float,
        known: Iterable[Found] = (),
        waits: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``within``: seconds after which one that does not answer is told on; 0 asks nobody. ``known`` were told on
        before. ``waits``: requests wait for the first one; else it is told on after one try, as there is no other."""
        self._backend = backend
        self._answers = answers
        self._tell = tell
        self._within = within
        self._waits = waits
        self._clock = clock
        self._found: Sequence[Found] = ()
        self._in = {one.url for one in known}
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def update(self, found: Sequence[Found]) -> None:
        """These have been found, and no others are there."""
        urls = {one.url for one in found}
        self._found = found
        self._in &= urls
        for url in self._asking.keys() - urls:
            self._asking.pop(url).cancel()
        if not self._within:
            self._in = urls
        for url in urls - self._in - self._asking.keys():
            self._asking[url] = asyncio.create_task(self._ask(url), name=f"first answer of {url}")
        await self._tell_those_in()

    async def aclose(self) -> None:
        asking, self._asking = list(self._asking.values()), {}
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, url: str) -> None:
        began, said = self._clock(), False
        while not await self._answers(url):
            if not self._in and not self._waits:
                break
            if self._clock() - began >= self._within:
                log.warning(
                    "replica %s of backend '%s' has not answered for %g s, and gets requests all the same",
                    *(url, self._backend, self._within),
                )
                break
            if not said:
                log.info("replica %s of backend '%s' does not answer yet", url, self._backend)
            said = True
            await asyncio.sleep(PAUSE)
        self._asking.pop(url, None)  # from here on it is not cancelled when it goes
        if any(one.url == url for one in self._found):
            self._in.add(url)
            await self._tell_those_in()

    async def _tell_those_in(self) -> None:
        able = [one for one in self._found if one.url in self._in]
        if able or not self._found:
            await self._tell(able)


async def answers(http: httpx.AsyncClient, url: str) -> bool:
    """Whether somebody answers there who does not say that he cannot."""
    try:
        async with asyncio.timeout(TIMEOUT), http.stream("GET", url) as response:
            return response.status_code < 500 or response.status_code == _NOT_IMPLEMENTED
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
        return False
