"""Whether the sidecar has what those guards need that refuse their tenants' requests without it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from gateway.policy.schema import Policy
from gateway.sidecar.api import Sidecar, SidecarError
from gateway.sidecar.requirements import models_of

_PATIENCE = 2.0
"""Seconds: it is asked for its state, which waits for no model."""


def unready(policy: Policy, sidecar: Sidecar) -> Callable[[], Awaitable[Mapping[str, str]]] | None:
    """Tells which guards cannot judge now, and why. None where there is no guard of that kind.

    Those count that refuse what they cannot judge, whichever tenants they look after: a worker that answers some
    of them with 503 is not ready. A guard that only flags refuses nothing.
    """
    needed = {
        name: models
        for name, guard in policy.guards.items()
        if guard.refuses_unjudged
        if (models := models_of(guard))
    }
    if not needed:
        return None

    async def verdicts() -> Mapping[str, str]:
        try:
            async with asyncio.timeout(_PATIENCE):
                states = (await sidecar.status())["models"]
        except SidecarError:
            return dict.fromkeys(needed, "the sidecar is not there yet, or is being restarted")
        except TimeoutError:
            return dict.fromkeys(needed, f"the sidecar does not answer within {_PATIENCE:g} s")
        missing: dict[str, str] = {}
        for name, models in needed.items():
            for model in models:
                state = states.get(model, "loading")  # one that the policy before had no use for
                if state != "ready" and name not in missing:
                    missing[name] = (
                        f"'{model}' is still being loaded" if state == "loading" else f"'{model}' {state}"
                    )
        return missing

    return verdicts
