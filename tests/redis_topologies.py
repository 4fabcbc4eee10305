"""Real Redis as people run it: a cluster of masters with replicas, and servers that Sentinels watch."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from redis import Redis
from redis.exceptions import RedisError

from tests.ports import free_port

NODE_TIMEOUT = 1_500
"""Milliseconds until a cluster or Sentinels fail over: short, as tests wait, and longer than most pauses of a busy
machine."""
PATIENCE = 300.0


class RedisNode:
    """A redis-server, or a Sentinel, with a configuration of its own."""

    def __init__(self, program: str, folder: Path, port: int, *settings: str, sentinel: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self._log = port, folder / "log"
        file = folder / "redis.conf"
        base = (f"port {port}", "bind 127.0.0.1", f'dir "{folder}"', 'save ""', "repl-diskless-sync-delay 0")
        file.write_text("\n".join((*(base[:3] if sentinel else base), *settings)) + "\n")
        self._command = [program, str(file), *(["--sentinel"] if sentinel else [])]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def signal(self, which: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(which)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    @property
    def alive(self) -> bool:
        return self.process is not None

    def ask(self, *command: object, password: str | None = None) -> object:
        with Redis(port=self.port, socket_timeout=10, password=password) as client:
            return client.execute_command(*command)

    def replication(self) -> dict[str, object]:
        with Redis(port=self.port, socket_timeout=10) as client:
            return client.info("replication")  # type: ignore[no-any-return, return-value]

    @property
    def has_replica(self) -> bool:
        """Whether it is a master whose replica is up to date."""
        info = self.replication()
        return info["role"] == "master" and "'state': 'online'" in str(info)


def until(true: Callable[[], object], what: str) -> None:
    """Wait for it: errors of servers that are not there yet are none."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if true():
                return
        except (RedisError, OSError):
            pass
        time.sleep(0.05)
    raise RuntimeError(f"{what} took more than {PATIENCE:.0f} s")


class RedisCluster:
    """``masters`` with a replica each."""

    def __init__(self, program: str, folder: Path, masters: int = 3, *settings: str) -> None:
        on = (
            "cluster-enabled yes",
            f"cluster-node-timeout {NODE_TIMEOUT}",
            "cluster-require-full-coverage no",
            "cluster-replica-validity-factor 0",
            *settings,
        )
        ports = list(_free_pairs(2 * masters))
        self.nodes = [RedisNode(program, folder / str(port), port, *on) for port in ports]
        self._masters = masters

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        first = self.nodes[0]
        for number, node in enumerate(self.nodes):
            until(lambda node=node: node.ask("PING"), "a server's start")  # type: ignore[misc]
            # Unlike each other, or no master of two that fail at once knows whose turn it is.
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            first.ask("CLUSTER", "MEET", "127.0.0.1", node.port)
        masters = self.nodes[: self._masters]
        bounds = [round(16384 * i / len(masters)) for i in range(len(masters) + 1)]
        for node, low, high in zip(masters, bounds, bounds[1:], strict=False):
            node.ask("CLUSTER", "ADDSLOTSRANGE", low, high - 1)
        ids = [self._text(node.ask("CLUSTER", "MYID")) for node in masters]
        for node, master in zip(self.nodes[self._masters :], ids, strict=True):
            until(lambda node=node, master=master: self._follow(node, master), "to follow a master")  # type: ignore[misc]
        until(self.whole, "the cluster's start")

    def whole(self) -> bool:
        """Whether all nodes see all slots served, and each master with a replica that is up to date."""
        roles = []
        for node in self.nodes:
            if not node.alive:
                continue
            told = self._text(node.ask("CLUSTER", "INFO"))
            if "cluster_state:ok" not in told or f"cluster_known_nodes:{len(self.nodes)}" not in told:
                return False
            info = node.replication()
            roles.append(info["role"] == "master")
            if not roles[-1] and info["master_link_status"] != "up":
                return False
            lines = self._text(node.ask("CLUSTER", "NODES")).splitlines()
            if sum("master" in line and "fail" not in line for line in lines) != self._masters:
                return False
        return sum(roles) == self._masters

    def master_of(self, slot: int) -> RedisNode:
        """As the first node says that is alive and knows."""
        found: list[RedisNode] = []

        def look() -> bool:
            for node in (one for one in self.nodes if one.alive):
                for low, high, master, *_ in node.ask("CLUSTER", "SLOTS"):  # type: ignore[attr-defined]
                    if low <= slot <= high:
                        found.extend(one for one in self.nodes if one.port == master[1])
                        return True
            return False

        until(look, "to find a master")
        return found[0]

    def move(self, slot: int, source: RedisNode, target: RedisNode) -> None:
        """A slot and its keys, as ``redis-cli --cluster reshard`` does."""
        ids = [self._text(node.ask("CLUSTER", "MYID")) for node in (source, target)]
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)  # type: ignore[misc]
        for node in (target, source):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
        until(lambda: self.master_of(slot) is target, "a slot's move")

    def mend(self) -> None:
        """Start what was killed; each master has a replica again."""
        for node in self.nodes:
            if not node.alive:
                node.start()
        until(self.whole, "the cluster's recovery")

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def _follow(self, node: RedisNode, master: str) -> bool:
        node.ask("CLUSTER", "REPLICATE", master)
        return True

    @staticmethod
    def _text(answer: object) -> str:
        return answer.decode() if isinstance(answer, bytes) else str(answer)


