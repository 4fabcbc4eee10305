"""A policy with all that serves it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self

from gateway.adapters.adapter import Adapter
from gateway.adapters.listed import ListedAdapter
from gateway.adapters.room import AdapterRoom
from gateway.backends.engine_poller import EnginePoller
from gateway.backends.readiness import Readiness
from gateway.batches.batch_table import BatchTable
from gateway.caching.caches import Caches, Closable
from gateway.errors import UnknownModel
from gateway.evaluation.table import EvaluationTable
from gateway.feedback.table import FeedbackTable
from gateway.files.stored_files import StoredFiles
from gateway.guards.scans.background import BackgroundScans
from gateway.identity.authenticator import Authenticator
from gateway.observe.accounting import Accounting
from gateway.observe.cache_days import CacheDays
from gateway.observe.json_lines import JsonLines
from gateway.observe.ledger.ledger import Ledger
from gateway.observe.receipts import Receipts
from gateway.observe.telemetry.telemetry import Telemetry
from gateway.policy import schema
from gateway.policy.members import Members
from gateway.quota.quotas import Quotas
from gateway.recording.recordings import Recordings
from gateway.recording.records import Records
from gateway.rendered import RenderedCache
from gateway.replicas.rotation import Rotation
from gateway.runtime.earlier_usage import EarlierUsage
from gateway.runtime.rollouts import Rollouts
from gateway.stores.redis import RedisStore
from gateway.stores.response_store import ResponseStore
from gateway.types import Backend, Handler, Principal, WholeHandler


class Adapted(Protocol):
    """The adapters that a policy has."""

    @property
    def room(self) -> AdapterRoom: ...

    def find(self, principal: Principal, asked: str, /) -> Runtime | None:
        """The runtime in which ``asked`` is a model, where it names an adapter that ``principal`` may ask."""
        ...

    def unknown(self, principal: Principal, asked: str, /) -> UnknownModel:
        """What ``principal`` is told where ``find`` finds none."""
        ...

    def uploaded(self, principal: Principal, /) -> list[Adapter]:
        """Those of tenants that ``principal`` may ask."""
        ...

    def listed(self, principal: Principal, /) -> list[ListedAdapter]:
        """Those that servers list, and that ``principal`` may ask."""
        ...


@dataclass(eq=False)
class Runtime:
    """One policy generation. Requests keep the one they started with."""

    policy: schema.Policy
    authenticator: Authenticator
    backends: Mapping[str, Backend]
    engines: Mapping[str, EnginePoller]
    receipts: Receipts
    responses: ResponseStore | None
    """What ``/v1/responses`` keeps; None where it is to keep nothing."""
    files: StoredFiles | None
    """What ``/v1/files`` keeps; None where it is switched off."""
    batches: BatchTable
    feedback: FeedbackTable
    evaluations: EvaluationTable
    """What judges said of answers."""
    quotas: Quotas
    earlier_usage: EarlierUsage | None
    ledger: Ledger | None
    cache_days: CacheDays | None
    """What a semantic cache finds; None where there is none, or nothing is to be recorded."""
    findings: JsonLines | None
    """Of guards that only flag, for review."""
    accounting: Accounting
    caches: Caches
    flags: BackgroundScans
    rendered: RenderedCache
    handler: Handler
    """Answers calls to models."""
    whole: WholeHandler | None
    """The same for those whose ``request.is_whole``, where the policy has a use for no stage that needs a stream."""
    moderator: Handler
    """Answers ``/v1/moderations``."""
    counter: Handler
    """Answers ``/v1/messages/count_tokens`` and ``/v1/responses/input_tokens``."""
    readiness: Readiness
    members: Members = field(default_factory=dict)
    """The replicas that may be asked, by the backend that has them."""
    rotation: Rotation | None = None
    """How much of its share each of them gets."""
    telemetry: Telemetry | None = None
    records: Records | None = None
    """Where the policy records."""
    recordings: Recordings | None = None
    rollouts: Rollouts | None = None
    adapters: Adapted | None = None
    """Where the policy has ``adapters``."""
    created: int = field(default_factory=lambda: int(time.time()))
    _users: int = 0
    _unused: asyncio.Event | None = None
    """Of who waits for the last user to go."""

    @property
    def resources(self) -> frozenset[Closable]:
        """What is to be closed once no policy in use shares it."""
        owned: list[Closable | None] = [
            *(self.readiness, self.receipts, self.quotas, self.ledger, self.findings, self.authenticator),
            self.earlier_usage,
            self.cache_days,
            self.responses.store if self.responses is not None else None,
            self.files,
            self.telemetry,
            self.recordings,
            *self.backends.values(),
            *self.engines.values(),
            *self.caches.resources,
        ]
        return frozenset(resource for resource in owned if resource is not None)

    @property
    def stores_up(self) -> dict[str, float]:
        """Whether Redis answered when it was last asked, of a cluster the share that did, by what is kept there."""
        stores = {"receipts": self.receipts.store}
        if self.responses is not None:
            stores["responses"] = self.responses.store
        found = {name: store.up for name, store in stores.items() if isinstance(store, RedisStore)}
        return found if self.quotas.store_up is None else {"quotas": self.quotas.store_up, **found}

    def servers(self, backend: str) -> list[str]:
        """The backends in use that are this one: itself, or its replicas."""
        if (members := self.members.get(backend)) is not None:
            return [member.name for member in members]
        return [backend] if backend in self.backends else []

    def out_of_use(self, model: str) -> bool:
        """Whether none of the backends of the model by this name is in use: false where there is no such model."""
        known = self.policy.resolve(model)
        return known is not None and self.readiness.out_of_use(known)

    def in_use(self) -> Self:
        """``with`` it for the length of a request: nothing that it may need is closed meanwhile."""
        return self

    def __enter__(self) -> None:
        self._users += 1

    def __exit__(self, *error: object) -> None:
        self._users -= 1
        if self._unused is not None and not self._users:
            self._unused.set()

    async def unused(self) -> None:
        while self._users:
            self._unused = self._unused or asyncio.Event()
            self._unused.clear()
            await self._unused.wait()
