"""What happens to a tier's requests when a backend is nearly full: they wait, are shed or downgraded."""

from __future__ import annotations

from gateway.admission.fair_queue import QueueTerms
from gateway.admission.pool import Pool
from gateway.admission.pools import Pools
from gateway.errors import Overloaded
from gateway.policy.schema import OnSaturation, Policy, Tier

_WAIT = OnSaturation(action="wait", at=1.0)
SHADOW_LIMIT = 0.5
"""Shadow copies are admitted while less than this share of a backend is in use: they must not make callers wait."""


def saturation_action(policy: Policy, tier_name: str) -> OnSaturation:
    """The tier's own rule; without one it waits, and the queue shares by weight.

    ``at`` is no higher than where a tier of higher priority begins to wait.
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


def terms(policy: Policy, tier: Tier, rule: OnSaturation) -> QueueTerms:
    """How the tier, whose ``on_saturation`` is ``rule``, is queued."""
    return QueueTerms(tier.weight, tier.ageing, rule.at if rule.action == "wait" else ceiling(policy, tier))


class TierRules:
    """Each tier with its rule and queue terms, cached for the policy used last."""

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._known: dict[str, tuple[Tier, OnSaturation, QueueTerms]] = {}

    def of(self, policy: Policy, tier_name: str) -> tuple[Tier, OnSaturation, QueueTerms]:
        if self._policy is not policy:
            self._policy, self._known = policy, {}
        if tier_name not in policy.tiers:  # a token may name any: they are all the same one
            tier_name = ""
        found = self._known.get(tier_name)
        if found is None:
            tier, rule = policy.tier(tier_name), saturation_action(policy, tier_name)
            found = self._known[tier_name] = tier, rule, terms(policy, tier, rule)
        return found


def update_terms(policy: Policy, pools: Pools) -> None:
    """Apply ``policy`` to all that wait, whatever policy they arrived under."""
    for pool in pools:
        pool.update_terms(lambda name: terms(policy, policy.tier(name), saturation_action(policy, name)))


def shed(rule: OnSaturation, pool: Pool, saturation: float) -> None:
    """Raise ``Overloaded`` if the rule sheds at this ``saturation`` of the pool."""
    if rule.action != "shed" or saturation < rule.at:
        return
    raise Overloaded(
        f"Backend '{pool.name}' is {saturation:.0%} full, and requests of your tier are not taken from "
        f"{rule.at:.0%} on. Try again later.",
        retry_after=max(1.0, pool.drain_time(rule.at) or 0.0),
    )


def shed_shadow(pool: Pool) -> None:
    """Raise ``Overloaded`` for a shadow copy where callers may need the capacity themselves."""
    if pool.saturation >= SHADOW_LIMIT or pool.queue:
        raise Overloaded(f"Backend '{pool.name}' has no spare capacity for copies.", retry_after=1.0)
