"""Which servers the replicas are: found by one worker for all of a gateway, which read what it wrote down.

The file outlives the gateway: while neither DNS nor Kubernetes answers, the next one begins with what was known.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import httpx

from gateway.policy.file_changes import replace_file
from gateway.policy.members import Found
from gateway.policy.schema import EngineBackend, Policy, Replicas, Replicated
from gateway.private import private_folder
from gateway.replicas.arrivals import TIMEOUT, Arrivals, answers
from gateway.replicas.dns import DnsSource
from gateway.replicas.inference_pool import InferencePoolPods
from gateway.replicas.kubernetes import EndpointSlices
from gateway.replicas.source import Source

log = logging.getLogger(__name__)

FILE = "replicas.json"
"""In the state folder: by backend, how its replicas are found, and those that were."""
FIRST = 3.0
"""Seconds for the first look at each, and for its first answer, before a policy is in force."""


class Way(NamedTuple):
    """How the replicas of a backend are found."""

    base_url: str
    replicas: Replicas
    probe: str
    """What follows a server's URL where it is asked whether it answers."""
    waits: bool
    """Requests wait for the first one."""


Ways = Mapping[str, Way]
"""By backend."""


def ways_of(policy: Policy) -> dict[str, Way]:
    """Of those that are not written down."""
    return {
        name: Way(
            config.base_url,
            config.replicas,
            "/health" if isinstance(config, EngineBackend) else "/models",
            config.cold_start is not None,
        )
        for name, config in policy.backends.items()
        if isinstance(config, Replicated) and config.replicas is not None and not config.replicas.servers
    }


def written_down(policy: Policy) -> dict[str, Sequence[Found]]:
    """The replicas that the policy itself names."""
    return {
        name: [Found(one.url, one.weight, one.zone) for one in config.replicas.servers]
        for name, config in policy.backends.items()
        if isinstance(config, Replicated) and config.replicas is not None and config.replicas.servers
    }


class FoundFile:
    """What was found, for all workers."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE
        self._stamp: tuple[int, int] | None = None

    def changed(self) -> bool:
        """Since this was asked last; the first time it has."""
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
        except OSError:
            stamp = (0, 0)
        before, self._stamp = self._stamp, stamp
        return before != stamp

    def forget(self) -> None:
        """It is to be read again, as other ways are followed."""
        self._stamp = None

    def read(self, ways: Ways) -> dict[str, Sequence[Found]]:
        """Of backends whose replicas are still found in the same way."""
        known = self._content()
        try:
            return {
                name: [Found(*one) for one in known[name]["servers"]]
                for name, way in ways.items()
                if name in known and known[name]["way"] == _digest(*way[:2])
            }
        except (KeyError, TypeError):  # it is another version's, and will be written anew
            return {}

    def write(self, ways: Ways, found: Mapping[str, Sequence[Found]]) -> None:
        """Raises ``OSError``."""
        private_folder(self._path.parent)
        content = {
            name: {"way": _digest(*way[:2]), "servers": [list(one) for one in found[name]]}
            for name, way in ways.items()
            if name in found
        }
        replace_file(self._path, json.dumps(content, indent=1), 0o600)

    def _content(self) -> dict[str, dict[str, list[tuple[str, float, str | None]] | str]]:
        try:
            content = json.loads(self._path.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}


class Discovery:
    """Follows all sources of a policy, and writes down what they find."""

    def __init__(self, file: FoundFile, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """``transport`` stays the caller's to close; without it replicas are not asked whether they answer."""
        self._file = file
        self._http = (
            httpx.AsyncClient(transport=transport, timeout=TIMEOUT, trust_env=False)
            if transport is not None
            else None
        )
        self._ways: Ways = {}
        self._found: dict[str, Sequence[Found]] = {}
        self._first: dict[str, asyncio.Event] = {}
        """Set once the source of a backend has found anything."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._writing = asyncio.Lock()

    async def update(self, policy: Policy) -> None:
        """Follow those of ``policy``. Returns when each has been found once, or after ``FIRST`` seconds."""
        ways = ways_of(policy)
        for name in [name for name in self._tasks if ways.get(name) != self._ways.get(name)]:
            await ended(self._tasks.pop(name))
            self._found.pop(name, None)
        self._ways = ways
        new = [name for name in ways if name not in self._tasks]
        if new:
            self._found = {**await asyncio.to_thread(self._file.read, ways), **self._found}
        for name in new:
            self._first[name] = asyncio.Event()
            follows = self._follow(name, ways[name], self._first[name])
            self._tasks[name] = asyncio.create_task(follows, name=f"replicas of {name}")
        if new:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST):
                    await asyncio.gather(*(self._first[name].wait() for name in new))

    async def aclose(self) -> None:
        tasks, self._tasks = list(self._tasks.values()), {}
        await asyncio.gather(*map(ended, tasks))

    async def _follow(self, name: str, way: Way, first: asyncio.Event) -> None:
        telling = asyncio.Lock()

        async def tell(found: Sequence[Found]) -> None:
            async with telling:  # who says that nothing is new must not be before it is written down
                if self._found.get(name) != found:
                    self._found[name] = found
                    urls = ", ".join(one.url for one in found)
                    log.info("backend '%s' has %d replicas: %s", name, len(found), urls)
                    await self._write()
                first.set()

        async def answer(url: str) -> bool:
            return self._http is None or await answers(self._http, url + way.probe)

        within, known = way.replicas.ready_within, self._found.get(name, ())
        arrivals = Arrivals(name, answer, tell, within=within, known=known, waits=way.waits)
        try:
            async for found in source_of(name, way.base_url, way.replicas, empties=way.waits).follow():
                await arrivals.update(found)
        finally:
            await arrivals.aclose()

    async def _write(self) -> None:
        async with self._writing:
            try:
                await asyncio.to_thread(self._file.write, self._ways, dict(self._found))
            except OSError as error:
                log.error("the replicas that were found cannot be written down: %s", error)


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel it, as often as it takes: what waits for a DNS server may swallow a cancellation that comes with the
    answer (``asyncio.wait_for`` before Python 3.12)."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)


def source_of(backend: str, base_url: str, replicas: Replicas, *, empties: bool = False) -> Source:
    """``empties``: that there are none now is to be told, too, also where a mistake looks alike."""
    if replicas.kubernetes is not None:
        return EndpointSlices(backend, base_url, replicas.kubernetes)
    if replicas.pool is not None:
        return InferencePoolPods(backend, base_url, replicas.pool)
    return DnsSource(backend, base_url, replicas, empties=empties)


def _digest(base_url: str, replicas: Replicas) -> str:
    how = replicas.model_dump(mode="json", include={"dns", "srv", "kubernetes", "pool", "resolver"})
    return sha256(json.dumps([base_url, how], sort_keys=True).encode()).hexdigest()[:16]
