"""The adapters of a worker: which there are, and which servers have which. Nothing of it runs while the policy has no
``adapters``."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from gateway.adapters import uploads
from gateway.adapters.adapter import Adapter
from gateway.adapters.catalogue import Catalogue
from gateway.adapters.derived import loads_adapters
from gateway.adapters.mounted import MountedFolder
from gateway.adapters.residents import Residents, Uses
from gateway.adapters.servers import Server, engine_server, vllm_server
from gateway.adapters.table import ADAPTERS, AdapterTable
from gateway.adapters.uploads import KEEPER
from gateway.backends.endpoint import Upload
from gateway.control.peers import Peers
from gateway.databases.database import DatabaseError
from gateway.databases.opening import open_tables
from gateway.errors import Internal, NotFound, UpstreamUnavailable
from gateway.files.stored_files import StoredFiles
from gateway.observe.metrics import Metrics
from gateway.policy.schema import AdapterServer, AdapterSettings, EngineBackend, OpenAIBackend, Policy

log = logging.getLogger(__name__)

LOOK_EVERY = 1.0
"""Seconds between two looks whether another gateway has changed something."""
SWEEP_EVERY = 600.0
CHANGED, USES = "adapters_changed", "adapter_uses"
"""What workers call it when they tell and ask one another."""


class AdapterRoom:
    """One per worker; it outlives policies."""

    def __init__(
        self,
        state_dir: Path,
        peers: Peers,
        metrics: Metrics,
        *,
        worker: int = 1,
        on_gone: Callable[[str], object] = lambda gone: None,
        transport: Callable[[], httpx.AsyncBaseTransport] | None = None,
    ) -> None:
        """``on_gone`` is told the ids of those that were deleted."""
        self.catalogue = Catalogue()
        self._on_gone = on_gone
        self._state_dir = state_dir
        self._peers = peers
        self._metrics = metrics
        self._worker = worker
        self._transport = transport
        self._settings: AdapterSettings | None = None
        self._where: object = None
        self._table: AdapterTable | None = None
        self._files: StoredFiles | None = None
        self._residents: dict[str, tuple[object, Residents]] = {}
        """By backend, with the settings that it is of."""
        self._looking: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()
        """One look at a time: an older one would take back what a later one has seen."""
        self._down = False
        self._closing: set[asyncio.Task[None]] = set()
        self._removing: set[asyncio.Task[None]] = set()

    @property
    def settings(self) -> AdapterSettings:
        if self._settings is None:
            raise NotFound("This gateway takes no adapters: its policy has no 'adapters'.")
        return self._settings

    @property
    def table(self) -> AdapterTable:
        if self._table is None:
            raise Internal("Adapters were asked for without a policy.")
        return self._table

    @property
    def files(self) -> StoredFiles:
        if self._files is None:
            raise NotFound(
                "This gateway keeps no files, and so no adapters: see 'files.enabled' of its policy."
            )
        return self._files

    async def update(self, policy: Policy) -> None:
        """Before its runtime is built."""
        if not loads_adapters(policy):
            return  # the one before may stay in force: see ``aclose``
        self._settings = policy.adapters
        if self._table is None or self._where != policy.ledger:
            self._where = policy.ledger
            self._table = AdapterTable(open_tables(ADAPTERS, policy.ledger, self._state_dir))
            self.catalogue = Catalogue()
        await self._look()
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_again_and_again(), name="adapters")

    def use(self, policy: Policy, files: StoredFiles | None, names: Mapping[str, str]) -> None:
        """``policy`` is in force. ``names`` are the servers that may be asked, replicas among them, and the backends
        that they are of."""
        self._files = files
        wanted: dict[str, tuple[object, Residents]] = {}
        settings = policy.adapters
        for name, parent in names.items() if settings is not None else ():
            told = settings.servers.get(parent) if settings is not None else None
            config = policy.backends.get(name)
            if told is None or not isinstance(config, EngineBackend | OpenAIBackend) or settings is None:
                continue
            what = (told, settings.folder, settings.load_timeout, config)
            known = self._residents.get(name)
            if known is not None and known[0] == what:
                wanted[name] = known
            else:
                wanted[name] = what, self._made(name, config, told, settings)
        gone = [
            one for name, (_, one) in self._residents.items() if wanted.get(name, (None, None))[1] is not one
        ]
        self._residents = wanted
        for one in gone:
            self._begin(one.aclose(), self._closing)

    def residents(self, backend: str) -> Residents | None:
        found = self._residents.get(backend)
        return found[1] if found is not None else None

    def held(self) -> dict[str, frozenset[str]]:
        """By backend, as far as this worker knows."""
        return {name: one.held for name, (_, one) in self._residents.items()}

    async def create(self, asked: uploads.Asked) -> Adapter:
        adapter = await uploads.create(asked, self.files, self.table, self.settings)
        await self._changed()
        return adapter

    async def delete(self, tenant: str | None, id: str) -> bool:
        """Whether it was there. It is found nowhere then, and unloaded in the background."""
        removed = await uploads.delete(tenant, id, self.files, self.table)
        if removed is not None:
            await self._changed()
        return removed is not None

    async def told(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Another worker has changed something."""
        await self._look()
        return {}

    async def asked(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What another worker wants to know of a server, in which it makes room."""
        one = self.residents(str(asked.get("backend")))
        if one is not None and asked.get("leaving"):
            one.leave(str(asked["leaving"]))
        return {"uses": one.uses() if one is not None else {}}

    async def aclose(self) -> None:
        """Also where a policy without adapters is in force; ``update`` opens it again."""
        self._settings = None
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        residents, self._residents = self._residents, {}
        for task in self._removing:
            task.cancel()  # a server answers when the last request of what was deleted has ended
        await asyncio.gather(*self._removing, *self._closing, return_exceptions=True)
        await asyncio.gather(*(one.aclose() for _, one in residents.values()))
        self.catalogue.update(-1, ())

    async def _changed(self) -> None:
        await self._look()
        with suppress(TimeoutError):  # it looks for itself in a second
            await self._peers.ask_others({"do": CHANGED})

    async def _look(self) -> None:
        """Take up what has changed. What fails is logged, once, and tried again."""
        table, catalogue = self._table, self.catalogue
        if table is None:
            return
        try:
            async with self._reading:
                if await asyncio.to_thread(table.last_change) != catalogue.number:
                    gone = catalogue.update(*await asyncio.to_thread(table.all))
                    self._forget(gone)
            self._down = False
        except DatabaseError as error:
            if not self._down:
                log.warning("adapters stay as they are known while their database is away: %s", error)
            self._down = True

    def _forget(self, gone: Iterable[Adapter]) -> None:
        for adapter in gone:
            self._on_gone(adapter.id)
            for _, residents in self._residents.values():
                self._begin(residents.remove(adapter.id), self._removing)

    def _begin(self, work: Coroutine[None, None, None], among: set[asyncio.Task[None]]) -> None:
        """Nobody waits for it."""
        task = asyncio.create_task(work)
        among.add(task)
        task.add_done_callback(among.discard)

    async def _look_again_and_again(self) -> None:
        swept = 0.0
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await self._look()
            self._metrics.adapters_held.sample(
                {(name,): float(len(held)) for name, held in self.held().items()}
            )
            if self._worker == 1 and time.monotonic() - swept > SWEEP_EVERY:
                swept = time.monotonic()
                await self._sweep()

    async def _sweep(self) -> None:
        if self._files is None or self._table is None or self._settings is None:
            return
        try:
            if removed := await uploads.sweep(self._files, self._table, time.time()):
                log.info("%d archives of adapters that a crash had left are removed", removed)
            if self._settings.folder is not None and not self._down:
                await self._mounted(self._settings.folder).keep(one.id for one in self.catalogue.all())
        except (DatabaseError, UpstreamUnavailable, OSError) as error:
            log.warning("what crashes left of adapters could not be removed: %s", error)

    def _made(
        self,
        name: str,
        config: EngineBackend | OpenAIBackend,
        told: AdapterServer,
        settings: AdapterSettings,
    ) -> Residents:
        transport = self._transport() if self._transport is not None else None
        token = told.token.get_secret_value() if told.token is not None else None
        server: Server
        if isinstance(config, EngineBackend):
            server = engine_server(name, config.base_url, token, self._archive, transport)
        else:
            key = config.api_key.get_secret_value() if config.api_key is not None else None
            mounted = self._mounted(settings.folder or "adapters")
            put = partial(self._put, mounted)
            server = vllm_server(name, config.base_url, token or key, told.folder or "", put, transport)
        return Residents(
            server,
            slots=told.slots,
            timeout=settings.load_timeout,
            elsewhere=None if self._peers.alone else partial(self._elsewhere, name),
            alone=partial(self._alone, name),
            on_load=partial(self._loaded, name),
            on_evict=self._metrics.adapter_evictions[name,].inc,
        )

    def _mounted(self, folder: str) -> MountedFolder:
        return MountedFolder(self._state_dir / folder)

    async def _put(self, mounted: MountedFolder, adapter: Adapter) -> Path:
        async with aclosing(self.files.read(KEEPER, adapter.archive)) as pieces:
            return await mounted.put(adapter, pieces)

    def _archive(self, adapter: Adapter) -> Upload:
        return Upload(adapter.archive_bytes, lambda: self.files.read(KEEPER, adapter.archive))

    def _loaded(self, backend: str, outcome: str, seconds: float) -> None:
        self._metrics.adapter_loads[backend, outcome].inc()
        if outcome == "ok":
            self._metrics.adapter_load_seconds[(backend,)].observe(seconds)

    async def _elsewhere(self, backend: str, leaving: str | None) -> Uses:
        uses: dict[str, tuple[float, int]] = {}
        with suppress(TimeoutError):
            for answer in await self._peers.ask_others({"do": USES, "backend": backend, "leaving": leaving}):
                for known, (worth, in_flight) in answer.get("uses", {}).items():
                    before = uses.get(known, (0.0, 0))
                    uses[known] = before[0] + worth, before[1] + in_flight
        return uses

    @asynccontextmanager
    async def _alone(self, backend: str) -> AsyncIterator[None]:
        """No other worker of this machine changes what ``backend`` has."""
        if self._peers.alone:
            yield
            return
        file = self._state_dir / "adapter-locks" / quote(backend, safe="@")
        handle = await asyncio.to_thread(_opened, file)
        try:
            while not _locked(handle):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            yield
        finally:
            os.close(handle)


def _opened(file: Path) -> int:
    file.parent.mkdir(mode=0o700, exist_ok=True)
    return os.open(file, os.O_RDWR | os.O_CREAT, 0o600)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
