"""What a worker loads: the large libraries only where the policy asks for what they are for."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.counting import counted
from tests.fakes import completion, reply
from tests.import_graph import ROOT
from tests.serving import KEY, key

LARGE = frozenset(
    {
        *("redis", "opentelemetry", "jwt", "cryptography", "aiohttp", "psycopg"),
        *("numpy", "torch", "faiss", "transformers", "PIL", "jinja2", "httpcore"),
    }
)
ISSUER = {"issuer": "https://id.example.com", "audience": "gateway", "jwks": "keys.json"}


def modules(folder: Path, until: str = "gateway", **more: Any) -> set[str]:
    """What a worker has loaded after a request under a policy with ``more``, and once it has loaded ``until``."""

    def policy(url: str) -> dict[str, Any]:
        return {
            "version": 1,
            "backends": {"up": {"kind": "openai", "base_url": url, "api_key": "sk-1"}},
            "models": {"m": {"targets": [{"backend": "up", "model": "x"}]}},
            "keys": [key(KEY, "acme-1", tenant="acme")],
            **more,
        }

    with counted(folder, policy) as worker:
        worker.upstream.answer = list(reply(completion()))
        body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
        answer = worker.ask(f"POST /v1/chat/completions HTTP/1.1\r\nauthorization: Bearer {KEY}", body)
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        for _ in range(400):
            if until in (found := worker.modules()):
                return found
            time.sleep(0.05)
        raise AssertionError(f"{until} was not loaded")


def loaded(folder: Path, **more: Any) -> set[str]:
    return LARGE & {name.partition(".")[0] for name in modules(folder, **more)}


def test_a_policy_that_asks_for_nothing_loads_none_of_them(tmp_path: Path) -> None:
    assert loaded(tmp_path) == set()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"store": "redis://127.0.0.1:1/0"}, {"redis"}),
        ({"cache_store": "redis://127.0.0.1:1/0"}, {"redis"}),
        ({"jwt": [ISSUER]}, {"jwt", "cryptography"}),
    ],
    ids=["store", "cache_store", "jwt"],
)
def test_a_feature_loads_its_own(tmp_path: Path, more: dict[str, Any], expected: set[str]) -> None:
    assert loaded(tmp_path, **more) >= expected


def test_whoever_asks_an_issuer_for_its_keys_loads_no_second_client(tmp_path: Path) -> None:
    jwt = [{**ISSUER, "jwks": "http://127.0.0.1:1/keys"}]
    assert "aiohttp" not in modules(tmp_path, until="httpcore", jwt=jwt)


@pytest.mark.parametrize(
    "more", [{}, {"store": "redis://127.0.0.1:1/0", "jwt": [ISSUER]}], ids=["plain", "more"]
)
def test_the_images_keep_the_bytecode_of_what_it_loads(tmp_path: Path, more: dict[str, Any]) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    guards, plain = re.findall(r'PYTHONDONTWRITEBYTECODE= python -c "(import gateway[^";]*)', dockerfile)
    assert guards.startswith(plain)
    code = f"{plain}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    ours = {name for name in modules(tmp_path, **more) if name.startswith("gateway.")}
    assert ours <= set(done.stdout.split())
