"""What becomes of a tier's requests when a backend is nearly full."""

from __future__ import annotations

from gateway.admission.fair_queue import Terms
from gateway.admission.pool import Pool
from gateway.errors import Overloaded
from gateway.policy.schema import OnSaturation, Policy, Tier

_SHED = OnSaturation(action="shed", at=0.9)
_WAIT = OnSaturation(action="wait", at=1.0)


def saturation_action(policy: Policy, tier_name: str) -> OnSaturation:
    """The tier's own rule. Without one, the lowest of several priorities is shed from 0.9 on, and all others wait."""
    tier = policy.tier(tier_name)
    if tier.on_saturation is not None:
        return tier.on_saturation
    if len(policy.tiers) < 2:
        return _WAIT
    priorities = [described.priority for described in policy.tiers.values()]
    lowest = min(priorities)
    return _SHED if tier.priority <= lowest < max(priorities) else _WAIT


def terms(tier: Tier, rule: OnSaturation) -> Terms:
    """How the tier stands in line."""
    return Terms(tier.weight, tier.ageing, rule.at if rule.action == "wait" else 1.0)


def shed(rule: OnSaturation, pool: Pool) -> None:
    """Raise ``Overloaded`` if the rule sheds at the pool's saturation."""
    if rule.action != "shed" or pool.saturation < rule.at:
        return
    raise Overloaded(
        f"Backend '{pool.name}' is {pool.saturation:.0%} full, and requests of your tier are not taken from "
        f"{rule.at:.0%} on. Try again later.",
        retry_after=max(1.0, pool.drain_time(rule.at) or 0.0),
    )
