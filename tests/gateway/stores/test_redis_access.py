"""Redis with TLS and logins as ``deploy/redis/users.acl`` has them: a real server, which lets nobody else in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from redis.exceptions import NoPermissionError

from gateway.caching.exact import RedisAnswerStore
from gateway.quota.limits import Amounts, Limit, Limits
from gateway.quota.redis import RedisCounters
from gateway.stores.redis import RedisStore
from gateway.stores.store import StoreDown
from gateway.stores.tally import RedisTally
from tests.ports import free_port
from tests.redis_topologies import RedisNode, until

pytestmark = pytest.mark.anyio

PASSWORD = "p@ss/w:rd#1"
USERS = Path(__file__).parents[3] / "deploy" / "redis" / "users.acl"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("quota.redis", "stores.redis", "stores.tally", "caching.exact"):
        monkeypatch.setattr(f"gateway.{module}.TIMEOUT", 60.0)


@pytest.fixture(scope="module")
def guarded(
    redis_program: str, certificate: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisNode]:
    """It takes clients with a certificate alone; this one is its own authority."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "users.acl").write_text(USERS.read_text().replace("TOLLGATE-PASSWORD", PASSWORD))
    tls = free_port()
    files = (f"tls-{name}-file {certificate}" for name in ("cert", "key", "ca-cert"))
    node = RedisNode(
        *(redis_program, folder, 0, f"tls-port {tls}", *files, "tls-auth-clients yes"),
        f'aclfile "{folder / "users.acl"}"',
    )
    node.port = tls
    node.start()
    until(lambda: "Ready to accept" in (folder / "log").read_text(), "a server's start")
    yield node
    node.kill()


@pytest.fixture
def url(guarded: RedisNode, certificate: Path) -> str:
    files = "&".join(f"{name}={certificate}" for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"))
    return f"rediss://tollgate:{quote(PASSWORD, safe='')}@127.0.0.1:{guarded.port}/0?{files}"


@pytest.fixture
async def counters(url: str) -> AsyncIterator[RedisCounters]:
    counters = RedisCounters(url)
    yield counters
    await counters.aclose()


async def test_this_user_may_do_all_that_is_needed(url: str, counters: RedisCounters) -> None:
    store, tally, answers = RedisStore(url), RedisTally(url), RedisAnswerStore(url)
    await store.put({"k": b"x"}, 60)
    assert await store.get_all(["k"]) == [b"x"]
    await store.touch(["k"], 60)
    await store.delete("k")
    assert await tally.add({"a": 2}, 60) == {"a": 2}
    answers.put("k", b"x", 60)
    await answers._link.write_probe()
    limits = Limits((Limit("tenant", "t", "dollars", "month", 900),))
    assert (await counters.reserve("a", limits, Amounts(1, 0, 5, 1))).admitted
    counters.settle("a", limits, Amounts(1, 0, 5, 1))
    await counters._renew()
    assert counters._link.run_id
    for one in (store, tally, answers):
        await one.aclose()


async def test_and_nothing_else(counters: RedisCounters) -> None:
    client = counters._link.redis
    for command in (("FLUSHALL",), ("KEYS", "*"), ("CONFIG", "GET", "*"), ("GET", "another's")):
        with pytest.raises(NoPermissionError):
            await client.execute_command(*command)  # type: ignore[no-untyped-call]


async def test_nobody_else_is_let_in(url: str, guarded: RedisNode, certificate: Path) -> None:
    """Whoever it is, is told why, and the password is not in it."""
    unknown = url.replace(quote(PASSWORD, safe=""), "another-one")
    default = f"rediss://127.0.0.1:{guarded.port}/0?{url.partition('?')[2]}"
    without = f"{url.partition('?')[0]}?ssl_ca_certs={certificate}"
    stranger = url.replace(f"ssl_ca_certs={certificate}&", "")
    for wrong, why in (
        (unknown, "invalid username-password"),
        (default, "authenticated"),
        (without, ""),
        (stranger, "certificate"),
        (url.replace("rediss://", "redis://").partition("?")[0], ""),
    ):
        store = RedisStore(wrong)
        with pytest.raises(StoreDown, match=rf"(?i){why}") as found:
            await store.get("k")
        assert PASSWORD not in str(found.value) and "another-one" not in str(found.value)
        await store.aclose()