class SentinelSet:
    """A master, replicas, and Sentinels of which two must agree."""

    def __init__(
        self, program: str, folder: Path, *settings: str, replicas: int = 1, sentinels: int = 3
    ) -> None:
        self.name = "tollgate"
        self.servers = []
        for number in range(1 + replicas):
            follows = (f"replicaof 127.0.0.1 {self.servers[0].port}",) if number else ()
            self.servers.append(
                RedisNode(program, folder / f"server-{number}", free_port(), *follows, *settings)
            )
        watch = (
            f"sentinel monitor {self.name} 127.0.0.1 {self.servers[0].port} 2",
            f"sentinel down-after-milliseconds {self.name} {NODE_TIMEOUT}",
            f"sentinel failover-timeout {self.name} 4000",
        )
        self.sentinels = [
            RedisNode(program, folder / f"sentinel-{number}", free_port(), *watch, sentinel=True)
            for number in range(sentinels)
        ]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.name}/0"

    def start(self) -> None:
        for node in self.servers:
            node.start()
            until(lambda node=node: node.ask("PING"), "a server's start")  # type: ignore[misc]
        until(lambda: self.servers[0].has_replica, "the replica's start")
        for node in self.sentinels:
            node.start()
        until(self.ready, "the Sentinels' start")

    def ready(self) -> bool:
        """Whether all Sentinels know each other, the master, and a replica of it that is up to date."""
        for node in self.sentinels:
            told = node.ask("SENTINEL", "MASTER", self.name)
            assert isinstance(told, dict)
            state = {key.decode(): value.decode() for key, value in told.items()}
            if int(state["num-other-sentinels"]) < len(self.sentinels) - 1 or state["flags"] != "master":
                return False
            if int(state["num-slaves"]) < len(self.servers) - 1:
                return False
        return self.master.has_replica

    @property
    def master(self) -> RedisNode:
        answer = self.sentinels[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
        port = int(answer[1])  # type: ignore[index]
        return next(node for node in self.servers if node.port == port)

    @property
    def failovers(self) -> int:
        """How often it has had another master: on a busy machine Sentinels may take one for dead that only waits."""
        epochs = []
        for node in self.sentinels:
            told = node.ask("SENTINEL", "MASTER", self.name)
            assert isinstance(told, dict)
            epochs.append(int(told[b"config-epoch"]))
        return max(epochs)

    def mend(self) -> None:
        """Start what was killed, as a replica: the Sentinels would take ten seconds to tell it so."""
        master = self.master
        for node in self.servers:
            if not node.alive:
                node.start()
                until(lambda node=node: node.ask("REPLICAOF", "127.0.0.1", master.port), "a replica's start")  # type: ignore[misc]
        until(self.ready, "the set's recovery")

    def kill(self) -> None:
        for node in (*self.sentinels, *self.servers):
            node.kill()


def _free_pairs(count: int) -> Iterator[int]:
    """Ports, of which the one 10,000 higher is free, too: a cluster's servers talk to each other there."""
    found: set[int] = set()
    while len(found) < count:
        port = free_port()
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
        if port not in found:
            found.add(port)
            yield port


Topology = TypeVar("Topology", RedisCluster, SentinelSet)


@contextmanager
def running(topology: Topology) -> Iterator[Topology]:
    try:
        topology.start()
        yield topology
    finally:
        topology.kill()
