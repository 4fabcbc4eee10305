"""Whether the sidecar is ready for the guards that refuse requests which they cannot scan."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from gateway.policy.schema import Policy
from gateway.sidecar.api import Sidecar, SidecarError
from gateway.sidecar.requirements import models_of

_PATIENCE = 2.0
"""Seconds; the status waits for no model."""


def unready(policy: Policy, sidecar: Sidecar) -> Callable[[], Awaitable[Mapping[str, str]]] | None:
    """Returns a check of which guards cannot scan now, and why; None if no guard refuses what it cannot scan.

    Guards of all tenants count: a worker that answers some of them with 503 is not ready.
    """
    needed = {
        name: models
        for name, guard in policy.guards.items()
        if guard.refuses_unjudged
        if (models := models_of(guard, policy.sidecar))
    }
    if not needed:
        return None

    async def verdicts() -> Mapping[str, str]:
        try:
            async with asyncio.timeout(_PATIENCE):
                states = (await sidecar.status())["models"]
        except SidecarError:
            return dict.fromkeys(needed, "the sidecar is starting or restarting")
        except TimeoutError:
            return dict.fromkeys(needed, f"the sidecar does not answer within {_PATIENCE:g} s")
        missing: dict[str, str] = {}
        for name, models in needed.items():
            for model in models:
                state = states.get(model, "loading")  # not needed by the policy before
                if state != "ready" and name not in missing:
                    missing[name] = (
                        f"'{model}' is still being loaded" if state == "loading" else f"'{model}' {state}"
                    )
        return missing

    return verdicts
