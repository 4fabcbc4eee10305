"""What an operator sees of failures: events in the log, metrics, the ledger, over real sockets."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from gateway.observe.events import FACTS, KEYS
from gateway.observe.logs import JsonFormatter, TextFormatter
from gateway.observe.metrics import Metrics
from tests.faults import (
    ANSWER,
    Fault,
    FaultServer,
    bad_key,
    bad_request,
    broken,
    cut,
    rate_limited,
    reset,
    silence,
    sound,
    unavailable,
)
from tests.serving import KEY, NARROW_KEY, Gateway, a_policy, serving

pytestmark = pytest.mark.anyio

DOCS = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
SECRET = "my mother's maiden name is Rumpelstiltskin"
ONCE = {"attempts": 1}


class Log(logging.Handler):
    """All that is logged, as events and as it would be written."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []
        self.written = ""

    def emit(self, record: logging.LogRecord) -> None:
        line = JsonFormatter().format(record)
        self.written += TextFormatter().format(record) + line
        if hasattr(record, FACTS):
            self.events.append(json.loads(line))

    def allocate(self, *names: str) -> list[dict[str, Any]]:
        """The events of these names since the last time; all others are forgotten, too."""
        events, self.events = self.events, []
        return [event for event in events if event["event"] in names]


@pytest.fixture
def log() -> Any:
    log, root = Log(), logging.getLogger("gateway")
    level = root.level
    root.addHandler(log)
    root.setLevel(logging.INFO)
    yield log
    root.setLevel(level)
    root.removeHandler(log)


@asynccontextmanager
async def failing(
    tmp_path: Path,
    *faults: Fault,
    breaker: dict[str, Any] | None = None,
    timeouts: dict[str, str] | None = None,
    **more: Any,
) -> AsyncIterator[tuple[Gateway, FaultServer]]:
    """Model ``m`` asks a server with ``faults``, and then model ``n``, whose server is sound."""
    async with FaultServer(*faults) as first, FaultServer(sound) as second:
        rules = a_policy(first.base_url, **more)
        rules["backends"]["up"]["breaker"] = breaker or {"failures": 100}
        rules["backends"]["other"] = {"kind": "openai", "base_url": second.base_url}
        m, n = {"backend": "up", "model": "upstream-model"}, {"backend": "other", "model": "second-model"}
        rules["models"]["m"] = {"targets": [m], "fallbacks": ["n"], "retry": ONCE, "timeouts": timeouts or {}}
        rules["models"]["n"] = {"targets": [n], "retry": ONCE}
        async with serving(tmp_path / "policies", rules) as gateway:
            yield gateway, first


async def ask(gateway: Gateway, model: str = "m", **more: Any) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": SECRET}], **more}
    return (await gateway.http.post("/v1/chat/completions", json=body)).status_code


FAILURES: dict[str, tuple[Fault, int | None, str, str]] = {
    "401": (bad_key, 401, "upstream_auth", "4xx"),
    "429": (rate_limited, 429, "rate_limit_exceeded", "4xx"),
    "500": (broken, 500, "upstream_error", "5xx"),
    "503": (unavailable, 503, "upstream_unavailable", "5xx"),
    "silence": (silence, None, "upstream_timeout", "timeout"),
    "reset": (reset, None, "upstream_unavailable", "unreachable"),
    "cut": (cut, None, "upstream_cut", "broken"),
}


@pytest.mark.parametrize("case", FAILURES)
async def test_a_failure_that_a_fallback_covers_is_seen(tmp_path: Path, log: Log, case: str) -> None:
    fault, status, error, kind = FAILURES[case]
    short = {"first_token": "300ms", "total": "300ms"} if case == "silence" else None
    async with failing(tmp_path, fault, timeouts=short) as (gateway, _):
        assert await ask(gateway) == 200
        failed, went, ended = log.allocate("upstream_error", "failover", "request")
        figures = await gateway.metrics()
    who = {"tenant": "acme", "key_id": "acme-1", "model": "m", "backend": "up"}
    assert failed.items() >= {**who, "upstream_model": "upstream-model", "attempt": 1}.items()
    assert (failed["event"], failed["upstream_status"], failed["error"]) == ("upstream_error", status, error)
    assert went.items() >= {**who, "error": error, "to_model": "n", "to_backend": "other"}.items()
    assert ended.items() >= {**who, "backend": "other", "status": 200, "error": None}.items()
    assert ended["prompt_tokens"] and ended["completion_tokens"] and ended["cost_usd"] == 0
    assert len({event["request_id"] for event in (failed, went, ended)}) == 1
    assert len({event["trace_id"] for event in (failed, went, ended)}) == 1
    assert [event["level"] for event in (failed, went, ended)] == ["warning", "warning", "info"]
    assert figures[f'tollgate_upstream_errors_total{{backend="up",class="{kind}"}}'] == 1
    assert not any(name.startswith("tollgate_refused") for name in figures)


