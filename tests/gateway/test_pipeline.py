from __future__ import annotations

import pytest

from gateway import pipeline
from gateway.admission.pools import Pools
from gateway.backends.dispatch import dispatch
from gateway.backends.fake import FakeBackend
from gateway.caching.caches import Caches
from gateway.cascade.complexity import ComplexityClassifier
from gateway.errors import Internal
from gateway.experiments.experiments import Experiments
from gateway.fallback.health import HealthRegistry
from gateway.guards.guards import Guards
from gateway.guards.scans.background import BackgroundScans
from gateway.observe.accounting import Accounting
from gateway.observe.metrics import Metrics
from gateway.observe.receipts import Receipts
from gateway.policy import schema
from gateway.quota.quotas import Quotas
from gateway.routing.router import Router
from gateway.routing.shadow import Shadows
from gateway.stores.memory import MemoryStore
from tests.fakes import CANDIDATE, a_call

pytestmark = pytest.mark.anyio


async def test_a_call_passes_all_stages_in_order() -> None:
    backend = FakeBackend(
        "up", schema.FakeBackend.model_validate({"kind": "fake", "script": [{"reply": "Hi"}]})
    )
    metrics, receipts, quotas, pools = Metrics(), Receipts(MemoryStore()), Quotas("memory"), Pools()
    accounting, call = Accounting(metrics, None), a_call()
    upstream = pipeline.UpstreamPipeline(
        policy=call.policy,
        backends={"up": backend},
        router=Router(call.policy, {"up"}, pools),
        health=HealthRegistry(),
        pools=pools,
        metrics=metrics,
    )
    stages = pipeline.Pipeline(
        policy=call.policy,
        metrics=metrics,
        receipts=receipts,
        accounting=accounting,
        quotas=quotas,
        guards=Guards(call.policy, {}),
        flags=BackgroundScans(metrics, receipts.keep),
        caches=Caches.open(call.policy, is_time_sensitive=lambda question: False),
        scorer=ComplexityClassifier.load(),
        shadows=Shadows(),
        side_calls=pipeline.SideCalls(quotas, accounting),
        experiments=Experiments(call.policy),
    )
    handler = stages.handler(upstream.handler())
    chunks = [chunk async for chunk in handler(call)]
    assert [chunk.delta for chunk in chunks] == [{"role": "assistant", "content": "Hi"}, {}]
    assert {"route", "queue", "fallback", "meter", "quota", "trace"} <= set(call.receipt.notes)
    assert b'tollgate_requests_total{backend="up",model="m",status="200"} 1.0' in metrics.render()
    await receipts.aclose()
    await quotas.aclose()


async def test_dispatch_goes_to_the_targets_backend() -> None:
    def scripted(reply: str) -> FakeBackend:
        script = [{"reply": reply}]
        return FakeBackend(reply, schema.FakeBackend.model_validate({"kind": "fake", "script": script}))

    call = a_call()
    call.candidate = CANDIDATE
    handler = dispatch({"other": scripted("no"), "up": scripted("yes")})
    assert (await anext(handler(call))).delta == {"role": "assistant", "content": "yes"}


async def test_a_call_without_a_target_is_a_bug() -> None:
    with pytest.raises(Internal):
        dispatch({})(a_call())
