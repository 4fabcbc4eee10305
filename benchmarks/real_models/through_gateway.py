"""One point of the curve for real: a gateway whose policy has the cascade, in front of both engines."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.processes import free_port, running, wait_for
from benchmarks.real_models.prompts import Prompt

KEY = "tg-benchmark"
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Served:
    text: str
    answered: str
    """``small`` or ``large``, as the receipt has it."""
    mean_logprob: float | None
    """Of the small model's answer."""


Engine = tuple[str, str]
"""Its address, and the name of the model that it serves."""


def policy(small: Engine, large: Engine, bar: float) -> dict[str, Any]:
    engines = {"small": small, "large": large}
    return {
        "version": 1,
        "backends": {name: {"kind": "openai", "base_url": f"{url}/v1"} for name, (url, _) in engines.items()},
        "models": {
            **{
                name: {"targets": [{"backend": name, "model": model}]} for name, (_, model) in engines.items()
            },
            "auto": {
                "cascade": [
                    {"model": "small", "escalate": {"mean_logprob_below": bar}},
                    {"model": "large"},
                ]
            },
        },
        "keys": [{"id": "bench", "sha256": sha256(KEY.encode()).hexdigest(), "tenant": "acme"}],
    }


@contextmanager
def gateway(small: Engine, large: Engine, bar: float) -> Iterator[str]:
    """Its address."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "gateway.yaml").write_text(yaml.safe_dump(policy(small, large, bar)))
        port = free_port()
        argv = [sys.executable, "-m", "gateway", "serve", "--policies", folder, "--port", str(port)]
        env = {"TOLLGATE_STATE_DIR": str(Path(folder) / "state")}
        with running([*argv, "--workers", "1"], cores=os.sched_getaffinity(0), env=env):
            wait_for(port, "/healthz")
            yield f"http://127.0.0.1:{port}"


async def ask(url: str, prompts: Sequence[Prompt]) -> list[Served]:
    """Raises ``httpx.HTTPStatusError`` where the gateway refuses."""
    slots = asyncio.Semaphore(AT_ONCE)
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=None) as client:

        async def one(prompt: Prompt) -> Served:
            body = {
                "model": "auto",
                "messages": prompt.messages,
                "temperature": 0,
                "max_tokens": prompt.max_tokens,
            }
            async with slots:
                response = (await client.post("/v1/chat/completions", json=body)).raise_for_status()
                receipt = await client.get(f"/v1/requests/{response.headers['x-request-id']}")
            cascade = receipt.raise_for_status().json()["stages"]["cascade"]
            text = response.json()["choices"][0]["message"]["content"] or ""
            return Served(text, cascade["answered"], cascade["steps"][0]["mean_logprob"])

        return list(await asyncio.gather(*map(one, prompts)))