async def test_what_the_upstream_finds_wrong_with_a_request(tmp_path: Path, log: Log) -> None:
    async with failing(tmp_path, bad_request) as (gateway, _):
        assert await ask(gateway) == 400
    failed, ended = log.allocate("upstream_error", "failover", "request")
    assert (failed["level"], failed["upstream_status"], failed["error"]) == (
        "info",
        400,
        "upstream_rejected",
    )
    assert (ended["level"], ended["status"], ended["error"]) == ("warning", 400, "upstream_rejected")


async def test_refused_credentials_are_told_once_until_they_are_accepted(tmp_path: Path, log: Log) -> None:
    gauge = 'tollgate_credentials_refused{backend="up"}'
    names = ("credentials_refused", "credentials_accepted")
    async with failing(tmp_path, bad_key) as (gateway, first):
        for _ in range(3):
            assert await ask(gateway) == 200
        (refused,) = log.allocate(*names)
        assert (refused["event"], refused["backend"], refused["error"], refused["level"]) == (
            "credentials_refused",
            "up",
            "upstream_auth",
            "error",
        )
        assert (await gateway.metrics())[gauge] == 1
        first.faults = [sound]
        for _ in range(2):
            assert await ask(gateway) == 200
        (accepted,) = log.allocate(*names)
        assert (accepted["event"], accepted["backend"]) == ("credentials_accepted", "up")
        assert (await gateway.metrics())[gauge] == 0


async def test_another_key_is_not_blamed_for_the_last_one(tmp_path: Path, log: Log) -> None:
    async with failing(tmp_path, bad_key) as (gateway, first):
        await ask(gateway)
        rules = a_policy(first.base_url)
        rules["backends"]["up"]["api_key"] = "sk-a-better-one"
        gateway.write(rules)
        await gateway.generation(2)
        assert (await gateway.metrics())['tollgate_credentials_refused{backend="up"}'] == 0


async def test_a_breaker_opens_and_closes_once(tmp_path: Path, log: Log) -> None:
    gauge, names = 'tollgate_breaker_open{backend="up"}', ("breaker_opened", "breaker_closed")
    async with failing(tmp_path, broken, breaker={"failures": 2, "cooldown": "1ms"}) as (gateway, first):
        for _ in range(5):  # the probes of a breaker that is open already fail, too
            assert await ask(gateway) == 200
        (opened,) = log.allocate(*names)
        assert (opened["event"], opened["backend"], opened["failures"]) == ("breaker_opened", "up", 2)
        assert (await gateway.metrics())[gauge] == 1
        first.faults = [sound]
        while (await gateway.metrics())[gauge]:
            assert await ask(gateway) == 200
        (closed,) = log.allocate(*names)
        assert (closed["event"], closed["backend"]) == ("breaker_closed", "up")


