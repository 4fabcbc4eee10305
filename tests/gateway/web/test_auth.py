"""Getting in, over a real gateway: keys and tokens, and how soon a revoked one is refused."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.__main__ import main
from tests.fakes import FakeUpstream, reply
from tests.gateway.identity.issuer import entry, jwks, token
from tests.serving import KEY, Gateway, a_policy, chat, key, serving

pytestmark = pytest.mark.anyio


@pytest.fixture
async def guarded(upstream: FakeUpstream, tmp_path: Path) -> AsyncIterator[Gateway]:
    """With an issuer, and the policy looked at as often as in real life."""
    upstream.health = reply(jwks())
    policy = a_policy(
        upstream.base_url,
        jwt=[entry(upstream.base_url + "/jwks.json")],
        tiers={"pro": {}},
        keys=[key(KEY, "acme-1", tenant="acme"), key("tg-far", "far", allow_ips=["192.0.2.0/24"])],
        trusted_proxies=["127.0.0.0/8"],
    )
    async with serving(tmp_path / "policies", policy, state_dir=tmp_path / "state") as running:
        yield running


async def ask(gateway: Gateway, **headers: str) -> Any:
    return await gateway.http.post(
        "/v1/chat/completions",
        json=chat(),
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


async def refused_after(gateway: Gateway, start: float, **headers: str) -> float:
    """Seconds from ``start`` until the gateway refuses."""
    async with asyncio.timeout(300):
        while (answer := await ask(gateway, **headers)).status_code == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert answer.status_code == 401
    return time.perf_counter() - start


async def until_status(gateway: Gateway, status: int, **headers: str) -> Any:
    """The first answer with this status."""
    async with asyncio.timeout(300):
        while (answer := await ask(gateway, **headers)).status_code != status:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return answer


async def test_a_token_opens_the_gateway(guarded: Gateway) -> None:
    answer = await ask(guarded, authorization=f"Bearer {token(tier='pro')}")
    assert answer.status_code == 200
    answer = await ask(guarded, authorization=f"Bearer {token(exp=1)}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "expired_token")
    answer = await ask(guarded, authorization=f"Bearer {token(models=['up'])}")
    assert answer.status_code in (403, 404)


async def test_anthropics_header_does_as_well(guarded: Gateway) -> None:
    del guarded.http.headers["authorization"]
    assert (await ask(guarded, x_api_key=KEY)).status_code == 200
    assert (await ask(guarded)).status_code == 401


async def test_a_key_in_the_wrong_place(guarded: Gateway) -> None:
    headers = {"authorization": "Bearer tg-far"}
    answer = await ask(guarded, **headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "ip_not_allowed")
    assert "127.0.0.1" in answer.json()["error"]["message"]
    assert (await ask(guarded, **headers, x_forwarded_for="192.0.2.7")).status_code == 200
    assert (await ask(guarded, **headers, x_forwarded_for="192.0.2.7, 198.51.100.1")).status_code == 403


@pytest.mark.deadlines
@pytest.mark.parametrize("broken", [False, True])
async def test_a_revoked_key_is_refused_within_a_second(
    guarded: Gateway, capsys: pytest.CaptureFixture[str], broken: bool
) -> None:
    folder = str(guarded.folder)
    assert await asyncio.to_thread(main, ["keys", "create", "--policies", folder, "--id", "ci"]) == 0
    made = {"authorization": f"Bearer {capsys.readouterr().out.strip()}"}
    async with asyncio.timeout(300):
        while (await ask(guarded, **made)).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    if broken:
        (guarded.folder / "half-done.yaml").write_text("models: [")
        await asyncio.sleep(0.3)
    start = time.perf_counter()
    assert await asyncio.to_thread(main, ["keys", "revoke", "--policies", folder, "ci"]) == 0
    assert await refused_after(guarded, start, **made) < 1
    assert (await ask(guarded)).status_code == 200


async def test_keys_of_a_file_that_cannot_be_read_are_refused_and_come_back(guarded: Gateway) -> None:
    file = guarded.folder / "keys.yaml"
    text = yaml.safe_dump({"keys": [key("tg-ci", "ci")]})
    file.write_text(text)
    ci = {"authorization": "Bearer tg-ci"}
    await until_status(guarded, 200, **ci)
    file.write_text("")
    answer = await until_status(guarded, 503, **ci)
    assert answer.json()["error"]["code"] == "auth_unavailable" and int(answer.headers["retry-after"]) > 0
    assert (await ask(guarded, authorization="Bearer tg-new")).status_code == 503
    assert (await ask(guarded)).status_code == 200  # whose file can be read
    file.write_text(text)
    await until_status(guarded, 200, **ci)
    assert (await ask(guarded, authorization="Bearer tg-new")).status_code == 401


async def test_a_revoked_token_is_refused_within_a_second(guarded: Gateway, upstream: FakeUpstream) -> None:
    made = {"authorization": f"Bearer {token(jti='stolen')}"}
    assert (await ask(guarded, **made)).status_code == 200
    start = time.perf_counter()
    guarded.write(
        a_policy(upstream.base_url, jwt=[entry(upstream.base_url + "/jwks.json", revoked=["stolen"])])
    )
    assert await refused_after(guarded, start, **made) < 1
    assert (await ask(guarded, authorization=f"Bearer {token()}")).status_code == 200


async def test_requests_are_in_the_ledger(guarded: Gateway, tmp_path: Path) -> None:
    for headers in ({}, {"authorization": f"Bearer {token(tier='pro')}"}):
        assert (await ask(guarded, **headers)).status_code == 200
    rows: list[Any] = []
    async with asyncio.timeout(300):
        while len(rows) < 2:
            await asyncio.sleep(0.05)
            if (tmp_path / "state" / "ledger.sqlite").exists():
                path = tmp_path / "state" / "ledger.sqlite"
                # The file is there a moment before its table.
                with suppress(sqlite3.OperationalError), closing(sqlite3.connect(path)) as database:
                    rows = database.execute(
                        "SELECT key_id, tenant, tier, model, answered_model, backend, status FROM requests "
                        "ORDER BY key_id"
                    ).fetchall()
    assert rows == [
        ("acme-1", "acme", "default", "fake", "fake", "scripted", 200),
        ("jwt:alice", "acme", "pro", "fake", "fake", "scripted", 200),
    ]
