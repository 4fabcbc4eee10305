"""Real processes, real signals."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.backoff import Backoff
from gateway.children.child import Child

pytestmark = pytest.mark.anyio

QUICK = Backoff(0.02, most=0.08)


@asynccontextmanager
async def running(
    *argv: str, grace: float = 5.0, backoff: Backoff = QUICK, calm: float = 30.0
) -> AsyncIterator[tuple[Child, list[str]]]:
    lines: list[str] = []
    child = Child("it", argv, on_line=lambda name, line: lines.append(line), backoff=backoff, calm=calm)
    child.start()
    try:
        yield child, lines
    finally:
        await child.stop(grace)


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "did not happen within 300 s"
        await asyncio.sleep(0.005)


def alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def members(group: int) -> list[str]:
    """The commands that run in a process group."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, _, its_group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                found.append((process / "cmdline").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


async def test_it_runs_in_a_group_of_its_own_and_its_lines_are_heard() -> None:
    async with running("sh", "-c", "echo one; printf '10%%\\r20%%\\n\\n'; echo two >&2; exec sleep 60") as (
        child,
        lines,
    ):
        await until(lambda: len(lines) == 4)
        assert lines == ["one", "10%", "20%", "two"]
        assert child.pid is not None and os.getpgid(child.pid) == child.pid != os.getpgid(0)
    assert child.pid is None


async def test_what_is_killed_is_started_again_with_growing_pauses(caplog: pytest.LogCaptureFixture) -> None:
    async with running("sleep", "60") as (child, _):
        pids = []
        for _ in range(5):
            await until(lambda: child.pid is not None and child.pid not in pids and alive(child.pid))
            assert child.pid is not None
            pids.append(child.pid)
            os.kill(child.pid, signal.SIGKILL)
        await until(lambda: child.pid is not None and child.pid not in pids)
    assert child.deaths == 5 and not any(map(alive, pids))
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert all(message.startswith("it was killed by SIGKILL after ") for message in said)
    pauses = [float(re.search(r"again in (\S+) s", message)[1]) for message in said]  # type: ignore[index]
    assert pauses == [0.02, 0.04, 0.08, 0.08, 0.08]


async def test_a_calm_life_starts_the_pauses_anew(caplog: pytest.LogCaptureFixture) -> None:
    async with running("sh", "-c", "exit 3", backoff=Backoff(0.01, most=10.0), calm=0.0) as (child, _):
        await until(lambda: child.deaths == 4)
    assert [message for message in caplog.messages if "exited with code 3" in message]
    assert all("again in 0.01 s" in message for message in caplog.messages)


async def test_its_last_words_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with running("sh", "-c", "echo loading; echo no such model >&2; exit 1") as (child, _):
        await until(lambda: child.deaths == 1)
    assert "its last output: no such model" in caplog.messages[0]


async def test_a_program_that_does_not_exist(caplog: pytest.LogCaptureFixture) -> None:
    async with running("/no/such/program") as (child, lines):
        await until(lambda: child.deaths == 2)
    assert lines[0] == "cannot run /no/such/program: No such file or directory"


async def test_sigterm_lets_it_finish() -> None:
    async with running("sh", "-c", "trap 'sleep 0.1; echo bye; exit 0' TERM; echo up; sleep 60 & wait") as (
        child,
        lines,
    ):
        await until(lambda: lines)
        group = child.pid
    assert lines == ["up", "bye"] and child.deaths == 0
    assert group is not None
    await until(lambda: not members(group))


async def test_what_ignores_sigterm_is_killed_after_the_grace() -> None:
    async with running("sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done", grace=0.2) as (
        child,
        lines,
    ):
        await until(lambda: lines)
        pid = child.pid
    assert pid is not None and not alive(pid)


async def test_its_own_children_go_with_it() -> None:
    async with running("sh", "-c", "sleep 60 & echo $!; wait") as (child, lines):
        await until(lambda: lines)
        grandchild = int(lines[0])
        assert child.pid is not None and alive(grandchild)
        group = child.pid
        os.kill(group, signal.SIGKILL)
        await until(lambda: not alive(grandchild))
        await until(lambda: not members(group))


async def test_stopping_during_a_pause_does_not_wait_for_it() -> None:
    began = time.monotonic()
    async with running("false", backoff=Backoff(30.0)) as (child, _):
        await until(lambda: child.deaths == 1)
    assert time.monotonic() - began < 25


async def test_kill_is_for_good() -> None:
    async with running("sh", "-c", "trap '' TERM; echo up; sleep 60 & wait") as (child, lines):
        await until(lambda: lines)
        child.kill()
        await until(lambda: child.pid is None)
        await asyncio.sleep(0.1)
        assert child.pid is None


async def test_very_long_lines_and_bytes_that_are_no_text() -> None:
    code = r"import os; os.write(1, b'x' * 200_000 + b'\n\xff\xfe\nlast'); os.close(1); import time; time.sleep(60)"
    async with running(sys.executable, "-c", code) as (_, lines):
        await until(lambda: "\ufffd\ufffd" in lines)
    assert sum(len(line) for line in lines if set(line) == {"x"}) == 200_000
    assert lines[-1] == "last"


def test_it_dies_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    program = """
        import asyncio, sys
        from gateway.children.child import Child

        async def main():
            child = Child("it", ["sh", "-c", "sleep 60 & echo $$ $!; trap '' TERM HUP INT; while :; do sleep 1; done"],
                          on_line=lambda name, line: print(line, flush=True))
            child.start()
            await asyncio.sleep(60)

        asyncio.run(main())
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    (group,) = {os.getpgid(pid) for pid in pids}
    assert all(map(alive, pids))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 300
    while members(group):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_leash_does_not_start_what_has_no_parent_any_more(tmp_path: Path) -> None:
    leash = Path(sys.modules["gateway.children.child"].__file__ or "").with_name("die_with_parent.py")
    file = tmp_path / "ran"
    done = subprocess.run(
        [sys.executable, leash, "1", "touch", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "is gone" in done.stderr
    assert not file.exists()


async def test_an_obstacle_is_waited_for_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.children.child._POLL", 0.01)
    looks: list[int] = []
    way, began = tmp_path / "way", tmp_path / "began"

    def obstacle() -> str | None:
        looks.append(1)
        return None if way.exists() else "the port is another's"

    child = Child("it", ("sh", "-c", f"touch {began}; sleep 60"), obstacle=obstacle)
    child.start()
    await until(lambda: len(looks) > 3)
    assert not began.exists() and child.deaths == 0
    assert [record.getMessage() for record in caplog.records] == ["it waits: the port is another's"]
    way.touch()
    await until(began.exists)
    await child.stop(5)


async def test_one_that_waits_for_an_obstacle_can_be_stopped() -> None:
    child = Child("it", ("true",), obstacle=lambda: "for ever")
    child.start()
    await asyncio.wait_for(child.stop(5), 300)
    assert child.pid is None
