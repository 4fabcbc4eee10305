"""What does the page at /admin take? Its first load, each of its queries on a grown ledger, and what it costs callers.

    python -m benchmarks.admin_page [--rows 2000000] [--ledger FILE] [--only load|queries|cost]

``queries`` writes a ledger of a day's requests with the gateway's own writer (some minutes; ``--ledger`` keeps it for
the next time), starts ``tollgate serve`` on it, and asks each question of the page's several times, over HTTP. ``cost``
has eight callers ask one request after the other while the page is closed and open in turns (its events once a second,
the newest requests every three), and compares the processor time that the gateway took for a request. ``load`` opens
the page in Chromium: bytes over the wire, and milliseconds until the first figures are shown.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.processes import free_port, processor_seconds, running, wait_for
from gateway.databases.sqlite import SqliteDatabase
from gateway.identity.api_keys import hash_key
from gateway.metering.bill import bill_of
from gateway.observe.ledger.ledger import Ledger
from gateway.policy.schema import Policy, Target, Timeouts
from gateway.types import Call, Candidate, ChatRequest, Principal, Receipt, UpstreamUsage, Usage

DAY = 86_400
TENANTS, KEYS = 40, 200
MODELS = [f"model-{number}" for number in range(12)]
BACKENDS = [f"provider-{number}" for number in range(6)]
AGENTS = [f"client-{number}/1.{number % 7}" for number in range(30)]
ADMIN, CALLER = "tg-admin-of-the-benchmark", "tg-caller-of-the-benchmark"
AS_ADMIN = {"authorization": f"Bearer {ADMIN}"}
TIMES_ASKED = 7
CALLERS, WINDOW, WINDOWS = 8, 6.0, 12
"""Who ask one request after the other, seconds of each window, and how many there are."""


def policy() -> dict[str, Any]:
    script = [{"reply": "A short answer of some words."}]
    return {
        "version": 1,
        "admin": {"enabled": True},
        "backends": {name: {"kind": "fake", "script": script} for name in BACKENDS},
        "models": {
            name: {"targets": [{"backend": BACKENDS[at % len(BACKENDS)], "model": name}]}
            for at, name in enumerate(MODELS)
        },
        "prices": {name: {"input": 0.5 + at, "output": 2.0 + at} for at, name in enumerate(MODELS)},
        "tenants": {
            f"tenant-{number}": {"quotas": {"tokens_per_day": 10**9}, "budget": {"usd_per_month": 1e6}}
            for number in range(TENANTS)
        },
        "keys": [
            {"id": "admin", "sha256": hash_key(ADMIN), "scopes": ["admin"]},
            {"id": "caller", "sha256": hash_key(CALLER), "tenant": "tenant-0"},
        ],
    }


def fill(path: Path, size: int) -> None:
    """``size`` requests, spread over the last 24 hours."""
    ledger, chance, rules = Ledger(SqliteDatabase(path)), random.Random(1), Policy.model_validate(policy())
    callers = [Principal(f"key-{number}", f"tenant-{number % TENANTS}") for number in range(KEYS)]
    habits = [(chance.choice(MODELS), chance.choice(MODELS), chance.choice(AGENTS)) for _ in callers]
    begin = time.time() - DAY
    for number in range(size):
        who = min(int(chance.expovariate(4 / KEYS)), KEYS - 1)
        usual, other, agent = habits[who]
        model = usual if chance.random() < 0.8 else other
        target = Target(backend=BACKENDS[MODELS.index(model) % len(BACKENDS)], model=model)
        created = begin + DAY * number / size
        name = f"req_{int(created * 1000):011x}{number:013x}"
        request = ChatRequest(model, ({"role": "user", "content": ""},), stream=True)
        started = time.perf_counter() - chance.expovariate(0.5)
        call = Call(name, callers[who], request, rules, Receipt(name, created), started, user_agent=agent)
        call.candidate = Candidate(model, target, Timeouts())
        used = Usage(chance.randrange(20, 4000), chance.randrange(1, 800))
        failed = chance.random() < 0.02
        spent = [] if failed else [UpstreamUsage(target, used, model=model)]
        ledger.record(
            call, bill_of(rules, spent), 503 if failed else 200, "upstream_timeout" if failed else None
        )
        if number % 4_000 == 3_999 and not ledger.wait_drained(600):
            raise SystemExit("the ledger cannot be written")
    asyncio.run(ledger.aclose())
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that the file has all of it
    if ledger.lost:
        raise SystemExit(f"{ledger.lost} rows were lost")


@contextmanager
def gateway(folder: Path, content: dict[str, Any] | None = None) -> Iterator[tuple[int, int]]:
    """``tollgate serve`` with the state in ``folder``: its process and its port. ``content`` is another policy."""
    policies = folder / "policies"
    policies.mkdir(exist_ok=True)
    (policies / "gateway.yaml").write_text(yaml.safe_dump(content or policy()))
    port = free_port()
    env = {"TOLLGATE_STATE_DIR": str(folder), "TOLLGATE_SHUTDOWN_DELAY": "0", "PYTHONPATH": str(Path.cwd())}
    argv = [sys.executable, "-m", "gateway", "serve", "--policies", str(policies), "--port", str(port)]
    with running(argv, cores=os.sched_getaffinity(0), env=env) as pid:
        wait_for(port, "/healthz")
        yield pid, port


def questions() -> dict[str, str]:
    """What the page asks for, by the view that asks."""
    now, found = time.time(), {"live: snapshot": "/snapshot", "tenants": "/tenants", "models": "/models"}
    for by in ("tenant", "key", "model", "backend", "user_agent"):
        for days, interval in ((1, "hour"), (30, "day"), (365, "month")):
            since = now - days * DAY
            found[f"spend: by {by}, {days} d, over time"] = (
                f"/usage?by={by}&interval={interval}&since={since}&top=7"
            )
            found[f"spend: by {by}, {days} d, in all"] = f"/usage?by={by}&since={since}&top=100"
    filters = {
        "newest": "",
        "of a tenant": "&tenant=tenant-39",
        "of a tenant that asked nothing": "&tenant=nobody",
        "of a key": "&key=key-199",
        "of a model": "&model=model-3",
        "of an unknown model": "&model=nosuch",
        "of a backend": "&backend=provider-5",
        "failed": "&failed=true",
        "with an error that nobody had": "&error=nosuch",
        "slower than an hour": "&min_seconds=3600",
    }
    for name, query in filters.items():
        found[f"requests: {name}"] = f"/requests?limit=50{query}"
    found["requests: a page from 12 hours ago"] = f"/requests?limit=50&after={now - DAY / 2}_z"
    return {**found, "policy": "/policy", "policy: history": "/policy/history", "audit": "/audit?limit=30"}


def time_queries(port: int) -> float:
    """Prints each question's time; returns the longest."""
    worst = 0.0
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/admin/api", headers=AS_ADMIN, timeout=60) as http:
        print(f"{'question':52} {'median':>8} {'longest':>8} {'answer':>9}")
        for name, path in questions().items():
            taken = []
            for _ in range(TIMES_ASKED):
                began = time.perf_counter()
                answer = http.get(path)
                taken.append((time.perf_counter() - began) * 1000)
                answer.raise_for_status()
            worst = max(worst, statistics.median(taken))
            size = len(answer.content) / 1000
            print(f"{name:52} {statistics.median(taken):5.0f} ms {max(taken):5.0f} ms {size:6.1f} kB")
    print(f"the slowest question's median: {worst:.0f} ms")
    return worst


