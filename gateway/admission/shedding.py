"""What becomes of a tier's requests when a backend is nearly full."""

from __future__ import annotations

from gateway.admission.fair_queue import Terms
from gateway.admission.pool import Pool, Pools
from gateway.errors import Overloaded
from gateway.policy.schema import OnSaturation, Policy, Tier

_WAIT = OnSaturation(action="wait", at=1.0)
SPARE = 0.5
"""Copies of calls get into a backend while less than this share of it is taken: they must not make callers wait."""


def saturation_action(policy: Policy, tier_name: str) -> OnSaturation:
    """The tier's own rule; without one it waits, and the queue shares by weight.

    ``at`` is no higher than where a tier of higher priority begins to wait: what is kept from that one is not for this.
    """
    tier = policy.tier(tier_name)
    rule = tier.on_saturation or _WAIT
    highest = ceiling(policy, tier)
    return rule if rule.at <= highest else rule.model_copy(update={"at": highest})


def ceiling(policy: Policy, tier: Tier) -> float:
    """The share of a backend from which on some tier of higher priority waits; 1 is none."""
    least = 1.0
    for other in policy.tiers.values():
        rule = other.on_saturation
        if rule is not None and rule.action == "wait" and other.priority > tier.priority and rule.at < least:
            least = rule.at
    return least


def terms(policy: Policy, tier: Tier, rule: OnSaturation) -> Terms:
    """How the tier, whose rule it is, stands in line."""
    return Terms(tier.weight, tier.ageing, rule.at if rule.action == "wait" else ceiling(policy, tier))


class Standings:
    """How each tier stands in line and what becomes of it at a full backend, remembered for the policy used last."""

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._known: dict[str, tuple[OnSaturation, Terms]] = {}

    def of(self, policy: Policy, tier_name: str) -> tuple[OnSaturation, Terms]:
        if self._policy is not policy:
            self._policy, self._known = policy, {}
        found = self._known.get(tier_name)
        if found is None:
            rule = saturation_action(policy, tier_name)
            found = rule, terms(policy, policy.tier(tier_name), rule)
            if tier_name in policy.tiers:  # a token may name any other
                self._known[tier_name] = found
        return found


def renew(policy: Policy, pools: Pools) -> None:
    """Those in line stand there by ``policy`` from now on, whatever it was when they came."""
    for pool in pools:
        pool.renew(lambda name: terms(policy, policy.tier(name), saturation_action(policy, name)))


def shed(rule: OnSaturation, pool: Pool) -> None:
    """Raise ``Overloaded`` if the rule sheds at the pool's saturation."""
    if rule.action != "shed" or pool.saturation < rule.at:
        return
    raise Overloaded(
        f"Backend '{pool.name}' is {pool.saturation:.0%} full, and requests of your tier are not taken from "
        f"{rule.at:.0%} on. Try again later.",
        retry_after=max(1.0, pool.drain_time(rule.at) or 0.0),
    )


def spare(pool: Pool) -> None:
    """Raise ``Overloaded`` if callers may need the pool's room themselves."""
    if pool.saturation >= SPARE or pool.queue:
        raise Overloaded(f"Backend '{pool.name}' has no room to spare for copies.", retry_after=1.0)
