"""Who asks, and for what: as recorded, or drawn where a trace does not say."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from random import Random

from gateway.errors import UnknownModel
from gateway.identity.api_keys import KeyRing, tier_of
from gateway.lab.replay.errors import ReplayError
from gateway.policy.schema import Policy
from gateway.recording.recorded_request import RecordedRequest
from gateway.types import Principal

NOBODY = "default"
"""The tenant of whom nobody says more."""


class Shares:
    """Names with their weights, of which one is drawn for each request: the same one for the same seed and place."""

    def __init__(self, weights: Mapping[str, float], seed: int, what: str) -> None:
        self._names = [*weights]
        self._sums = [*accumulate(weights.values())]
        self._random = Random(f"{seed} {what}")

    def draw(self) -> str:
        names = self._names
        if len(names) == 1:
            return names[0]
        at = self._random.random() * self._sums[-1]
        return next(name for name, upto in zip(names, self._sums, strict=True) if at < upto)


def parse_shares(option: str, text: str) -> dict[str, float]:
    """``acme=3,hobby=1``, or names alone, which are equal. Raises ``ReplayError``."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, weight = part.strip().rpartition("=") if "=" in part else (part.strip(), "", "1")
        try:
            found[name] = float(weight)
        except ValueError:
            found[name] = -1.0
        if not name or not 0 < found[name] < 1e9:
            raise ReplayError(
                f"{option} '{text}': '{part}' should be a name and a share above 0: acme=3,hobby=1"
            )
    return found


class Callers:
    """Those of one policy. Draws happen request after request, whatever becomes of them: two policies see the same."""

    def __init__(
        self,
        policy: Policy,
        keys: KeyRing,
        tenants: Mapping[str, float],
        models: Mapping[str, float],
        seed: int,
    ) -> None:
        self._policy = policy
        self._keys = keys
        self._tenants = Shares(tenants or {NOBODY: 1.0}, seed, "tenant")
        self._models = Shares(models, seed, "model")
        self._random = Random(f"{seed} key")
        self._of_tenant: dict[str, list[str]] = {}
        for key in policy.keys_in_force:
            self._of_tenant.setdefault(key.tenant, []).append(key.id)
        self._made: dict[tuple[str, str, str], Principal] = {}
        self.unknown_keys: set[str] = set()
        """Of the trace, and not in this policy: taken to be valid, with no limits of their own."""

    def names(self, one: RecordedRequest) -> tuple[str, str, str]:
        """Key, tenant and model of a request. Each is drawn in any case, so that draws do not depend on records."""
        tenant, model, draw = self._tenants.draw(), self._models.draw(), self._random.random()
        if one.tenant or one.key:
            return one.key, one.tenant, one.model or model
        keys: Sequence[str] = self._of_tenant.get(tenant, ())
        return keys[int(draw * len(keys))] if keys else "", tenant, one.model or model

    def principal(self, key: str, tenant: str, tier: str) -> Principal:
        """Raises ``Unauthenticated`` for a key that has expired."""
        if key:
            found = self._keys.lookup_id(key, time.time())
            if found is not None:
                return found.principal
        name = (key, tenant, tier)
        known = self._made.get(name)
        if known is None:
            if key and self._policy.keys:
                self.unknown_keys.add(key)
            policy, tenant = self._policy, tenant or NOBODY
            known_tenant = tenant in policy.tenants
            known = self._made[name] = Principal(
                key_id=key or tenant,
                tenant=tenant,
                tier=tier if tier in policy.tiers and not known_tenant else tier_of(tenant, policy.tenants),
            )
        return known

    def model(self, principal: Principal, asked: str) -> str:
        """As the web's own call is made. Raises ``UnknownModel``."""
        model = self._policy.resolve(asked)
        if model is None or not (principal.may_use(model) or principal.may_use(asked)):
            raise UnknownModel.named(asked)
        return model
