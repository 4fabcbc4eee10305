"""The gateway without a server: one policy, what stands in for the rest of the world, requests by function calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, cast

from starlette.types import Message, Scope

from gateway.admission.fair_queue import QueueTerms
from gateway.admission.slot_lease import SlotLease
from gateway.cascade.complexity import ComplexityClassifier
from gateway.cascade.scorers import EmbeddingScorer, RequestScorer
from gateway.children.process_pool import ProcessPool
from gateway.identity.api_keys import hash_key
from gateway.lab.adapters_at_hand import ChangedViews, at_hand, uploaded
from gateway.lab.explain.at_rest import alone
from gateway.lab.policy_tests.schema import TestedAdapter
from gateway.lab.policy_tests.scripted import GuardServers, ScriptedBackend, Scripts
from gateway.lab.policy_tests.scripted_sidecar import ScriptedSidecar
from gateway.observe.metrics import Metrics
from gateway.policy.loader import Loaded
from gateway.policy.schema import Key, Policy
from gateway.runtime.background_requests import BackgroundRequests
from gateway.runtime.build import build_runtime
from gateway.runtime.runtime import Adapted, Runtime
from gateway.runtime.worker_state import WorkerState
from gateway.sidecar.client import SidecarClient
from gateway.types import Call, Chunk, Chunks, Handler, WholeHandler
from gateway.web import routes
from gateway.web.auth import Authentication
from gateway.web.dispatcher import Dispatcher
from gateway.web.operator_token import OperatorToken
from gateway.web.router import EndpointRouter
from gateway.wire.responses.sealed import SummarySeal

MAX_BODY = 64 * 2**20
OTHERS = "others"
"""The tenant of load that is not the test's own."""


@dataclass(slots=True)
class Answered:
    """The answer to one request."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    call: Call | None = None
    """None: it was refused before it became one."""
    took: float = 0.0


def secret_of(key_id: str) -> str:
    """The text of a key in tests: a policy has only hashes of the real ones."""
    return f"tg-test-{key_id}"


def with_secrets(policy: Policy, others: Sequence[Key]) -> Policy:
    """``policy`` with keys whose texts are known, and ``others``."""
    known = {key.sha256: hash_key(secret_of(key.id)) for key in policy.keys}
    keys = [key.model_copy(update={"sha256": known[key.sha256], "previous": None}) for key in policy.keys]
    revoked = [known.get(sha, sha) for sha in policy.revoked_keys]
    return policy.model_copy(update={"keys": (*keys, *others), "revoked_keys": tuple(revoked)})


class InProcess:
    """See ``in_process``."""

    def __init__(self, state: WorkerState, runtime: Runtime, scripts: Scripts, pool: ProcessPool) -> None:
        self.policy = runtime.policy
        self.scripts = scripts
        self._state = state
        self._calls: dict[str, Call] = {}
        self._load: dict[str, list[SlotLease]] = {}
        self._runtime = self._noticed(runtime)
        if runtime.adapters is not None:
            self._runtime.adapters = cast(Adapted, ChangedViews(runtime.adapters, self._noticed))
        self._runtime.rendered.is_used = False  # it answers as the stages do, and has no call to show
        self._background = BackgroundRequests()
        endpoints = routes.build(
            state.metrics,
            pool,
            OperatorToken(None),
            self._background,
            SummarySeal("tests of a policy"),
            max_body=MAX_BODY,
            heartbeat=0,
        )
        self._app = Dispatcher(
            EndpointRouter(endpoints, _no_lifespan),
            Authentication(public=routes.PUBLIC),
            current=lambda: self._runtime,
            metrics=state.metrics,
            error_writers=routes.ERROR_WRITERS,
        )

    def load(self, backend: str, answers: int) -> None:
        """So many answers are in flight at a backend for others."""
        for lease in self._load.pop(backend, []):
            lease.release()
        pool = self._state.pools.of(backend)
        self._load[backend] = [
            pool.acquire("default", QueueTerms(), OTHERS, tokens=1) for _ in range(answers)
        ]

    async def ask(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        address: str | None = None,
        clock: Callable[[], float],
    ) -> Answered:
        answered = Answered()
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": (address or "127.0.0.1", 50_000),
            "server": ("gateway", 80),
        }
        sent: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if sent:
                return sent.pop()
            await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered.status = message["status"]
                answered.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            answered.body += message.get("body", b"")

        began = clock()
        await self._app(scope, receive, send)
        answered.took = clock() - began
        answered.call = self._calls.pop(answered.headers.get("x-request-id", ""), None)
        return answered

    async def aclose(self) -> None:
        for backend in [*self._load]:
            self.load(backend, 0)
        await self._background.aclose()
        await self._state.shadows.aclose()
        await self._runtime.flags.aclose()
        await asyncio.gather(*(resource.aclose() for resource in self._runtime.resources))
        await self._state.aclose()

    async def settled(self) -> None:
        """Until guards that only flag have had their say."""
        await self._runtime.flags.idle()

    def _noticed(self, runtime: Runtime) -> Runtime:
        whole = runtime.whole
        return replace(
            runtime,
            handler=self._noticing(runtime.handler),
            whole=self._noticing_whole(whole) if whole is not None else None,
        )

    def _noticing(self, handler: Handler) -> Handler:
        def noticed(call: Call) -> Chunks:
            self._calls[call.request_id] = call
            return handler(call)

        return noticed

    def _noticing_whole(self, handler: WholeHandler) -> WholeHandler:
        async def noticed(call: Call) -> Sequence[Chunk]:
            self._calls[call.request_id] = call
            return await handler(call)

        return noticed


@asynccontextmanager
async def in_process(
    loaded: Loaded,
    folder: Path,
    scripts: Scripts,
    sidecar: ScriptedSidecar,
    servers: GuardServers,
    others: Sequence[Key],
    adapters: Mapping[str, TestedAdapter] = {},
) -> AsyncIterator[InProcess]:
    """``loaded`` in force, with backends by ``scripts``. ``others`` are keys beside the policy's own, ``adapters`` are
    by ``base:name``."""
    with TemporaryDirectory(prefix="tollgate-lab-") as state_dir:
        metrics = Metrics()
        state = WorkerState(
            metrics,
            folder=folder,
            state_dir=Path(state_dir),
            dev_key_sha256=hash_key(secret_of("dev")),
            transport=lambda: servers,
            stand_in=lambda name: ScriptedBackend(name, scripts),
            random=Random(0),
        )
        state.sidecar = cast(SidecarClient, sidecar)
        state.embedded_scorer = RequestScorer(EmbeddingScorer.load(ComplexityClassifier.load(), sidecar))
        uploads = [
            uploaded(model.rpartition(":")[0], model.rpartition(":")[2], one.tenant, one.shared_with)
            for model, one in adapters.items()
            if one.tenant is not None
        ]
        at_hand(state, uploads, [name for name, one in adapters.items() if one.tenant is None])
        policy = with_secrets(alone(loaded.policy), others)
        runtime = await build_runtime(replace(loaded, policy=policy), state, None)
        pool = ProcessPool()
        gateway = InProcess(state, runtime, scripts, pool)
        try:
            yield gateway
        finally:
            await gateway.aclose()
            await pool.aclose()


@asynccontextmanager
async def _no_lifespan(_: Any) -> AsyncIterator[None]:
    yield