async def compare_cost(pid: int, port: int) -> float:
    """Prints a request's processor time without and with the page; returns the difference as a share."""
    taken: dict[bool, list[float]] = {False: [], True: []}
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        await load(http, 2.0)
        for turn in range(WINDOWS):
            is_open = bool(turn % 2)
            page = asyncio.create_task(watch(url)) if is_open else None
            await asyncio.sleep(0.5)
            before = processor_seconds(pid)
            sent = await load(http, WINDOW)
            taken[is_open].append((processor_seconds(pid) - before) / sent * 1e6)
            if page is not None:
                page.cancel()
                await asyncio.gather(page, return_exceptions=True)
    without, open_ = statistics.median(taken[False]), statistics.median(taken[True])
    print(f"processor time of a request: {without:.0f} µs without the page, {open_:.0f} µs with it open")
    print(
        f"windows without: {[round(one) for one in taken[False]]}, with: {[round(one) for one in taken[True]]}"
    )
    for is_open in (False, True):
        page = asyncio.create_task(watch(url)) if is_open else None
        await asyncio.sleep(1.0)
        before, began = processor_seconds(pid), time.monotonic()
        await asyncio.sleep(4 * WINDOW)
        share = (processor_seconds(pid) - before) / (time.monotonic() - began)
        print(f"without requests, {'with' if is_open else 'without'} the page: {share:.2%} of a core")
        if page is not None:
            page.cancel()
            await asyncio.gather(page, return_exceptions=True)
    return open_ / without - 1


