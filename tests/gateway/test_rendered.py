"""The lane for what was asked before beside the stages that it passes by: nobody can tell which of them answered."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp, Message

from gateway.caching.exact import MemoryAnswerStore
from gateway.children.process_pool import ProcessPool
from gateway.observe.metrics import Metrics
from gateway.policy.loader import Loaded
from gateway.policy.revoked_keys import RevokedKeys
from gateway.policy.schema import Policy
from gateway.rendered import RenderedCache
from gateway.runtime.background_requests import BackgroundRequests
from gateway.runtime.generations import Generations
from gateway.runtime.worker_state import WorkerState
from gateway.web import routes
from gateway.web.auth import Authentication
from gateway.web.dispatcher import Dispatcher
from gateway.web.operator_token import OperatorToken
from gateway.web.router import EndpointRouter
from gateway.wire.responses.sealed import SummarySeal
from tests.examples import examples
from tests.serving import key

pytestmark = pytest.mark.anyio

CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
NOW = 1_700_000_000.0


def a_policy(**more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "backends": {
            "one": {
                "kind": "fake",
                "script": [{"match": "fail", "reply": "no", "status": 503}, {"reply": "a b"}],
            },
            "two": {"kind": "fake", "script": [{"reply": "c d"}]},
        },
        "models": {
            "m": {"targets": [{"backend": "one", "model": "x"}], "aliases": ["alias"]},
            "secret": {"targets": [{"backend": "two", "model": "x"}]},
        },
        "prices": {"x": {"input": 1.0, "output": 2.0}},
        "keys": [
            key("k1", "acme-1", tenant="acme"),
            key("k2", "acme-2", tenant="acme", models=["m"]),
            key("k3", "other-1", tenant="other"),
            key("k4", "guarded-1", tenant="guarded"),
            key(
                "k5",
                "limited-1",
                tenant="acme",
                quotas={"requests_per_minute": 5, "tokens_per_day": 9_000},
                budget={"usd_per_day": 1},
            ),
            key("k6", "expired-1", tenant="acme", expires="2020-01-01"),
        ],
        "guards": {
            "short": {
                "kind": "length",
                "max_characters": 3,
                "on": ["input"],
                "action": "block",
                "tenants": ["guarded"],
            }
        },
        "caches": {"exact": {"ttl": "60s"}},
        **more,
    }


def _other_backend() -> dict[str, Any]:
    policy = a_policy()
    policy["models"]["m"]["targets"][0]["backend"] = "two"
    return policy


def _without_a_key() -> dict[str, Any]:
    policy = a_policy()
    del policy["keys"][0]
    return policy


def _without_a_right() -> dict[str, Any]:
    policy = a_policy()
    policy["keys"][0]["models"] = ["secret"]
    return policy


def _with_a_tenant_limit() -> dict[str, Any]:
    return a_policy(tenants={"acme": {"quotas": {"requests_per_minute": 3}}})


POLICIES = {
    "as it was": a_policy(),
    "another backend": _other_backend(),
    "a key less": _without_a_key(),
    "a right less": _without_a_right(),
    "a limit": _with_a_tenant_limit(),
    "each key its own": a_policy(caches={"exact": {"ttl": "60s", "per": "key"}}),
    "shorter": a_policy(caches={"exact": {"ttl": "5s"}}),
    "hardly any room": a_policy(caches={"exact": {"ttl": "60s", "max_bytes": "4KiB"}}),
    "no cache": a_policy(caches={}),
}


@dataclass
class Answer:
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def id(self) -> str:
        return dict(self.headers)[b"x-request-id"].decode()

    def plain(self) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """Without what is its own."""
        body = re.sub(rb'"created":\d+', b'"created":0', self.body.replace(self.id.encode(), b"ID"))
        length = len(self.body)
        told = [one for one in self.headers if one[0] not in (b"x-request-id", b"request-id")]
        assert dict(told).get(b"content-length", b"%d" % length) == b"%d" % length
        # The length is the body's, in which seconds may have two digits or one.
        of_time = (b"retry-after", b"content-length")
        reset = [(name, b"" if b"reset" in name or name in of_time else value) for name, value in told]
        return self.status, sorted(reset), re.sub(rb"Try again in [^\"]*", b"", body)


@dataclass
class World:
    """A gateway without sockets, whose caches' clock stands until it is moved."""

    app: ASGIApp
    generations: Generations
    metrics: Metrics
    now: float = NOW
    given: list[Answer] = field(default_factory=list)

    async def take_up(self, policy: dict[str, Any]) -> None:
        await self.generations.apply_policy(Loaded(Policy.model_validate(policy), {}, "", ()))
        caches = self.generations.current().caches
        caches._clock = lambda: self.now
        if isinstance(caches.answers, MemoryAnswerStore):
            caches.answers._clock = lambda: self.now

    @property
    def rendered(self) -> RenderedCache:
        return self.generations.current().rendered

    async def ask(self, body: Any, path: str = CHAT, token: str = "k1", **headers: str) -> Answer:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [(b"authorization", b"Bearer " + token.encode()), *named],
        }
        sent: list[Message] = []
        asked = asyncio.Event()

        async def receive() -> Message:
            if asked.is_set():
                await asyncio.sleep(60)
            asked.set()
            return {"type": "http.request", "body": data}

        async def send(message: Message) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        answer = Answer(
            sent[0]["status"], sent[0]["headers"], b"".join(part.get("body", b"") for part in sent[1:])
        )
        self.given.append(answer)
        return answer

    async def receipts(self) -> list[Any]:
        """Without times and what is drawn by lot."""
        found = []
        for answer in self.given:
            for tenant in ("acme", "other", "guarded"):
                receipt = await self.generations.current().receipts.find(tenant, answer.id)
                if receipt is not None:
                    found.append((tenant, _timeless(receipt["stages"])))
        return found

    def counted(self) -> dict[str, float]:
        lines = [line for line in self.metrics.render().decode().splitlines() if line[0] != "#"]
        pairs = [line.rpartition(" ") for line in lines]
        return {
            name: float(value)
            for name, _, value in pairs
            if not re.search(r"_sum\b|_bucket\b|_created\b|loop_lag", name)
        }

    def ledger(self) -> list[tuple[Any, ...]]:
        ledger = self.generations.current().ledger
        assert ledger is not None
        assert ledger.wait_drained(5)
        if not ledger.database.path.exists():
            return []
        columns = (
            "tenant, key_id, tier, model, answered_model, backend, target_model, status, stream, prompt_tokens, "
            "cached_tokens, completion_tokens, reasoning_tokens, cost_nanodollars, estimated, attempts"
        )
        rows = sqlite3.connect(ledger.database.path).execute(f"SELECT {columns} FROM requests").fetchall()
        return sorted(rows, key=repr)


