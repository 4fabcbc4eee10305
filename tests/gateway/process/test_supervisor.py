"""The supervisor with real children: first plain commands, then the whole of ``tollgate serve``."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from gateway.backends.launcher import Launch
from gateway.policy.loader import load_policy
from gateway.process.last_good_policy import LastGoodPolicy
from gateway.process.listener import CannotListen, listen
from gateway.process.supervisor import Supervisor

POLICY = """\
version: 1
backends:
  scripted:
    kind: fake
    token_delay: {delay}
    script: [{{reply: "one two three four five six seven eight nine ten"}}]
models:
  {model}: {{targets: [{{backend: scripted, model: m}}]}}
"""


NEVER_READY = """\
version: 1
backends:
  own: {{kind: engine, launch: true, base_url: "http://127.0.0.1:1", args: [--adapter, "x=/nowhere"]}}
models:
  {model}: {{targets: [{{backend: own, model: m}}]}}
# {delay}
"""


class TestListen:
    def test_a_port_in_use_is_named_with_a_way_out(self) -> None:
        with listen("127.0.0.1", 0)[0] as taken:
            port = taken.getsockname()[1]
            with pytest.raises(
                CannotListen, match=f"port {port} on 127.0.0.1 is in use .* --port {port + 1}"
            ):
                listen("127.0.0.1", port)

    @pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid", "a..b"])
    def test_an_address_that_is_not_ours(self, host: str) -> None:
        with pytest.raises(CannotListen, match=f"'{host}' is no address of this machine.* --host 127.0.0.1"):
            listen(host, 0)

    def test_ipv6(self) -> None:
        if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):
            pytest.skip("no IPv6 here")
        with listen("::1", 0)[0] as listener:
            assert listener.family == socket.AF_INET6


def words(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


@pytest.mark.anyio
class TestChildren:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        return tmp_path / "log"

    @pytest.fixture
    async def supervisor(self) -> AsyncIterator[Supervisor]:
        supervisor = Supervisor(env=os.environ, on_line=lambda name, line: None, drain_timeout=5)
        yield supervisor
        await supervisor.shut_down()

    @staticmethod
    def command(name: str, log: Path) -> tuple[str, ...]:
        """Writes down when it starts and, a little after being told to, when it ends."""
        script = (
            f"trap 'sleep 0.1; echo -{name} >> {log}; exit 0' TERM; echo +{name} >> {log}; sleep 60 & wait"
        )
        return ("sh", "-c", script)

    @staticmethod
    async def logged(log: Path, *lines: str) -> None:
        deadline = time.monotonic() + 300
        while words(log) != list(lines):
            assert time.monotonic() < deadline, words(log)
            await asyncio.sleep(0.01)

    async def test_just_the_engines_whose_command_changed_are_restarted(
        self, supervisor: Supervisor, log: Path
    ) -> None:
        a, b, c = (Launch(self.command(name, log)) for name in "abc")
        await supervisor.run_engines({"a": a})
        await self.logged(log, "+a")
        first = supervisor.engines["a"].pid
        await supervisor.run_engines({"a": a, "b": b})
        await self.logged(log, "+a", "+b")
        await supervisor.run_engines({"a": a, "b": c})
        await self.logged(log, "+a", "+b", "-b", "+c")
        assert supervisor.engines["a"].pid == first
        await supervisor.run_engines({"a": a})
        await self.logged(log, "+a", "+b", "-b", "+c", "-c")
        assert list(supervisor.engines) == ["a"] and supervisor.engines["a"].pid == first

    async def test_all_that_end_are_gone_before_any_begins(self, supervisor: Supervisor, log: Path) -> None:
        """Two engines may trade their ports."""
        a, b = (Launch(self.command(name, log)) for name in "ab")
        await supervisor.run_engines({"x": a})
        await self.logged(log, "+a")
        await supervisor.run_engines({"x": b})
        await self.logged(log, "+a", "-a", "+b")

    async def test_workers_finish_before_engines_are_stopped(self, supervisor: Supervisor, log: Path) -> None:
        await supervisor.run_engines({"e": Launch(self.command("engine", log))})
        await self.logged(log, "+engine")
        supervisor.start_worker("w", self.command("worker", log), env={}, pass_fds=[])
        await self.logged(log, "+engine", "+worker")
        await supervisor.shut_down()
        assert words(log) == ["+engine", "+worker", "-worker", "-engine"]

    async def test_nothing_is_started_during_the_shutdown(self, supervisor: Supervisor, log: Path) -> None:
        await supervisor.shut_down()
        await supervisor.run_engines({"e": Launch(self.command("engine", log))})
        assert not supervisor.engines


class TestLastGood:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "policies"
        folder.mkdir()
        (folder / "gateway.yaml").write_text(POLICY.format(model="one", delay="0s"))
        return folder

    @pytest.fixture
    def last_good(self, tmp_path: Path) -> LastGoodPolicy:
        (tmp_path / "scratch").mkdir()
        return LastGoodPolicy(tmp_path / "scratch")

    def test_it_is_the_policy_that_was_kept_last(self, folder: Path, last_good: LastGoodPolicy) -> None:
        for model in ("one", "two"):
            (folder / "gateway.yaml").write_text(POLICY.format(model=model, delay="0s"))
            last_good.keep(load_policy(folder, {}))
            assert list(load_policy(last_good.path, {}).policy.models) == [model]
        assert len(list(last_good.path.parent.iterdir())) == 2  # the copy, and the link to it
        assert last_good.path.resolve().stat().st_mode & 0o077 == 0

    def test_it_is_what_was_read_whatever_became_of_the_files(
        self, folder: Path, tmp_path: Path, last_good: LastGoodPolicy
    ) -> None:
        keys = f"keys: [{{id: a, sha256: '{'a' * 64}'}}]"
        (folder / "keys.yaml").write_text(keys)
        elsewhere = tmp_path / "issued.yaml"
        elsewhere.write_text(f"keys: [{{id: b, sha256: '{'b' * 64}'}}]")
        loaded = load_policy(folder, {}, also=[elsewhere])
        (folder / "gateway.yaml").write_text("broken: [")
        last_good.keep(loaded)
        kept = load_policy(last_good.path, {})
        assert {key.id for key in kept.policy.keys} == {"a", "b"}
        assert [file.path.stat().st_mode & 0o777 for file in kept.sources] == [0o600] * 3


class Serve:
    """``tollgate serve`` in a process, on a free port, with a scripted backend."""

    def __init__(
        self, folder: Path, *options: str, delay: str = "0s", policy: str = POLICY, **env: str
    ) -> None:
        self.policies = folder / "policies"
        self.policies.mkdir(exist_ok=True)
        self.write(policy.format(model="one", delay=delay))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--policies", "policies", "--port", "0", *options],
            cwd=folder,
            env={**os.environ, "TOLLGATE_DEV_KEY": "dev-key", "TOLLGATE_SHUTDOWN_DELAY": "0", **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def write(self, text: str) -> None:
        (self.policies / "gateway.yaml").write_text(text)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line.rstrip("\n"))

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < deadline, "\n".join(self.output)
            time.sleep(0.01)

    def says(self, text: str) -> bool:
        return any(text in line for line in self.output)

    def ready(self) -> str:
        """Waits for the banner; the gateway's URL."""
        self.until(lambda: self.says("Tollgate is ready at "))
        return next(line.split()[-1] for line in self.output if "Tollgate is ready at " in line)

    def workers(self) -> list[int]:
        task = Path(f"/proc/{self.process.pid}/task")
        children = [
            int(pid) for thread in task.iterdir() for pid in (thread / "children").read_text().split()
        ]
        return [
            pid for pid in children if b"gateway.process.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    def client(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.ready(), headers={"authorization": "Bearer dev-key"}, timeout=300, trust_env=False
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


ASK = {"model": "one", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serve]]:
    started: list[Serve] = []

    def start(*options: str, **more: str) -> Serve:
        # A state folder of its own: another's generations count on.
        started.append(Serve(tmp_path, *options, **{"TOLLGATE_STATE_DIR": str(tmp_path / "state"), **more}))
        return started[-1]

    yield start
    for one in started:
        one.close()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_killed_worker_is_replaced_and_a_broken_policy_does_not_keep_it_down(
    serve: Callable[..., Serve],
) -> None:
    one = serve()
    with one.client() as client:
        assert client.post("/v1/chat/completions", json=ASK).status_code == 200
        one.write("version: [")
        one.until(lambda: one.says("the last good policy stays in force"))
        (worker,) = one.workers()
        os.kill(worker, signal.SIGKILL)
    with one.client() as client:  # the socket is held open: this waits for the new worker, and is not refused
        assert client.post("/v1/chat/completions", json=ASK).status_code == 200
    assert one.workers() != [worker]
    assert one.says("gateway was killed by SIGKILL")
    one.write(POLICY.format(model="two", delay="0s"))
    one.until(lambda: one.says("gateway | ") and one.says("policy generation 2 is in force"))
    with one.client() as client:
        one.until(lambda: [m["id"] for m in client.get("/v1/models").json()["data"]] == ["two"])


