"""Guards where arms of experiments have a say: which of them look after a request that is part of one.

Those that an arm names look after nobody else. All others look after a request as ever, also where its arm asks another
model than its caller did: by either model. An arm goes without a guard only where the policy says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gateway.guards.guards import Guards, TenantGuards
from gateway.guards.scanners.offload import Offload
from gateway.guards.scanners.scanner import Scanner
from gateway.policy.schema import ExperimentArm, Policy
from gateway.types import Call

_REMEMBERED = 10_000
_Who = tuple[str, str, str, str, str, str]


class ArmGuards(Guards):
    def __init__(
        self,
        policy: Policy,
        scanners: Mapping[str, Scanner],
        offloads: Mapping[str, Offload] | None,
        arms: Mapping[str, ExperimentArm],
    ) -> None:
        super().__init__(policy, scanners, offloads)
        self._policy = policy
        self._arms = arms
        self._every = self._all
        mine = policy.guards_of_arms
        self._all = [guard for guard in self._every if guard.name not in mine]
        self._of_arms: dict[_Who, TenantGuards] = {}

    def of_call(self, call: Call) -> TenantGuards:
        if not call.arm:
            return super().of_call(call)
        asked = self._policy.resolve(call.request.model) or call.model
        who = (call.principal.tenant, call.principal.key_id, asked, call.model, call.route, call.arm)
        known = self._of_arms.get(who)
        if known is None:
            if len(self._of_arms) >= _REMEMBERED:
                self._of_arms.clear()
            known = self._of_arms[who] = self._found(who)
        return known

    def _found(self, who: _Who) -> TenantGuards:
        tenant, key_id, asked, model, route, arm = who
        mine = self._arms[arm]
        return TenantGuards.of(
            [
                guard
                for guard in self._every
                if guard.name not in mine.without
                and (guard.name in mine.guards or guard.name not in self._policy.guards_of_arms)
                and any(
                    guard.config.looks_after(tenant, key_id=key_id, model=one, route=route)
                    for one in (asked, model)
                )
            ]
        )


def guards_of(
    policy: Policy,
    scanners: Mapping[str, Scanner],
    offloads: Mapping[str, Offload] | None = None,
    arms: Mapping[str, ExperimentArm] = MappingProxyType({}),
) -> Guards:
    """Those of ``policy``. ``arms`` are its experiments', by ``Call.arm``."""
    if policy.guards and any(arm.model or arm.guards or arm.without for arm in arms.values()):
        return ArmGuards(policy, scanners, offloads, arms)
    return Guards(policy, scanners, offloads)