def _timeless(stages: Mapping[str, Any]) -> Any:
    times = ("began", "seconds", "first_token", "waited", "retry_after", "attempts", "first_token_after")
    told = {
        stage: {name: value for name, value in notes.items() if name not in times}
        for stage, notes in stages.items()
    }
    if told.get("trace", {}).get("trace_id") != TRACE:
        told.get("trace", {}).pop("trace_id", None)
    return {stage: told[stage] for stage in ("trace", "meter", "quota", "cache") if stage in told} | {
        "stages": sorted(told)
    }


@asynccontextmanager
async def a_world(state: Path) -> AsyncIterator[World]:
    metrics = Metrics()
    generations = Generations(WorkerState(metrics, state_dir=state))

    @asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[None]:
        yield

    paths = EndpointRouter(
        routes.build(
            metrics,
            ProcessPool(),
            OperatorToken(None),
            BackgroundRequests(),
            SummarySeal("secret"),
            max_body=10_000,
            heartbeat=0,
        ),
        lifespan,
    )
    app = Dispatcher(
        paths,
        Authentication(public=routes.PUBLIC),
        current=generations.current,
        metrics=metrics,
        error_writers=routes.ERROR_WRITERS,
    )
    world = World(app, generations, metrics)
    await world.take_up(a_policy())
    try:
        yield world
    finally:
        await generations.aclose()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with a_world(tmp_path) as world:
        yield world


