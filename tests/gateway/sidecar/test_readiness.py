"""Readiness and guards whose models are not ready."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.sidecar.api import SidecarDown, SidecarError
from gateway.sidecar.client import NoSidecar
from gateway.sidecar.requirements import unready
from tests.fakes import policy

pytestmark = pytest.mark.anyio


class Told(NoSidecar):
    """A sidecar that tells of its models, or fails, or says nothing."""

    def __init__(self, models: Mapping[str, str] | SidecarError | None) -> None:
        self.models = models

    async def status(self) -> Mapping[str, Any]:
        if self.models is None:
            await asyncio.sleep(60)
        if isinstance(self.models, SidecarError):
            raise self.models
        return {"models": self.models}


async def test_a_guard_waits_for_its_own_models() -> None:
    rules = policy(
        guards={
            "injection": {"action": "block"},
            "names": {"kind": "pii", "entities": ["ES_PASSPORT"]},
            "own": {"kind": "toxicity", "classifier": {"model": "a/b", "unsafe": ["x"]}},
        }
    )
    sidecar = Told({"embedder": "loading", "entities": "ready", "a/b": "failed: no such folder"})
    verdicts = unready(rules, sidecar)
    assert verdicts is not None
    assert await verdicts() == {
        "injection": "'embedder' is still being loaded",
        "own": "'a/b' failed: no such folder",
    }
    sidecar.models = {"embedder": "ready", "entities": "ready", "a/b": "ready"}
    assert await verdicts() == {}
    sidecar.models = {"embedder": "ready"}
    assert set(await verdicts()) == {"names", "own"}
    sidecar.models = SidecarDown("no such socket")
    assert set(await verdicts()) == {"injection", "names", "own"}


async def test_a_guard_of_one_tenant_is_waited_for() -> None:
    rules = policy(guards={"injection": {"tenants": ["acme"], "action": "block"}})
    verdicts = unready(rules, Told({"embedder": "loading"}))
    assert verdicts is not None
    assert await verdicts() == {"injection": "'embedder' is still being loaded"}


async def test_silence_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.sidecar.requirements._PATIENCE", 0.05)
    verdicts = unready(policy(guards={"injection": {"action": "block"}}), Told(None))
    assert verdicts is not None
    assert await verdicts() == {"injection": "the sidecar does not answer within 0.05 s"}


@pytest.mark.parametrize(
    "guard",
    [
        {"kind": "injection", "action": "block", "on_error": "allow"},
        {"kind": "injection", "action": "flag"},
        {"kind": "toxicity", "action": "flag", "on": ["input", "output"], "on_error": "block"},
        {"kind": "injection", "action": "block", "checks": ["fast"]},
        {"kind": "pii"},
        {"kind": "secrets"},
    ],
    ids=["lets pass", "flags", "flags answers", "needs no model", "patterns", "secrets"],
)
def test_guards_that_refuse_nothing_without_a_model_are_not_waited_for(guard: dict[str, Any]) -> None:
    assert unready(policy(guards={"it": guard}), Told(None)) is None
