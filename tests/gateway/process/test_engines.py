"""Engines that take each other's place: real processes and sockets, a program that takes ports as the engine does."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.backends.launcher import Launch
from gateway.policy.schema import Golden
from gateway.process.golden_set import GoldenSets
from gateway.process.supervisor import Supervisor
from tests.ports import free_port

pytestmark = pytest.mark.anyio

STUB = Path(__file__).parents[2] / "stub_engine.py"


class Site:
    def __init__(self, policies: Path) -> None:
        self.policies = policies
        self.port = free_port()
        self.lines: list[str] = []
        self.supervisor = Supervisor(
            env=os.environ,
            on_line=lambda name, line: self.lines.append(line),
            drain_timeout=5,
            policies=policies,
        )
        self.http = httpx.AsyncClient(timeout=300, trust_env=False)

    def launch(
        self, name: str, *, stop_first: bool = False, port: int | None = None, golden: Golden | None = None
    ) -> Launch:
        port = port or self.port
        argv = (sys.executable, str(STUB), name, "--port", str(port))
        return Launch(argv, "e", ("127.0.0.1", port), golden=golden, stop_first=stop_first)

    async def run(self, name: str, **more: Any) -> None:
        await self.supervisor.run_engines({"e": self.launch(name, **more)})

    async def ask(self, path: str = "/") -> str:
        """As the gateway does, it is tried again where a connection came too late to be accepted."""
        for _ in range(3):
            with suppress(httpx.TransportError):
                return (await self.http.get(f"http://127.0.0.1:{self.port}{path}")).text
        return "nobody"

    async def serves(self, name: str) -> None:
        """Wait until it is the one that answers."""
        async with asyncio.timeout(300):
            while True:
                if await self.ask() == name and len(self.pids(name)) == 1 == len(self.all_pids()):
                    return
                await asyncio.sleep(0.02)

    def all_pids(self) -> list[int]:
        return [pid for pid, _ in self._stubs()]

    def pids(self, name: str) -> list[int]:
        return [pid for pid, command in self._stubs() if name in command]

    def _stubs(self) -> list[tuple[int, list[str]]]:
        """Those on this site's port, the ones that end apart."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    command = (entry / "cmdline").read_text().split("\0")
                    dead = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
                except OSError:
                    continue
                if command[1:2] == [str(STUB)] and str(self.port) in command and not dead:
                    found.append((int(entry.name), command))
        return found


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    one = Site(tmp_path)
    yield one
    await one.supervisor.shut_down()
    await one.http.aclose()


async def test_a_successor_takes_over_and_nothing_is_lost_meanwhile(site: Site) -> None:
    await site.run("a")
    await site.serves("a")
    slow = asyncio.create_task(site.ask("/slow"))
    answers = []
    await site.run("b")
    async with asyncio.timeout(300):
        while "b" not in answers:
            answers.append(await site.ask())
    assert set(answers) <= {"a", "b"}
    assert await slow == "a"
    await site.serves("b")
    assert "--standby-port" in " ".join(dict(site._stubs())[site.all_pids()[0]])


async def test_one_that_took_over_comes_back_on_its_port_when_it_dies(site: Site) -> None:
    await site.run("a")
    await site.serves("a")
    await site.run("b")
    await site.serves("b")
    (pid,) = site.all_pids()
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(300):
        while site.all_pids() in ([pid], []):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await site.serves("b")


async def test_one_that_does_not_start_leaves_the_old_one_and_says_why(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await site.run("a")
    await site.serves("a")
    await site.run("broken")
    async with asyncio.timeout(300):
        while "its successor does not start: out of memory, say" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert await site.ask() == "a"
    # An edit that mends it is tried at once, and the one that failed is tried no more.
    await site.run("c")
    await site.serves("c")


async def test_an_edit_that_is_taken_back_ends_the_successor(site: Site) -> None:
    await site.run("a")
    await site.serves("a")
    (pid,) = site.all_pids()
    await site.run("broken")
    await site.run("a")
    await site.serves("a")
    assert site.all_pids() == [pid]


async def test_stop_first_ends_the_old_one_before(site: Site) -> None:
    await site.run("a")
    await site.serves("a")
    await site.run("b", stop_first=True)
    # When the call returns the old one is gone already, and the new one has its own port from the beginning.
    assert site.pids("a") == []
    await site.serves("b")
    assert "--standby-port" not in " ".join(dict(site._stubs())[site.all_pids()[0]])


async def test_an_engine_of_another_port_is_no_successor(site: Site) -> None:
    await site.run("a")
    await site.serves("a")
    await site.supervisor.run_engines({"e": site.launch("b", port=free_port())})
    assert site.pids("a") == []


async def test_a_successor_that_answers_wrongly_does_not_take_over(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    case = '{"id": "who", "prompt": "Who are you?", "checks": [{"exact": "b"}]}'
    (site.policies / "golden.jsonl").write_text(case)
    golden = Golden(set="golden.jsonl")
    await site.run("a", golden=golden)
    await site.serves("a")
    await site.run("c", golden=golden)
    async with asyncio.timeout(300):
        while "0 of 1 cases pass" not in caplog.text or site.pids("c"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert "who: another text" in caplog.text
    await site.run("c", golden=golden)  # as any other edit of the policy would have it
    assert (await site.ask(), site.pids("c")) == ("a", [])
    await site.run("b", golden=golden)
    await site.serves("b")


async def test_a_shutdown_ends_all_of_them(site: Site) -> None:
    await site.run("a")
    await site.serves("a")
    await site.run("b")
    await site.supervisor.shut_down()
    assert site.all_pids() == []


async def test_without_a_port_for_a_successor_the_old_one_stays_and_the_next_edit_tries_again(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(host: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    await site.run("a")
    await site.serves("a")
    with monkeypatch.context() as patched:
        patched.setattr("gateway.process.engines._free_port", fails)
        await site.run("b")
        async with asyncio.timeout(300):
            while "no port for its successor (Too many open files)" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert await site.ask() == "a"
    await site.run("b")
    await site.serves("b")


async def test_a_golden_set_that_cannot_be_asked_is_an_objection(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.process.golden_set.DIE_WITH_PARENT", (str(site.policies / "nothing"),))
    why = await GoldenSets(site.policies, os.environ).objection(
        site.launch("a", golden=Golden(set="golden.jsonl")), "http://127.0.0.1:1"
    )
    assert why == "the check of 'golden.jsonl' cannot be started: No such file or directory"
