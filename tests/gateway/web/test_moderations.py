"""``/v1/moderations`` behind the door and the stages that a moderation passes, with the official SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from starlette.routing import Route
from starlette.types import Scope

from gateway.children.process_pool import ProcessPool
from gateway.guards.moderator import CATEGORIES, Moderator
from gateway.observe.accounting import Accounting
from gateway.observe.metrics import Metrics
from gateway.observe.receipts import Receipts
from gateway.quota.quotas import Quotas
from gateway.runtime.runtime import Runtime
from gateway.server.headers import RequestHeaders
from gateway.sidecar.api import Scored, SidecarDown
from gateway.stages.record import Observers, record
from gateway.stores.memory import MemoryStore
from gateway.types import Principal
from gateway.web.auth import Authentication
from gateway.web.body_parser import BodyParser, BodyReader
from gateway.web.dispatcher import Dispatcher
from gateway.web.endpoints.moderations import Moderations
from gateway.web.router import EndpointRouter
from gateway.web.routes import ERROR_WRITERS
from tests.fakes import policy

pytestmark = pytest.mark.anyio

HATE = {"hate": 0.9, "harassment": 0.2, "violence": 0.1, "sexual": 0.0, "self_harm": 0.0}


class Served:
    """The endpoint, with what the composition root puts around it."""

    def __init__(self, **rules: Any) -> None:
        self.metrics, self.receipts, self.quotas = Metrics(), Receipts(MemoryStore()), Quotas("memory")
        rules_ = policy(**rules)
        moderator = Moderator(rules_.guards, self._fast, lambda guard: self._gone)
        observers = Observers(self.quotas, metrics=self.metrics, receipts=self.receipts)
        handler = record(observers)(moderator.handle)
        accounting = Accounting(Metrics(), None)
        runtime = SimpleNamespace(
            policy=rules_,
            moderator=handler,
            in_use=nullcontext,
            accounting=accounting,
            telemetry=None,
            authenticator=self,
        )
        endpoint = Moderations(BodyReader(BodyParser(ProcessPool()), max_body=100_000))
        routes = [Route("/v1/moderations", endpoint, methods=["POST"])]
        self.app = Dispatcher(
            EndpointRouter(routes, lambda _: nullcontext()),
            Authentication(public=()),
            current=lambda: cast("Runtime", runtime),
            metrics=self.metrics,
            error_writers=ERROR_WRITERS,
        )
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://gateway", headers={"authorization": "x"}
        )
        self.sdk = AsyncOpenAI(
            base_url="http://gateway/v1", api_key="x", max_retries=0, http_client=cast("Any", self.http)
        )

    @staticmethod
    async def principal(scope: Scope, headers: RequestHeaders) -> Principal:
        return Principal("k", "acme")

    @staticmethod
    def _fast(text: str) -> dict[str, float]:
        return HATE if "vermin" in text else dict.fromkeys(HATE, 0.01)

    @staticmethod
    async def _gone(texts: Sequence[str]) -> list[list[Scored]]:
        raise SidecarDown("none")

    async def aclose(self) -> None:
        await self.sdk.close()
        await self.receipts.aclose()
        await self.quotas.aclose()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    yield served
    await served.aclose()


async def test_sdk(served: Served) -> None:
    answer = await served.sdk.moderations.create(input="they are vermin", model="omni-moderation-latest")
    assert answer.id.startswith("modr-req_")
    assert answer.model == "tollgate-toxicity"
    [result] = answer.results
    assert result.flagged
    assert result.categories.hate
    assert not result.categories.self_harm
    assert not result.categories.illicit_violent
    assert result.category_scores.hate == 0.9
    assert result.category_scores.sexual_minors == 0.0
    assert result.category_applied_input_types.violence_graphic == ["text"]
    # The SDK would have let a missing field pass.
    assert set(answer.results[0].model_dump(by_alias=True)["categories"]) == set(CATEGORIES)


async def test_sdk_lists_and_parts(served: Served) -> None:
    many = await served.sdk.moderations.create(input=["hello", "vermin", "hello"])
    assert [result.flagged for result in many.results] == [False, True, False]
    parts: Any = [{"type": "text", "text": "they are"}, {"type": "text", "text": "vermin"}]
    assert [result.flagged for result in (await served.sdk.moderations.create(input=parts)).results] == [True]


async def test_images_are_refused(served: Served) -> None:
    picture: Any = [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
    with pytest.raises(openai.BadRequestError, match="text only") as caught:
        await served.sdk.moderations.create(input=picture)
    assert caught.value.param == "input[0]"


async def test_it_leaves_a_receipt_and_is_counted(served: Served) -> None:
    got = await served.http.post("/v1/moderations", json={"input": ["vermin", "hello"]})
    receipt = await served.receipts.find("acme", got.headers["x-request-id"])
    assert receipt is not None
    assert receipt["stages"]["moderation"] == {"guard": None, "texts": 2, "flagged": 1, "checks": ["fast"]}
    assert receipt["stages"]["quota"]["used_tokens"] == receipt["stages"]["quota"]["cost_usd"] == 0
    assert "vermin" not in str(receipt)
    line = b'tollgate_requests_total{backend="",model="tollgate-toxicity",status="200"} 1.0'
    assert line in served.metrics.render()


async def test_requests_count_and_tokens_do_not() -> None:
    quotas = {"requests_per_minute": 2, "tokens_per_minute": 1}
    served = Served(tenants={"acme": {"quotas": quotas}})
    text = {"input": "many words " * 50}
    first, second, third = [await served.http.post("/v1/moderations", json=text) for _ in range(3)]
    assert (first.status_code, second.status_code, third.status_code) == (200, 200, 429)
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-remaining-tokens"] == "1"
    assert int(third.headers["retry-after"]) >= 1
    await served.aclose()


async def test_what_cannot_be_judged_is_not_called_clean() -> None:
    served = Served(guards={"toxicity": {}})
    got = await served.http.post("/v1/moderations", json={"input": "hello"})
    assert (got.status_code, got.json()["error"]["code"]) == (503, "guard_unavailable")
    assert got.headers["retry-after"]
    await served.aclose()