def test_a_generation_is_in_force_once_every_worker_obeys_it(serve: Callable[..., Serve]) -> None:
    one = serve("--workers", "2")
    with one.client() as client:
        held, _ = one.workers()
        os.kill(held, signal.SIGSTOP)
        try:
            one.write(POLICY.format(model="two", delay="0s"))
            # By the other worker, who takes this one's connections as well.
            one.until(lambda: [m["id"] for m in client.get("/v1/models").json()["data"]] == ["two"])
            time.sleep(1.0)
            assert not one.says("is in force")
        finally:
            os.kill(held, signal.SIGCONT)
        one.until(lambda: one.says("policy generation 2 is in force"))


def test_sigterm_lets_answers_under_way_finish_and_takes_no_new_ones(serve: Callable[..., Serve]) -> None:
    one = serve("--workers", "2", delay="100ms")
    url = one.ready()
    workers = one.workers()
    assert len(workers) == 2
    with (
        one.client() as client,
        client.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as answer,
    ):
        lines = answer.iter_lines()
        while '"content":"one' not in next(lines):
            pass
        one.process.send_signal(signal.SIGTERM)
        one.until(lambda: not _connects(url))
        rest = list(lines)
    assert rest[-2:] == ["data: [DONE]", ""] and any("ten" in line for line in rest)
    assert one.process.wait(300) == 0
    assert all(map(gone, workers))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_at_sigterm_readiness_goes_first_and_the_port_stays_open(
    serve: Callable[..., Serve], workers: str
) -> None:
    one = serve("--workers", workers, "--shutdown-delay", "600", delay="100ms")
    url = one.ready()
    with (
        one.client() as client,
        client.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        one.process.send_signal(signal.SIGTERM)
        one.until(lambda: httpx.get(f"{url}/readyz", trust_env=False).status_code == 503)
        one.until(lambda: one.says("not ready any more, and serving for another 600 s"))
        for _ in range(8):  # on connections of their own, so that each worker gets some
            assert httpx.get(f"{url}/readyz", trust_env=False).json()["status"] == "stopping"
        with one.client() as another:
            assert another.post("/v1/chat/completions", json=ASK).status_code == 200
            (victim, *_) = one.workers()
        os.kill(victim, signal.SIGKILL) if workers == "2" else None
        one.until(lambda: httpx.get(f"{url}/readyz", trust_env=False).status_code == 503)
        time.sleep(0.3)  # later than an echo of the first
        one.process.send_signal(signal.SIGTERM)  # whoever cannot wait
        one.until(lambda: not _connects(url))
        if workers == "1":
            assert list(lines)[-2:] == ["data: [DONE]", ""]
    assert one.process.wait(300) == 0


def test_each_worker_is_waited_for(serve: Callable[..., Serve]) -> None:
    one = serve("--workers", "2")
    url = one.ready()
    (victim, other) = one.workers()
    os.kill(victim, signal.SIGKILL)
    assert httpx.get(f"{url}/readyz", trust_env=False, timeout=300).status_code == 200
    assert other in one.workers()


def test_the_delay_ends_by_itself(serve: Callable[..., Serve]) -> None:
    one = serve("--shutdown-delay", "1")
    url = one.ready()
    began = time.monotonic()
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(300) == 0
    assert time.monotonic() - began >= 1
    assert not _connects(url)


def test_ctrl_c_does_not_wait_for_load_balancers(serve: Callable[..., Serve]) -> None:
    one = serve("--shutdown-delay", "600")
    one.ready()
    one.process.send_signal(signal.SIGINT)
    assert one.process.wait(300) == 0


def test_who_was_never_ready_has_nobody_to_wait_for(serve: Callable[..., Serve]) -> None:
    one = serve("--shutdown-delay", "600", policy=NEVER_READY)
    one.until(lambda: one.says("waiting for own: "))
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(300) == 0


def test_a_second_ctrl_c_stops_at_once(serve: Callable[..., Serve]) -> None:
    one = serve(delay="5s")
    with (
        one.client() as client,
        client.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        (worker,) = one.workers()
        one.process.send_signal(signal.SIGINT)
        one.until(lambda: one.says("Ctrl-C again stops at once"))
        time.sleep(0.3)
        assert one.process.poll() is None
        one.process.send_signal(signal.SIGINT)
        assert one.process.wait(300) == 130
    assert gone(worker)


def test_answers_that_take_too_long_are_cut_after_the_drain_timeout(serve: Callable[..., Serve]) -> None:
    one = serve("--drain-timeout", "1", delay="5s")
    with (
        one.client() as client,
        client.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        began = time.monotonic()
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(300) == 0
        assert 0.9 < time.monotonic() - began < 30  # the answer would take 45
        said = "".join(lines)
        assert '"code":"shutting_down"' in said
        assert "[DONE]" not in said
    assert not one.says("Traceback")


def test_nothing_outlives_a_supervisor_that_was_killed(serve: Callable[..., Serve]) -> None:
    one = serve("--workers", "2")
    url = one.ready()
    workers = one.workers()
    one.process.kill()
    one.process.wait()
    one.until(lambda: all(map(gone, workers)))
    one.until(lambda: not _connects(url))


def _connects(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=300).close()
    except OSError:
        return False
    return True


def connections_of(pid: int) -> int:
    """Established TCP connections that the process has accepted and not closed."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(descriptor.readlink().name)
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return sum(row[3] == "01" and f"socket:[{row[9]}]" in sockets for row in rows)


def test_connections_are_spread_over_the_workers(serve: Callable[..., Serve]) -> None:
    one = serve("--workers", "2")
    url = httpx.URL(one.ready())

    def spread() -> bool:
        idle = [socket.create_connection((url.host, url.port or 0)) for _ in range(200)]
        one.until(lambda: sum(map(connections_of, one.workers())) >= 200)
        fewest = min(map(connections_of, one.workers()))
        for connection in idle:
            connection.close()
        one.until(lambda: not any(map(connections_of, one.workers())))
        return fewest >= 60  # less by chance alone: 1 in 10,000,000

    one.until(spread)  # while a worker starts, its connections go to the other


def test_connections_of_a_worker_that_hangs_go_to_the_others(serve: Callable[..., Serve]) -> None:
    one = serve("--workers", "2")
    with one.client() as client:
        assert client.post("/v1/chat/completions", json=ASK).status_code == 200
    one.until(lambda: len(one.workers()) == 2)
    hanging = one.workers()[0]
    os.kill(hanging, signal.SIGSTOP)
    try:
        for _ in range(8):
            with one.client() as client:
                assert client.get("/healthz").status_code == 200
    finally:
        os.kill(hanging, signal.SIGCONT)


def test_a_worker_uses_slots_that_the_others_leave_free(serve: Callable[..., Serve]) -> None:
    """Neither of two requests may wait, and one worker serves both of them: its own share is one slot."""
    policy = POLICY.replace("kind: fake\n", "kind: fake\n    max_concurrency: 2\n")
    one = serve("--workers", "2", policy=policy + "tiers: {{default: {{max_wait: 10ms}}}}\n", delay="100ms")
    one.ready()
    one.until(lambda: len(one.workers()) == 2)
    hanging = one.workers()[0]
    os.kill(hanging, signal.SIGSTOP)

    async def ask_twice() -> list[int]:
        async with httpx.AsyncClient(base_url=one.ready(), timeout=300, trust_env=False) as client:
            key = {"authorization": "Bearer dev-key"}
            answers = [client.post("/v1/chat/completions", json=ASK, headers=key) for _ in range(2)]
            return [answer.status_code for answer in await asyncio.gather(*answers)]

    try:
        assert asyncio.run(ask_twice()) == [200, 200]
    finally:
        os.kill(hanging, signal.SIGCONT)


def test_a_port_that_another_gateway_shares_among_its_workers_is_in_use() -> None:
    theirs = listen("127.0.0.1", 0, 3)
    port = theirs[0].getsockname()[1]
    try:
        assert {listener.getsockname()[1] for listener in theirs} == {port} and len(theirs) == 3
        with pytest.raises(CannotListen, match="in use by another program"):
            listen("127.0.0.1", port, 2)
    finally:
        for listener in theirs:
            listener.close()
