"""Fixtures that all tests share: the async backend, a real Redis server, and a real sidecar."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from gateway.databases.database import Database
from gateway.databases.postgres import PostgresDatabase
from gateway.databases.sqlite import SqliteDatabase
from tests.examples import SAMPLE, register_profiles
from tests.fakes import FakeUpstream
from tests.ledgers import SQLITE_AND_POSTGRES
from tests.postgres_server import PostgresServer, postgres_programs
from tests.redis_server import RedisServer
from tests.redis_topologies import RedisCluster, SentinelSet, running
from tests.s3_server import S3Server
from tests.sidecars import SidecarProcess
from tests.stalls import TOO_LONG, StallDetector

SHARED_SERVERS = frozenset(["sidecar", "stack"])
"""Fixtures of the whole session."""

# Kernels are run by Triton's interpreter: it decides when they are imported, which is after this.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Threads that wait for one another sleep: on a busy machine those that spin keep the ones they wait for from running.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell that starts the tests in the background has them ignore Ctrl-C, and whatever they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

register_profiles()
settings.load_profile(SAMPLE)

# Collection makes millions of objects that stay: looking through them for garbage takes seconds, in each worker.
gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First come those that share a server which takes long to start: one worker has them all, and starts it."""
    items.sort(key=lambda item: SHARED_SERVERS.isdisjoint(getattr(item, "fixturenames", ())))


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test marked ``deadlines`` that fails while the machine stalled proves nothing, and is skipped."""
    if item.get_closest_marker("deadlines") is None:
        return (yield)
    with StallDetector() as stalls:
        try:
            return (yield)
        except Exception as error:
            if stalls.longest < TOO_LONG:
                raise
            pytest.skip(f"the machine stood still for {stalls.longest:.2f} s, and then: {error!r:.200}")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


_NUMBERS = itertools.count()
"""Of state folders."""


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway honours the environment's proxies; those of the machine that runs the tests are not meant."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def own_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test leaves a ledger or a key where the next `make serve`, or a later test, would find it; nor is a gateway of
    an earlier one asked, that has not ended yet."""
    monkeypatch.setenv("TOLLGATE_STATE_DIR", str(tmp_path_factory.getbasetemp() / f"state{next(_NUMBERS)}"))


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream() as server:
        yield server


def installed(program: str, package: str) -> str:
    """Its path. Without it a test is skipped, or fails where all have to run."""
    path = shutil.which(program)
    if path is None:
        message = f"{program} is not installed (Debian: apt-get install {package})"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.fixture(scope="session")
def redis_program() -> str:
    return installed("redis-server", "redis-server")


@pytest.fixture(scope="session")
def prometheus_program() -> str:
    return installed("prometheus", "prometheus")


@pytest.fixture(scope="session")
def promtool_program() -> str:
    return installed("promtool", "prometheus")


@pytest.fixture(scope="session")
def redis_server(redis_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server for the whole session; keep to keys of your own, and do not kill it."""
    server = RedisServer(redis_program, tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_redis(redis_program: str, tmp_path: Path) -> Iterator[RedisServer]:
    """A server for this test alone, to be killed at will."""
    server = RedisServer(redis_program, tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def redis_cluster(redis_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Three masters with a replica each, for the whole session: who kills one mends it, and has keys of its own."""
    with running(RedisCluster(redis_program, tmp_path_factory.mktemp("cluster"))) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def sentinel_set(redis_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelSet]:
    """A master, its replica and three Sentinels, likewise."""
    with running(SentinelSet(redis_program, tmp_path_factory.mktemp("sentinel"))) as servers:
        yield servers


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, its key in the same file."""
    program = shutil.which("openssl")
    if program is None:
        pytest.fail("these tests make a certificate with the openssl command; install it")
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=tollgate-test", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    cert.write_bytes(cert.read_bytes() + key.read_bytes())
    return cert


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres_folder() -> Path:
    programs = postgres_programs()
    if programs is None:
        message = "PostgreSQL is not installed (Debian: apt-get install postgresql)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return programs


@pytest.fixture(scope="session")
def postgres_server(postgres_folder: Path) -> Iterator[PostgresServer]:
    """A server for the whole session; make a database of your own, and do not kill it."""
    server = PostgresServer(postgres_folder)
    server.start()
    yield server
    server.remove()


@pytest.fixture
def own_postgres(postgres_folder: Path) -> Iterator[PostgresServer]:
    """A server for this test alone, to be killed at will."""
    server = PostgresServer(postgres_folder)
    server.start()
    yield server
    server.remove()


@pytest.fixture(params=SQLITE_AND_POSTGRES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty one of each kind, for the ledger."""
    if request.param == "sqlite":
        return SqliteDatabase(tmp_path / "ledger.sqlite")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return PostgresDatabase(server.url(server.new_database()))


@pytest.fixture(scope="session")
def sidecar_folder() -> Iterator[Path]:
    """A socket's path has about a hundred characters at most, and those of pytest's folders are long."""
    with tempfile.TemporaryDirectory(prefix="tg-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def sidecar(sidecar_folder: Path) -> Iterator[SidecarProcess]:
    """One with every model, for the whole session; keep to partitions of your own, and do not kill it."""
    process = SidecarProcess(sidecar_folder, entities=True, index=True)
    process.start()
    yield process
    process.kill()


@pytest.fixture
def own_sidecar() -> Iterator[SidecarProcess]:
    """One for this test alone, with the embedder and an index in memory, to be killed at will."""
    with tempfile.TemporaryDirectory(prefix="tg-") as folder:
        process = SidecarProcess(Path(folder), index=True)
        process.start()
        yield process
        process.kill()
