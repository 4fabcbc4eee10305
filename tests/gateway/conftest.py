"""A running gateway for the tests of its web side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from gateway.policy.reload import PolicyWatcher
from tests.fakes import FakeUpstream
from tests.serving import Gateway, a_policy, serving


@pytest.fixture
def quick_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policy changes are looked for every 20 ms."""
    monkeypatch.setattr("gateway.app.PolicyWatcher", partial(PolicyWatcher, interval=0.02))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Token ids of prompts are waited for, however busy the machine is."""
    monkeypatch.setattr("gateway.held_prefixes.held_prefixes.PATIENCE", 300.0)


@pytest.fixture
async def gateway(upstream: FakeUpstream, tmp_path: Path, quick_reload: None) -> AsyncIterator[Gateway]:
    async with serving(tmp_path / "policies", a_policy(upstream.base_url), max_body_bytes=100_000) as running:
        yield running
