"""``/admin/api/adapters``: whose there are, and that an operator can delete them."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.adapter_server import adapter_server
from tests.adapters import create
from tests.serving import KEY, key, serving

pytestmark = pytest.mark.anyio

ADMIN = "tg-admin-of-adapters"
HEADERS = {"authorization": f"Bearer {ADMIN}"}


async def test_operators_see_whose_there_are_and_delete_them(tmp_path: Path) -> None:
    async with adapter_server() as server:
        policy = {
            "version": 1,
            "admin": {"enabled": True},
            "backends": {"engine": {"kind": "engine", "base_url": server.url}},
            "models": {"base": {"targets": [{"backend": "engine", "model": "base"}]}},
            "keys": [key(ADMIN, "boss", scopes=["admin"]), key(KEY, "acme-1", tenant="acme")],
            "adapters": {"servers": {"engine": {}}},
        }
        async with serving(tmp_path / "p", policy, state_dir=tmp_path) as gateway:
            made = (await create(gateway.http, "support")).json()
            body = {"model": "base:support", "messages": [{"role": "user", "content": "Who?"}]}
            assert (await gateway.http.post("/v1/chat/completions", json=body)).status_code == 200
            seen = (await gateway.http.get("/admin/api/adapters", headers=HEADERS)).json()
            (one,) = seen["adapters"]
            assert (one["id"], one["tenant"], one["key"]) == (made["id"], "acme", "acme-1")
            assert one["held_by"] == ["engine"]
            assert (await gateway.http.get("/admin/api/adapters")).status_code == 403
            path = f"/admin/api/adapters/{made['id']}"
            assert (await gateway.http.delete(path, headers=HEADERS)).json()["deleted"]
            assert (await gateway.http.delete(path, headers=HEADERS)).status_code == 404
            assert (await gateway.http.post("/v1/chat/completions", json=body)).status_code == 404
    entries = [orjson.loads(line) for line in (tmp_path / "audit.jsonl").read_bytes().splitlines()]
    (entry,) = [entry for entry in entries if entry["action"] == "adapter.deleted"]
    assert (entry["target"], entry["tenant"]) == ("base:support", "acme")