def chat(content: str = "Hi", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


BODIES: list[tuple[str, Any]] = [
    (CHAT, chat()),
    (CHAT, chat(stream=True)),
    (CHAT, chat(stream=True, stream_options={"include_usage": True})),
    (CHAT, chat(n=2)),
    (CHAT, chat(model="alias")),
    (CHAT, chat(model="secret")),
    (CHAT, chat("fail")),
    (CHAT, b"{"),
    (COMPLETIONS, {"model": "m", "prompt": "Hi"}),
    (COMPLETIONS, {"model": "m", "prompt": "Hi", "stream": True}),
    (MESSAGES, chat(max_tokens=9)),
    (MESSAGES, chat(max_tokens=9, stream=True)),
]
HEADERS: list[dict[str, str]] = [
    {},
    {"cache_control": "no-cache"},
    {"cache_control": "no-store"},
    {"cache_control": "max-age=3"},
    {"cache_control": "only-if-cached"},
    {"x_tollgate_deadline": "5s"},
    {"x_tollgate_deadline": "soon"},
    {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"},
]
TOKENS = ("k1", "k2", "k3", "k4", "k5", "k6", "k7")

asks = st.tuples(
    st.sampled_from(BODIES[:3]) | st.sampled_from(BODIES),
    st.sampled_from(TOKENS[:2]) | st.sampled_from(TOKENS),
    st.just({}) | st.sampled_from(HEADERS),
    st.integers(1, 3),
)
steps = st.lists(
    asks | asks | asks | st.sampled_from([1.0, 4.0, 61.0]) | st.sampled_from([*POLICIES, "evict", "revoke"]),
    max_size=14,
)


async def live(world: World, steps: list[Any]) -> None:
    for step in steps:
        match step:
            case float():
                world.now += step
            case "evict":
                answers = world.generations.current().caches.answers
                if isinstance(answers, MemoryAnswerStore):
                    for name in list(answers._entries):
                        answers.evict(name)
            case "revoke":
                world.generations.withdraw(RevokedKeys(gone=frozenset({"acme-1"})))
            case str():
                await world.take_up(POLICIES[step])
            case ((path, body), token, headers, times):
                for _ in range(times):
                    await world.ask(body, path, token, **headers)


READY: tuple[Any, ...] = (BODIES[0], "k1", {}, 3)
"""After this an answer stands ready."""


@settings(max_examples=examples(60), deadline=None)
@given(steps)
@example([READY, 61.0, READY])
@example([READY, 4.0, "shorter", (BODIES[0], "k1", {}, 2), 4.0, READY])
@example([READY, "evict", (BODIES[0], "k1", {"cache_control": "only-if-cached"}, 1), READY])
@example([READY, *(((BODIES[0], "k1", headers, 2)) for headers in HEADERS), READY])
@example([READY, 4.0, (BODIES[0], "k1", {"cache_control": "no-cache"}, 1), 1.0, READY])
@example([READY, *((BODIES[0], token, {}, 3) for token in TOKENS)])
@example([READY, "revoke", READY, "as it was", READY])
@example([*(step for name in POLICIES for step in (READY, name))])
@example([((path, body), "k1", {}, 4) for path, body in BODIES])
def test_nobody_can_tell_the_lane_from_the_stages(steps: list[Any]) -> None:
    async def both() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with a_world(Path(folder, "with")) as fast, a_world(Path(folder, "without")) as slow:
                with pytest.MonkeyPatch.context() as patch:
                    await live(fast, steps)
                    patch.setattr(RenderedCache, "answer", lambda *args, **kwargs: None)
                    await live(slow, steps)
                assert [one.plain() for one in fast.given] == [one.plain() for one in slow.given]
                assert await fast.receipts() == await slow.receipts()
                assert fast.counted() == slow.counted()
                assert fast.ledger() == slow.ledger()

    asyncio.run(both())


async def test_the_second_repetition_passes_no_stage(world: World) -> None:
    for path, body in BODIES[:5]:
        for _ in range(2):
            await world.ask(body, path)
    runtime = world.generations.current()
    runtime.handler = None  # type: ignore[assignment]
    for path, body in BODIES[:5]:
        answer = await world.ask(body, path)
        assert answer.status == 200
        assert (b"x-tollgate-cache", b"exact") in answer.headers
        assert answer.body.count(answer.id.encode()) >= 1
    for path, body, token in [(*BODIES[0], "k2"), (*BODIES[0], "k3"), (CHAT, chat("other"), "k1")]:
        assert (await world.ask(body, path, token)).status == 500


async def test_two_answers_differ_in_their_ids(world: World) -> None:
    answers = [await world.ask(chat(stream=True)) for _ in range(5)]
    assert len({answer.id for answer in answers}) == 5
    for answer in answers:
        found = set(re.findall(rb"req_[0-9a-f]{24}", answer.body))
        assert found == {answer.id.encode()}


async def test_what_stands_ready_is_bounded_and_counted(world: World) -> None:
    await world.take_up(a_policy(caches={"exact": {"max_bytes": "80KiB"}}))
    for i in range(40):
        for _ in range(3):
            await world.ask(chat(f"question {i}"))
        rendered = world.rendered
        assert rendered.bytes <= 10 * 1024
        assert rendered.bytes == sum(4 * len(name[2]) + one.size for name, one in rendered._rendered.items())
    assert len(world.rendered._rendered) > 1


async def test_long_answers_and_questions_take_the_stages(world: World) -> None:
    long = a_policy()
    long["backends"]["one"]["script"] = [{"reply": "word " * 20_000}]
    await world.take_up(long)
    for _ in range(3):
        assert (await world.ask(chat())).status == 200
    assert not world.rendered._rendered


async def test_what_is_asked_afresh_is_answered_afresh(world: World) -> None:
    for _ in range(3):
        await world.ask(chat())
    before = world.rendered._rendered.copy()
    world.now += 2
    await world.ask(chat(), cache_control="no-cache")
    await world.ask(chat())
    after = world.rendered._rendered
    assert before.keys() == after.keys()
    assert [one.stored for one in after.values()] == [NOW + 2]


async def test_a_key_whose_rights_have_changed_is_looked_at_anew(world: World) -> None:
    """As those of a token may, from one request to the next."""
    for _ in range(2):
        await world.ask(chat())
    rendered = world.rendered
    [(front, key_id, data)] = rendered._rendered
    held = rendered._rendered[(front, key_id, data)].principal
    for other in (replace(held, models=("secret",)), replace(held, tenant="other")):
        found = rendered.answer(front, other, "req_x", [], data, started=0.0)
        assert found is None
        await world.ask(chat())
        await world.ask(chat())
        assert rendered.answer(front, replace(held), "req_x", [], data, started=0.0) is not None