async def load(http: httpx.AsyncClient, seconds: float) -> int:
    """Has ``CALLERS`` ask for so long; returns how often they did."""
    end, sent = time.monotonic() + seconds, 0
    headers = {"authorization": f"Bearer {CALLER}"}

    async def ask() -> None:
        nonlocal sent
        while time.monotonic() < end:
            sent += 1
            question = {"role": "user", "content": f"Hi {sent}"}
            body = {"model": MODELS[sent % len(MODELS)], "messages": [question]}
            (await http.post("/v1/chat/completions", json=body, headers=headers)).raise_for_status()

    await asyncio.gather(*(ask() for _ in range(CALLERS)))
    return sent


async def watch(url: str) -> None:
    """What an open page does."""
    async with httpx.AsyncClient(base_url=f"{url}/admin/api", headers=AS_ADMIN, timeout=60) as http:

        async def newest() -> None:
            while True:
                await http.get("/requests?limit=8")
                await asyncio.sleep(3)

        polling = asyncio.create_task(newest())
        try:
            async with http.stream("GET", "/live") as events:
                async for _ in events.aiter_bytes():
                    pass
        finally:
            polling.cancel()


async def first_load(port: int, folder: Path) -> None:
    from tests.browser import browsing

    async with browsing(folder) as page:
        await page.look(1280, 800)
        url = f"http://127.0.0.1:{port}/admin"
        await page.open(url)
        await page.type("#key", ADMIN)
        await page.press("Enter")
        await page.until("document.querySelectorAll('.figure').length > 0")
        await page.ask("Network.clearBrowserCache")
        taken = []
        for _ in range(5):
            page.requests.clear()
            await page.ask("Network.clearBrowserCache")
            began = time.perf_counter()
            await page.open(url)
            await page.until("document.querySelectorAll('.figure').length > 0")
            taken.append((time.perf_counter() - began) * 1000)
        size = sum(one["size"] for one in page.requests if "/admin/api/" not in one["url"])
        print(
            f"first load: {size / 1000:.0f} kB in {len(page.requests)} answers; figures after "
            f"{statistics.median(taken):.0f} ms (longest of 5: {max(taken):.0f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--ledger", type=Path, help="where the ledger is, or is to be kept")
    parser.add_argument("--only", choices=("load", "queries", "cost"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "ledger.sqlite"
        if given.only in (None, "queries"):
            kept = given.ledger or path
            if not kept.exists():
                began = time.perf_counter()
                fill(kept, given.rows)
                print(f"{given.rows} rows were written in {time.perf_counter() - began:.0f} s")
            if kept != path:
                shutil.copyfile(kept, path)
            print(f"ledger: {path.stat().st_size / 1e6:.0f} MB")
        with gateway(folder) as (pid, port):
            if given.only in (None, "queries"):
                time_queries(port)
            if given.only in (None, "cost"):
                share = asyncio.run(compare_cost(pid, port))
                print(f"the page costs callers {share:+.1%}")
            if given.only in (None, "load"):
                asyncio.run(first_load(port, folder))


if __name__ == "__main__":
    main()
