"""A policy without a gateway: everything that serves it is built, and none of it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from gateway.adapters.adapter import Adapter
from gateway.children.process_pool import ProcessPool
from gateway.identity.api_keys import hash_key
from gateway.lab.adapters_at_hand import at_hand, base_of
from gateway.lab.explain.dry_run import DryRun
from gateway.observe.metrics import Metrics
from gateway.policy.loader import Loaded
from gateway.policy.schema import Policy
from gateway.runtime.build import build_runtime
from gateway.runtime.worker_state import WorkerState


class NoNetwork(httpx.AsyncBaseTransport):
    """Nothing is sent by it."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nothing is sent here", request=request)


@asynccontextmanager
async def at_rest(
    loaded: Loaded, folder: Path, uploads: Sequence[Adapter] = (), asked: str = ""
) -> AsyncIterator[DryRun]:
    """``loaded`` as a gateway that was just started has it, and that has not served anybody. ``uploads``: the adapters
    that tenants have; servers list of themselves the one that ``asked`` names."""
    with TemporaryDirectory(prefix="tollgate-lab-") as state_dir:
        state = WorkerState(
            Metrics(),
            folder=folder,
            state_dir=Path(state_dir),
            dev_key_sha256=hash_key("dev"),
            transport=NoNetwork,
        )
        at_hand(state, uploads, [asked] if base_of(loaded.policy, asked) else [])
        runtime = await build_runtime(replace(loaded, policy=alone(loaded.policy)), state, None)
        pool = ProcessPool()
        dry = DryRun(runtime, state, pool, at_rest=True)
        try:
            yield dry
        finally:
            await pool.aclose()
            for resource in runtime.resources:
                await resource.aclose()
            await state.aclose()


def alone(policy: Policy) -> Policy:
    """Without what it would keep or send beside requests: in this process alone."""
    return policy.model_copy(
        update={
            "store": "memory",
            "cache_store": "same",
            "ledger": policy.ledger.model_copy(update={"enabled": False}),
            "files": policy.files.model_copy(update={"enabled": False}),
            "drift": None,
            "record": policy.record.model_copy(update={"enabled": False}),
            "review": policy.review.model_copy(update={"enabled": False}),
            "telemetry": policy.telemetry.model_copy(update={"endpoint": ""}),
            "callbacks": (),
        }
    )
