"""Keys over a real server and in real files: rotated, missing, late, too large."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.transport import OutgoingTransport
from gateway.errors import AuthUnavailable, Unauthenticated
from gateway.identity import jwks_source as module
from gateway.identity.jwks import JwksError, KeySet, parse
from gateway.identity.jwks_source import JwksSource, from_file, from_url
from tests.fakes import Action, FakeUpstream, head, reply, within
from tests.gateway.identity import issuer
from tests.gateway.identity.conftest import Authenticate, scope
from tests.gateway.identity.issuer import entry, jwks, token

pytestmark = pytest.mark.anyio


@pytest.fixture
async def server(upstream: FakeUpstream) -> FakeUpstream:
    upstream.health = reply(jwks(one=issuer.RSA))
    return upstream


@pytest.fixture
async def transport() -> AsyncIterator[OutgoingTransport]:
    transport = OutgoingTransport()
    yield transport
    await transport.aclose()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def refused(made: Any, text: str) -> str:
    with pytest.raises(Unauthenticated) as caught:
        await made.principal(scope(text))
    return caught.value.message


async def unavailable(made: Any, text: str) -> float:
    """After how many seconds another try makes sense."""
    with pytest.raises(AuthUnavailable) as caught:
        await made.principal(scope(text))
    assert caught.value.status == 503 and caught.value.retry_after is not None
    return caught.value.retry_after


def url(server: FakeUpstream) -> str:
    return server.base_url + "/jwks.json"


async def test_keys_are_fetched_at_once_and_the_first_request_waits(
    server: FakeUpstream, authenticator: Authenticate
) -> None:
    server.health = (0.1, *server.health)
    made = authenticator(jwt=[entry(url(server))])
    texts = [token(kid="one", sub=f"u{n}") for n in range(5)]
    principals = await asyncio.gather(*(made.principal(scope(text)) for text in texts))
    assert [principal.key_id for principal in principals] == [f"jwt:u{n}" for n in range(5)]
    assert [(probe.method, probe.path) for probe in server.probes] == [("GET", "/v1/jwks.json")]


async def test_a_rotated_key_is_found_and_an_old_one_counts_no_more(
    server: FakeUpstream, authenticator: Authenticate
) -> None:
    made = authenticator(jwt=[entry(url(server))])
    old, new = token(kid="one"), token(key=issuer.OTHER_RSA, kid="two")
    await made.principal(scope(old))
    server.health = reply(jwks(two=issuer.OTHER_RSA))
    await made.principal(scope(old))
    await made.principal(scope(new))
    assert len(server.probes) == 2
    # What was verified with the old keys is forgotten with them.
    assert "its key (kid) is unknown" in await refused(made, old)


async def test_unknown_keys_set_off_few_fetches(server: FakeUpstream, authenticator: Authenticate) -> None:
    made = authenticator(jwt=[entry(url(server))])
    for number in range(20):
        assert "its key (kid) is unknown" in await refused(made, token(kid=f"made-up-{number}"))
    assert len(server.probes) == 2  # at the start, and once for all of them
    await made.principal(scope(token(kid="one")))


async def test_unknown_keys_are_looked_for_again_after_a_while(
    server: FakeUpstream, transport: OutgoingTransport
) -> None:
    now = 0.0
    source = JwksSource("x", from_url(transport, url(server)), every=300, clock=lambda: now)
    try:
        assert await source.find("one", "RS256") is not None
        for then, fetched in ((1.0, 2), (5.0, 2), (10.9, 2), (11.1, 3)):
            now = then
            assert await source.find("two", "RS256") is None
            assert len(server.probes) == fetched
    finally:
        await source.aclose()


async def test_keys_are_fetched_anew_in_the_background(
    server: FakeUpstream, authenticator: Authenticate
) -> None:
    made = authenticator(jwt=[entry(url(server), refresh="20ms")])
    old = token(kid="one")
    await made.principal(scope(old))
    server.health = reply(jwks(two=issuer.OTHER_RSA))
    fetched = len(server.probes)
    await until(lambda: len(server.probes) > fetched + 1)
    assert "its key (kid) is unknown" in await refused(made, old)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (reply(jwks(), status=500), "answered with status 500"),
        (reply("", status=302, headers={"location": "http://127.0.0.1:1/"}), "answered with status 302"),
        (reply("<html>"), "is not JSON"),
        (reply({"keys": []}), "holds no key"),
        (reply([]), "is no JSON Web Key Set"),
        (reply(b" " * (1024 * 1024 + 1)), "is larger than 1048576 bytes"),
        ((Action.ABORT,), ""),
        ((head(200, {"content-length": "100"}) + b"{", Action.CLOSE), ""),
    ],
)  # fmt: skip
async def test_the_last_good_keys_stay(
    server: FakeUpstream,
    authenticator: Authenticate,
    caplog: pytest.LogCaptureFixture,
    answer: Any,
    why: str,
) -> None:
    made = authenticator(jwt=[entry(url(server), refresh="20ms")])
    await made.principal(scope(token(kid="one")))
    server.health = answer
    await until(lambda: "the last good keys stay in force for now" in caplog.text)
    assert why in caplog.text
    await made.principal(scope(token(kid="one", sub="bob")))


async def test_a_silent_server_holds_a_request_up_briefly(
    server: FakeUpstream, authenticator: Authenticate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT", 0.1)
    server.health = (Action.HANG,)
    made = authenticator(jwt=[entry(url(server))])
    async with within(1):
        assert await unavailable(made, token(kid="one")) >= 1


async def test_a_key_that_nobody_can_look_up_is_not_called_unknown(
    server: FakeUpstream, authenticator: Authenticate
) -> None:
    made = authenticator(jwt=[entry(url(server))])
    known, new = token(kid="one"), token(key=issuer.OTHER_RSA, kid="two")
    await made.principal(scope(known))
    await server.stop()
    for _ in range(2):  # the first has the keys looked for
        assert 1 <= await unavailable(made, new) <= 300
    assert (await made.principal(scope(token(kid="one", sub="bob")))).key_id == "jwt:bob"
    # What can be told without the issuer's keys is told.
    assert "issuer is not one" in await refused(made, token(kid="two", iss="https://elsewhere.example"))


async def test_the_last_good_keys_count_for_a_stated_time(
    server: FakeUpstream, transport: OutgoingTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_RETRY", 0.001)
    now, changes = 0.0, list[int]()

    def source(before: JwksSource | None = None) -> JwksSource:
        return JwksSource(
            "x",
            from_url(transport, url(server)),
            every=0.01,
            stale_if_error=60,
            before=before,
            on_change=lambda: changes.append(1),
            clock=lambda: now,
        )

    first = source()
    assert await first.find("one", "RS256") is not None
    await server.stop()
    now = 50.0
    second = source(first)  # a new generation makes them no younger
    await first.aclose()
    try:
        await until(lambda: second._failures > 2)
        assert await second.find("one", "RS256") is not None
        before = len(changes)
        now = 60.1
        await until(lambda: second.keys is None)
        assert len(changes) == before + 1  # what was verified with them counts no more
        with pytest.raises(AuthUnavailable):
            await second.find("one", "RS256")
        await server.start()
        await until(lambda: second.keys is not None)
        assert await second.find("one", "RS256") is not None
    finally:
        await second.aclose()


async def test_a_file_that_stays_broken_is_no_newer_for_being_looked_at(tmp_path: Path) -> None:
    now, file = 0.0, tmp_path / "keys.json"
    file.write_bytes(jwks(one=issuer.RSA))
    source = JwksSource("x", from_file(file), every=0.005, stale_if_error=60, clock=lambda: now)
    try:
        assert await source.find("one", "RS256") is not None
        file.write_text("half a fi")
        os.utime(file, (1, 1))  # long ago, so that it is not read again
        await until(lambda: source._failures > 0)
        now = 60.1
        await until(lambda: source.keys is None)
    finally:
        await source.aclose()


async def test_a_server_that_comes_up_late(
    server: FakeUpstream, authenticator: Authenticate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_RETRY", 0.02)
    await server.stop()
    made = authenticator(jwt=[entry(url(server))])
    await unavailable(made, token(kid="one"))
    await server.start()
    await until(lambda: made._sources[issuer.ISSUER].keys is not None)
    await made.principal(scope(token(kid="one")))


async def test_a_new_generation_begins_with_the_keys_of_the_old(
    server: FakeUpstream, authenticator: Authenticate
) -> None:
    before = authenticator(jwt=[entry(url(server))])
    text = token(kid="one", jti="t1")
    await before.principal(scope(text))
    await server.stop()
    made = authenticator(jwt=[entry(url(server), revoked=["t1"])], before=before)
    await before.aclose()
    assert "it has been revoked" in await refused(made, text)  # although the old one had verified it
    await made.principal(scope(token(kid="one")))


async def test_a_file_is_read_anew_when_it_changes(
    authenticator: Authenticate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.identity.authenticator.CHECK_FILE_EVERY", 0.02)
    file = tmp_path / "keys.json"
    file.write_bytes(jwks(one=issuer.RSA))
    made = authenticator()
    old = token(kid="one")
    await made.principal(scope(old))
    file.write_bytes(jwks(two=issuer.OTHER_RSA))
    source = made._sources[issuer.ISSUER]
    await until(lambda: source.keys is not None and source.keys.find("two", "RS256") is not None)
    assert "its key (kid) is unknown" in await refused(made, old)
    file.write_text("half a fi")
    await asyncio.sleep(0.1)
    await made.principal(scope(token(key=issuer.OTHER_RSA, kid="two")))
    file.unlink()
    await asyncio.sleep(0.1)
    await made.principal(scope(token(key=issuer.OTHER_RSA, kid="two", sub="bob")))


async def test_a_file_that_is_not_there(
    authenticator: Authenticate, caplog: pytest.LogCaptureFixture
) -> None:
    made = authenticator(jwt=[entry("nowhere.json")])
    await unavailable(made, token())
    assert "'nowhere.json' cannot be used" in caplog.text and "No such file" in caplog.text


async def test_a_file_that_is_what_it_was_is_not_read_again(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(b"first")
    read = from_file(file)
    assert await read() == b"first" == await read()  # just written: another write could hide
    os.utime(file, (1, 1))
    assert await read() == b"first"
    assert await read() is None
    file.write_bytes(b"later")
    assert await read() == b"later"


def test_what_is_no_key_of_ours_is_passed_over() -> None:
    def known(*entries: dict[str, Any]) -> KeySet:
        return parse(json.dumps({"keys": [*entries, issuer.jwk(issuer.ED, "ed")]}).encode())

    good = issuer.jwk(issuer.RSA, "k")
    assert known(good).find("k", "RS256") is not None
    for bad in (
        {**good, "use": "enc"},
        {**good, "alg": "RS512"},
        {**good, "alg": "HS256"},
        {**good, "key_ops": ["sign"]},
        {**good, "n": 5},
        {**good, "kty": "oct", "k": "c2VjcmV0"},
        {"kty": "RSA", "kid": "k"},
        {"kid": "k"},
        {"kty": ["RSA"]},
    ):
        assert known(bad).find("k", "RS256") is None
        assert known(bad).find("ed", "EdDSA") is not None


def test_a_private_key_that_was_published_verifies_as_its_public_one() -> None:
    private = {**issuer.jwk(issuer.RSA, "k"), "d": "AQAB", "p": "AQAB"}
    found = parse(json.dumps({"keys": [private]}).encode()).find("k", "RS256")
    assert found is not None and found.key.public_numbers() == issuer.RSA.public_key().public_numbers()  # type: ignore[union-attr]


def test_keys_without_ids() -> None:
    keys = parse(json.dumps({"keys": [issuer.jwk(issuer.RSA), issuer.jwk(issuer.EC)]}).encode())
    for kid in (None, "anything"):
        assert keys.find(kid, "RS256") is not None and keys.find(kid, "ES256") is not None
    with pytest.raises(JwksError):
        parse(b'{"keys": {}}')


parts = st.sampled_from(["RSA", "EC", "OKP", "oct", "P-256", "Ed25519", "AQAB", "", "sig", "RS256", "é"])
entries = st.dictionaries(
    st.sampled_from(["kty", "crv", "n", "e", "x", "y", "kid", "use", "alg", "key_ops"]),
    parts | st.none() | st.integers() | st.lists(parts, max_size=2),
)


@given(st.lists(entries | st.none() | st.text(), max_size=4))
def test_any_key_set_is_read_or_refused(listed: list[Any]) -> None:
    try:
        keys = parse(json.dumps({"keys": listed}).encode())
    except JwksError:
        return
    assert any(keys.find(None, algorithm) for algorithm in ("RS256", "ES256", "EdDSA"))


async def test_nothing_is_left_running(server: FakeUpstream, transport: OutgoingTransport) -> None:
    server.health = (Action.HANG,)
    source = JwksSource("x", from_url(transport, url(server)), every=300)
    await until(lambda: bool(server.probes))
    async with within(1):
        await source.aclose()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("JWKS")]
