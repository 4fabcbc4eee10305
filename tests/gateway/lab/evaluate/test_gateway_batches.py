"""The batches' client, where there is no gateway."""

from __future__ import annotations

import asyncio

import pytest

from gateway.lab.evaluate.errors import EvaluationError
from gateway.lab.evaluate.gateway_batches import open_gateway
from tests.ports import free_port

pytestmark = pytest.mark.anyio


async def test_who_never_answered_is_not_waited_for() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with open_gateway(url, "tg-key", poll=86_400.0) as gateway, asyncio.timeout(300):
        with pytest.raises(EvaluationError, match=r"does not answer .*--url its address\?"):
            await gateway.answers("run", [("1", {})], lambda done, of: None)