async def test_refusals_are_logged_once_and_counted_by_reason(tmp_path: Path, log: Log) -> None:
    limits = {"tenants": {"acme": {"quotas": {"requests_per_minute": 1}}}}
    async with failing(tmp_path, sound, **limits) as (gateway, _):
        assert await ask(gateway) == 200
        assert await ask(gateway) == 429
        assert await ask(gateway, "no-such-model-" + SECRET) == 404
        assert await ask(gateway, temperature="hot") == 400
        post = gateway.http.post
        body = {"model": "m", "messages": [{"role": "user", "content": SECRET}]}
        assert (await post("/v1/chat/completions", content=b"{" + SECRET.encode())).status_code == 400
        wrong = {"authorization": "Bearer tg-guessed", "traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
        assert (await post("/v1/chat/completions", json=body, headers=wrong)).status_code == 401
        narrow = {"authorization": f"Bearer {NARROW_KEY}"}
        assert (await post("/v1/chat/completions", json=body, headers=narrow)).status_code == 404
        assert (await gateway.http.get(f"/v1/{SECRET}")).status_code == 404
        assert (await gateway.http.delete("/v1/models")).status_code == 405
        figures = await gateway.metrics()
        ledger = gateway.folder.parent / "state" / "ledger.sqlite"
    events = log.allocate("request")
    assert events[5]["trace_id"] == "ab" * 16
    told = [(event["status"], event["error"], event["tenant"]) for event in events]
    assert told == [
        (200, None, "acme"),
        (429, "rate_limit_exceeded", "acme"),
        (404, "model_not_found", "acme"),
        (400, told[3][1], "acme"),
        (400, told[4][1], "acme"),
        (401, "invalid_api_key", None),
        (404, "model_not_found", "acme"),
        (404, "not_found", "acme"),
        (405, "method_not_allowed", "acme"),
    ]
    counted = {name: n for name, n in figures.items() if name.startswith("tollgate_refused_requests_total{")}
    assert counted['tollgate_refused_requests_total{reason="rate_limit_exceeded",tenant="acme"}'] == 1
    assert counted['tollgate_refused_requests_total{reason="invalid_api_key",tenant=""}'] == 1
    assert counted['tollgate_refused_requests_total{reason="model_not_found",tenant="acme"}'] == 2
    assert sum(counted.values()) == 8
    with closing(sqlite3.connect(ledger)) as database:
        kept = database.execute("SELECT error, count(*) FROM requests GROUP BY error").fetchall()
    # Nobody's requests are nobody's usage; nor are those for something else than an answer.
    assert dict(kept)["rate_limit_exceeded"] == 1
    assert dict(kept)["model_not_found"] == 2
    assert sum(count for _, count in kept) == 6
    assert SECRET not in ledger.read_bytes().decode("latin-1")


async def test_a_full_queue_is_a_refusal(tmp_path: Path, log: Log) -> None:
    tiers = {"default": {"max_wait": "1ms", "max_queue": 1}}
    async with FaultServer(sound) as server:
        rules = a_policy(server.base_url, tiers=tiers)
        rules["backends"]["slow"] |= {"max_concurrency": 1, "token_delay": "60s"}
        async with serving(tmp_path / "policies", rules) as gateway:
            body = {"model": "slow", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
            async with gateway.http.stream("POST", "/v1/chat/completions", json=body) as response:
                lines = response.aiter_lines()
                await anext(lines)
                assert await ask(gateway, "slow") == 503
            (refused,) = [event for event in log.allocate("request") if event["status"] == 503]
            figures = await gateway.metrics()
    assert (refused["error"], refused["backend"]) == ("queue_timeout", None)
    assert figures['tollgate_refused_requests_total{reason="queue_timeout",tenant="acme"}'] == 1


async def test_no_line_holds_anybodys_words_or_keys(tmp_path: Path, log: Log) -> None:
    async with failing(tmp_path, bad_key, broken, rate_limited, bad_request, cut, sound) as (gateway, _):
        for streamed in (False, True) * 3:
            await ask(gateway, stream=streamed)
        await ask(gateway, SECRET)
        await gateway.http.post(
            "/v1/chat/completions", json={}, headers={"authorization": f"Bearer {SECRET}"}
        )
    assert len(log.events) > 12
    for said in (
        SECRET,
        "Rumpel",
        ANSWER[:9],
        KEY,
        "sk-upstream-secret",
        "something came loose",
        "slow down",
    ):
        assert said not in log.written


def rows(heading: str) -> dict[str, list[str]]:
    """A table of the page whose head begins so: first cell → the other cells."""
    table = DOCS[DOCS.index(f"| {heading} |") :].partition("\n\n")[0]
    cells = [re.split(r" \| ", line.strip("| ")) for line in table.splitlines()[2:]]
    return {first.strip("`"): rest for first, *rest in cells}


def test_the_page_has_each_event_and_its_keys() -> None:
    documented = {name: tuple(re.findall(r"`(\w+)`", rest[0])) for name, rest in rows("event | keys").items()}
    assert documented == dict(KEYS)
    assert set(rows("event | level | when")) == set(KEYS)
    explained = {name for cell in rows("key | holds") for name in re.findall(r"\w+", cell)}
    assert explained == {key for keys in KEYS.values() for key in keys}


def test_the_page_has_each_metric_its_type_and_labels() -> None:
    registry = Metrics()._registry
    labels = {name: one._labelnames for one, names in registry._collector_to_names.items() for name in names}
    known = {}
    for family in registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        known[name] = (family.type, tuple(labels[name]))
    documented = {
        name: (kind, tuple(re.findall(r"`(\w+)`", names)))
        for name, (kind, names, *_) in rows("metric | type | labels | counts").items()
    }
    assert documented == known
