"""Ranks on hosts of their own: as processes with addresses of their own, and in network namespaces."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.errors import StartupError
from engine.nodes.address import Address
from engine.worker.pipelined_runner import start_runner
from engine.worker.ranks import LeaderRank
from engine.worker.runner import Runner
from tests.engine.live import EngineServer, eventually
from tests.engine.steps import run
from tests.engine.tiny import SHAPE, write_model
from tests.ports import free_port

PROMPT = [5, 6, 7, 90, 91]
GREEDY = SamplingParams(max_tokens=12, temperature=0)


class Node:
    """``python -m engine rank``."""

    def __init__(self, host: str, model: Path, secret: Path, *, inside: str | None = None) -> None:
        """``inside``: a network namespace."""
        self.address = Address(host, free_port())
        self.log = secret.with_name(f"{host}.log")
        command = [sys.executable, "-m", "engine", "rank", "--listen", str(self.address)]
        command += ["--model", str(model), "--nodes-secret", str(secret)]
        if inside is not None:
            command = ["ip", "netns", "exec", inside, *command]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)

    def __enter__(self) -> Node:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line == f"rank listens on {self.address}\n", self.log.read_text()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def rank(self) -> int:
        """The process that it has started."""
        pid = self.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("known to all of them")
    path.chmod(0o600)
    return path


@contextmanager
def started(config: EngineConfig) -> Iterator[Runner]:
    runner = start_runner(config)
    try:
        yield runner
    finally:
        runner.ranks.close()


def test_a_rank_on_another_address_its_death_and_the_next_start(
    tiny_model: Path, tmp_path: Path, secret: Path
) -> None:
    alone = Runner(EngineConfig(model=tiny_model, kv_cache_blocks=60, threads=1))
    expected = run(alone, [(PROMPT, GREEDY)]).tokens
    # Its model is in a folder of its own.
    copy = write_model(tmp_path / "copy")
    with Node("127.0.0.2", copy, secret) as node:
        config = EngineConfig(
            model=tiny_model,
            kv_cache_blocks=60,
            threads=1,
            pipeline_parallel=2,
            nodes=(node.address,),
            nodes_secret=secret,
        )
        died: list[int] = []
        told = threading.Event()

        def note(rank: int) -> None:
            died.append(rank)
            told.set()

        with started(config) as runner:
            assert isinstance(runner.ranks, LeaderRank)
            assert runner.ranks.pids == []
            assert run(runner, [(PROMPT, GREEDY)]).tokens == expected
            runner.ranks.on_death = note
            os.kill(node.rank, signal.SIGKILL)
            assert told.wait(300)
            assert died == [1]
        # The same node takes part again: in a new process.
        with started(config) as runner:
            assert run(runner, [(PROMPT, GREEDY)]).tokens == expected


def test_another_model_or_secret_is_refused_by_name(tiny_model: Path, tmp_path: Path, secret: Path) -> None:
    other = write_model(tmp_path / "other", {**SHAPE, "rope_theta": 20000.0})
    wrong = tmp_path / "wrong"
    wrong.write_text("known to nobody else")
    wrong.chmod(0o600)
    silent: list[socket.socket] = []
    with Node("127.0.0.2", other, secret) as node:
        for known, said in (
            (wrong, "is not trusted: it does not accept the secret"),
            (secret, "is another than"),
        ):
            # Others that say nothing, more of them than are heard at a time, hold nobody up.
            silent += [socket.create_connection(node.address) for _ in range(40 - len(silent))]
            config = EngineConfig(
                model=tiny_model,
                kv_cache_blocks=60,
                tensor_parallel=2,
                nodes=(node.address,),
                nodes_secret=known,
            )
            with pytest.raises(StartupError, match=rf"The node.* {node.address}.*{said}"):
                start_runner(config)
    for sock in silent:
        sock.close()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"nodes_secret": Path("s")}, "give both, or neither"),
        ({"nodes": (Address("a", 1),)}, "give both, or neither"),
        ({"nodes": (Address("a", 1),), "nodes_secret": Path("s")}, "names 1 ranks beside this one"),
        (
            {"nodes": (Address("a", 1),), "nodes_secret": Path("s"), "tensor_parallel": 2, "max_adapters": 1},
            "--max-adapters are not supported with --nodes",
        ),
    ],
)
def test_what_does_not_go_with_nodes_is_refused(options: dict, named: str) -> None:
    with pytest.raises(StartupError, match=named):
        EngineConfig(model=Path(), **options)


@pytest.mark.slow
def test_two_network_namespaces_and_a_cable_that_is_cut(
    long_model: Path, tmp_path: Path, secret: Path
) -> None:
    """The node's host has no other way to this one; then it has none at all, and nobody says so."""
    name = f"tollgate{os.getpid() % 10000}"
    here, there = f"tg{os.getpid() % 10000}a", f"tg{os.getpid() % 10000}b"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        pytest.skip("network namespaces take root")
    try:
        for command in (
            f"ip link add {here} type veth peer name {there} netns {name}",
            f"ip addr add 10.98.76.1/30 dev {here}",
            f"ip link set {here} up",
            f"ip -n {name} addr add 10.98.76.2/30 dev {there}",
            f"ip -n {name} link set {there} up",
        ):
            subprocess.run(command.split(), check=True)
        with Node("10.98.76.2", long_model, secret, inside=name) as node:
            flags = ("--pipeline-parallel", "2", "--nodes", str(node.address), "--nodes-secret", str(secret))
            with EngineServer(
                long_model, *flags, "--kv-cache-blocks", "2000", log=tmp_path / "log"
            ) as server:
                body = {"model": long_model.name, "prompt": "a", "max_tokens": 20_000, "stream": True}
                with server.http.stream("POST", "/v1/completions", json=body) as answer:
                    lines = answer.iter_lines()
                    assert next(lines).startswith("data: ")
                    subprocess.run(f"ip -n {name} link set {there} down".split(), check=True)
                    assert "engine_died" in "".join(lines)
                assert server.process.wait(300) == 1
                assert f"rank 1 on {node.address} died" in server.log
            eventually(lambda: "the rank has ended" in node.log.read_text())
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)
