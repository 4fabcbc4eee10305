"""``/metrics`` on a port of its own."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import OPERATOR
from tests.e2e.gateways import serving
from tests.ports import free_port

POLICY = {
    "version": 1,
    "backends": {"scripted": {"kind": "fake", "script": [{"reply": "Hello."}]}},
    "models": {"m": {"targets": [{"backend": "scripted", "model": "x"}]}},
}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_operators_port_has_metrics_without_a_token_and_nothing_else(
    tmp_path: Path, workers: int
) -> None:
    port = free_port()
    settings = {"TOLLGATE_METRICS_PORT": str(port), "TOLLGATE_DEV_KEY": "tg-key"}
    with serving(tmp_path, POLICY, workers=workers, **settings) as url:
        key = {"authorization": "Bearer tg-key"}
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, headers=key).status_code == 200
        operators = f"http://127.0.0.1:{port}"
        for _ in range(2 * workers):  # whichever worker answers
            deadline = time.monotonic() + 300
            while True:  # it is the least of all workers', and one may still be starting
                page = httpx.get(f"{operators}/metrics")
                assert page.status_code == 200
                if "tollgate_policy_generation 1.0" in page.text:
                    break
                assert time.monotonic() < deadline, page.text
                time.sleep(0.05)
        assert "backends" in httpx.get(f"{operators}/readyz").json()
        for path in ("/v1/models", "/admin/", "/openapi.json"):
            refused = httpx.get(f"{operators}{path}", headers=key)
            assert refused.status_code == 404 and "/metrics" in refused.json()["error"]["message"]
        there = httpx.get(f"{url}/metrics", headers=OPERATOR)
        assert there.status_code == 404 and "TOLLGATE_METRICS_PORT" in there.json()["error"]["message"]
        assert "backends" not in httpx.get(f"{url}/readyz").json()
        assert "backends" in httpx.get(f"{url}/readyz", headers=OPERATOR).json()
