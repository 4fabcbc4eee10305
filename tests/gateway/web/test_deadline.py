"""``x-tollgate-deadline``: durations as policies have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving import a_policy, chat, serving

pytestmark = pytest.mark.anyio

TAKEN = ("1m", "0.5m", "1h", "1d", "60s", "60000ms", "60", "2.5m")
REFUSED = ("", "0", "0s", "-1s", "1 m", "m", "1min", "soon", "1e3", "１m", "inf")


async def test_what_is_taken_and_what_is_not(tmp_path: Path) -> None:
    async with serving(tmp_path / "p", a_policy("http://127.0.0.1:1/v1")) as gateway:
        for told in (*TAKEN, *REFUSED):
            answer = await gateway.http.post(
                "/v1/chat/completions", json=chat(), headers={"x-tollgate-deadline": told.encode()}
            )
            assert answer.status_code == (200 if told in TAKEN else 400), told
            if told in REFUSED:
                assert answer.json()["error"]["param"] == "x-tollgate-deadline"
