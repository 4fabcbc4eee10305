"""The guards of a policy, by who asks what."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from gateway.fair_turns import FairTurns
from gateway.findings import Finding
from gateway.guards.scanners.offload import Offload
from gateway.guards.scanners.scanner import Origin, Scanner
from gateway.policy.schema import Policy
from gateway.policy.schema.any_guard import Action, AnyGuard
from gateway.policy.schema.guards import InjectionGuard, LengthGuard, SelfHarm, TopicsGuard, ToxicityGuard
from gateway.policy.schema.webhook_guard import WebhookGuard
from gateway.types import Call

log = logging.getLogger(__name__)

EVERY = 60.0
"""Seconds between two lines about one guard."""
_REMEMBERED = 10_000
"""Tenants; those of JWTs need not be in the policy."""


class Complaints:
    """What a guard could not judge, in the log: at once, and then once a minute with a count, as a server that is away
    would fill it with a line for each text."""

    __slots__ = ("_clock", "_guard", "_next", "_untold")

    def __init__(self, guard: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._guard = guard
        self._clock = clock
        self._next = float("-inf")
        self._untold = 0

    def tell(self, why: str) -> None:
        now = self._clock()
        if now < self._next:
            self._untold += 1
            return
        more = f" (and {self._untold:,} more since the last such line)" if self._untold else ""
        log.warning("guard '%s' could not judge a text: %s%s", self._guard, why, more)
        self._next, self._untold = now + EVERY, 0


class Guard:
    """One guard: its configuration and its scanner."""

    __slots__ = (
        *("acts", "asks_elsewhere", "complaints", "config", "edits", "joins", "limit", "name", "obeys"),
        *("offload", "origins", "scanner", "self_harm", "slow_check", "turns", "window"),
    )

    def __init__(
        self,
        name: str,
        config: AnyGuard,
        scanner: Scanner,
        turns: FairTurns | None = None,
        offload: Offload | None = None,
    ) -> None:
        """``turns`` is shared by all guards that scan on the event loop.

        ``offload`` runs slow fast checks in other processes; None: on the event loop.
        """
        self.name = name
        self.config = config
        self.complaints = Complaints(name)
        self.scanner = scanner
        self.turns = turns or FairTurns()
        self.offload = offload
        self.window = max(config.window, scanner.longest)
        self.origins: frozenset[Origin] = (
            frozenset((*config.origins, "answer")) if config.origins else scanner.origins
        )
        """Which texts it scans."""
        self.limit = config.max_characters if isinstance(config, LengthGuard) else None
        """Maximum characters of all texts together, which are counted, not scanned."""

        is_judged = isinstance(config, InjectionGuard | ToxicityGuard) and config.judge is not None
        self.acts = config.action != "flag"
        """Whether it may change or refuse anything; guards that only flag run in the background."""
        self.asks_elsewhere = is_judged or (isinstance(config, WebhookGuard) and not config.local)
        """Whether somebody may be asked who must not see what has to stay local: a judge model, or a server."""
        self.self_harm = _self_harm(config)
        """What becomes of requests that speak of self-harm; None where that is what becomes of all findings."""
        self.obeys = _obeys(config)
        """Whether a server, or the policy's categories, say what becomes of what was found, finding by finding."""
        self.edits = config.action in ("redact", "mask") or self.obeys
        """Whether it may change texts."""
        self.joins = isinstance(config, InjectionGuard | ToxicityGuard) or (
            isinstance(config, TopicsGuard) and not self.edits
        )
        """Whether it reads the parts of a message together, too: it looks for more than a word. Numbers and keys that
        meet are none, edits have their place in one part, and a server is asked about each text once."""
        self.slow_check = "webhook" if isinstance(config, WebhookGuard) else "model"
        """What its slower check is called in metrics."""

    def offloads(self, characters: int) -> bool:
        """Whether the fast check scans so many, all texts together, in another process."""
        return self.offload is not None and self.offload.takes(characters)

    def action_on(self, finding: Finding) -> Action:
        """What becomes of ``finding``."""
        return self.config.action if finding.remedy is None or not self.acts else finding.remedy.action


def _self_harm(config: AnyGuard) -> SelfHarm | None:
    if not isinstance(config, ToxicityGuard) or config.action != "block":
        return None
    return config.self_harm if config.self_harm.action != "block" else None


def _obeys(config: AnyGuard) -> bool:
    if isinstance(config, InjectionGuard | ToxicityGuard):
        return config.judge is not None and config.judge.has_remedies
    return isinstance(config, WebhookGuard) and config.has_remedies


@dataclass(frozen=True, slots=True)
class TenantGuards:
    """The guards of one tenant's requests, in the policy's order."""

    input: tuple[Guard, ...] = ()
    output: tuple[Guard, ...] = ()
    input_flags: tuple[Guard, ...] = ()
    """Those that only flag; they are not among the others."""
    output_flags: tuple[Guard, ...] = ()
    spotlight: bool = False
    """Whether tools' results are marked as data, by a guard of whatever action."""
    canary: bool = False
    """Whether the system prompt has a canary."""

    @classmethod
    def of(cls, mine: Sequence[Guard]) -> Self:
        injection = [guard.config for guard in mine if isinstance(guard.config, InjectionGuard)]
        asked = [guard for guard in mine if "input" in guard.config.on]
        answered = [guard for guard in mine if "output" in guard.config.on]
        return cls(
            input=tuple(guard for guard in asked if guard.acts),
            output=tuple(guard for guard in answered if guard.acts),
            input_flags=tuple(guard for guard in asked if not guard.acts),
            output_flags=tuple(guard for guard in answered if not guard.acts),
            spotlight=any(one.spotlight for one in injection if "input" in one.on),
            canary=any(one.canary for one in injection),
        )

    @property
    def reads_input(self) -> bool:
        return bool(self.input or self.input_flags)


class Guards:
    """``scanners`` has one for each guard of ``policy``, by the guard's name; so has ``offloads``, if it is given."""

    def __init__(
        self, policy: Policy, scanners: Mapping[str, Scanner], offloads: Mapping[str, Offload] | None = None
    ) -> None:
        turns = FairTurns()
        self._all = [
            Guard(name, config, scanners[name], turns, (offloads or {}).get(name))
            for name, config in policy.guards.items()
        ]
        self._known: dict[tuple[str, str, str, str], TenantGuards] = {}
        self._is_scoped = any(guard.config.is_scoped for guard in self._all)

    def of_call(self, call: Call) -> TenantGuards:
        """Those that look after a request."""
        if not self._is_scoped:
            return self.of(call.principal.tenant)
        return self.of(call.principal.tenant, call.principal.key_id, call.model, call.route)

    def of(self, tenant: str, key_id: str = "", model: str = "", route: str = "") -> TenantGuards:
        """Computed once; all but the tenant matters only where a guard is scoped by it."""
        who = (tenant, key_id, model, route)
        known = self._known.get(who)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[who] = TenantGuards.of(
                [
                    guard
                    for guard in self._all
                    if guard.config.looks_after(tenant, key_id=key_id, model=model, route=route)
                ]
            )
        return known
