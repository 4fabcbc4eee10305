"""Where requests and their copies go, over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests import faults
from tests.fakes import Script
from tests.faults import Asked, ModelServer
from tests.serving import a_policy, chat, serving

pytestmark = pytest.mark.anyio


def declining(asked: Asked) -> Script:
    return faults.sound(Asked(asked.stream, "I'm sorry, but I can't help with that.", 7))


async def test_a_shadow_may_be_a_cascade(tmp_path: Path) -> None:
    """All of its steps are asked, as a caller's would be; it is told as one copy."""

    def model(name: str, **more: Any) -> dict[str, Any]:
        return {"targets": [{"backend": "up", "model": name}], **more}

    models = {
        "m": model("big", shadow={"model": "auto"}),
        "small": model("small"),
        "large": model("large"),
        "auto": {"cascade": [{"model": "small"}, {"model": "large"}]},
    }
    prices = {name: {"input": 1.0, "output": 1.0} for name in ("big", "small", "large")}
    async with (
        ModelServer(big=faults.sound, small=declining, large=faults.sound) as up,
        serving(tmp_path / "p", a_policy(up.base_url, models=models, prices=prices)) as gateway,
    ):
        answer = await gateway.http.post("/v1/chat/completions", json=chat("m"))
        assert answer.json()["choices"][0]["message"]["content"] == "Here is big."
        name = 'tollgate_shadow_requests_total{model="auto",status="200"}'
        async with asyncio.timeout(300):
            while (figures := await gateway.metrics()).get(name) != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert sorted(up.asked) == ["big", "large", "small"]
        spent = {key for key in figures if key.startswith("tollgate_cost_dollars_total") and "shadow" in key}
        assert len(spent) == 2, "both steps are paid for"
