from __future__ import annotations

import asyncio

import pytest

from gateway.backends.readiness import PATIENCE, SILENT, Readiness
from gateway.errors import UpstreamUnavailable
from gateway.policy.schema import Target
from gateway.types import Call, Chunks

pytestmark = pytest.mark.anyio


class Probed:
    """A backend that counts its probes, and fails them on estimate."""

    def __init__(self, name: str, *, delay: float = 0.0) -> None:
        self.name = name
        self.delay = delay
        self.probes = 0
        self.down: str | None = None

    def stream(self, call: Call, target: Target) -> Chunks:
        raise NotImplementedError

    async def probe(self) -> None:
        self.probes += 1
        await asyncio.sleep(self.delay)
        if self.down:
            raise UpstreamUnavailable(self.down, retry_after=7.0)

    async def aclose(self) -> None: ...


async def test_every_backend_has_a_verdict() -> None:
    good, bad = Probed("good"), Probed("bad")
    bad.down = "gone fishing"
    report = await Readiness({"good": good, "bad": bad}).report()
    assert report.ready
    assert report.reasons == {"good": None, "bad": "gone fishing"}


async def test_no_backends_no_verdicts() -> None:
    report = await Readiness({}).report()
    assert report.reasons == {}
    assert not report.ready


async def test_it_follows_what_runs_here_and_nothing_else() -> None:
    engine, provider = Probed("engine"), Probed("provider")
    readiness = Readiness({"engine": engine, "provider": provider}, needed=["engine"], fresh=0.0)
    provider.down = "gone"
    report = await readiness.report()
    assert report.ready and report.reasons == {"engine": None, "provider": "gone"}
    engine.down, provider.down = "still loading", None
    await asyncio.sleep(0.002)
    report = await readiness.report()
    assert not report.ready
    assert report.waits_for == ("engine",)
    assert report.retry_after == 7.0


async def test_all_providers_down_at_once_leave_it_ready() -> None:
    backends = {name: Probed(name) for name in "abc"}
    for backend in backends.values():
        backend.down = "gone"
    report = await Readiness(backends).report()
    assert report.ready and set(report.reasons.values()) == {"gone"}


async def test_what_requests_have_shown_is_told_and_changes_nothing() -> None:
    readiness = Readiness(
        {"engine": Probed("engine"), "provider": Probed("provider")},
        needed=["engine"],
        trouble={"engine": "failed of late", "provider": "refuses the key"}.get,
    )
    report = await readiness.report()
    assert report.ready
    assert report.reasons == {"engine": "failed of late", "provider": "refuses the key"}


async def test_askers_share_one_answer_while_it_is_fresh() -> None:
    backend = Probed("b", delay=0.02)
    readiness = Readiness({"b": backend}, needed="b", fresh=60.0)
    answers = await asyncio.gather(*(readiness.report() for _ in range(50)))
    assert [dict(answer.reasons) for answer in answers] == [{"b": None}] * 50
    await readiness.report()
    assert backend.probes == 1


async def test_a_stale_answer_is_asked_for_again() -> None:
    backend = Probed("b")
    readiness = Readiness({"b": backend}, needed="b", fresh=0.0)
    assert (await readiness.report()).reasons == {"b": None}
    backend.down = "gone"
    await asyncio.sleep(0.002)
    assert (await readiness.report()).reasons == {"b": "gone"}
    backend.down = None
    await asyncio.sleep(0.002)
    assert (await readiness.report()).reasons == {"b": None}


async def test_others_are_asked_seldom_unless_they_fail() -> None:
    good, bad = Probed("good"), Probed("bad")
    bad.down = "gone"
    readiness = Readiness({"good": good, "bad": bad}, fresh=0.0, seldom=60.0)
    for _ in range(3):
        await readiness.report()
        await asyncio.sleep(0.002)
    assert good.probes == 1
    assert bad.probes > 1


async def test_an_asker_that_leaves_takes_nobodys_answer_away() -> None:
    backend = Probed("b", delay=0.05)
    readiness = Readiness({"b": backend}, needed="b")
    first, second = (asyncio.create_task(readiness.report()) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    assert (await second).ready
    assert backend.probes == 1


async def test_a_silent_backend_does_not_hold_up_one_that_can_serve() -> None:
    readiness = Readiness({"good": Probed("good"), "silent": Probed("silent", delay=60.0)}, needed=["good"])
    async with asyncio.timeout(300):
        report = await readiness.report()
    assert report.ready
    assert report.reasons == {"good": None, "silent": SILENT}
    await readiness.aclose()


async def test_a_slow_proof_is_known_in_the_end() -> None:
    slow = Probed("slow", delay=2 * PATIENCE)
    readiness = Readiness({"slow": slow}, fresh=0.0)
    async with asyncio.timeout(300):
        while (await readiness.report()).reasons != {"slow": None}:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert slow.probes == 1


async def test_a_guard_that_refuses_everyone_keeps_it_from_being_ready() -> None:
    missing = {"injection": "'embedder' is still being loaded"}

    async def guards() -> dict[str, str]:
        return dict(missing)

    readiness = Readiness({"good": Probed("good")}, fresh=0.0, guards=guards)
    report = await readiness.report()
    assert not report.ready
    assert report.reasons == {"good": None}
    assert report.guards == missing
    missing.clear()
    assert (await readiness.report()).ready
