"""The scanner that each kind of guard needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.guards.scanners.injection import injection
from gateway.guards.scanners.layered import Judge
from gateway.guards.scanners.pii import Pii
from gateway.guards.scanners.scanner import Origin, Scanner, Verdict
from gateway.guards.scanners.secrets import Secrets
from gateway.guards.scanners.topics import Topics
from gateway.guards.scanners.toxicity import toxicity
from gateway.guards.scanners.webhook import Poster, Webhook
from gateway.policy import schema
from gateway.policy.schema import Policy
from gateway.sidecar.api import Sidecar
from gateway.types import Call


def build_scanners(
    policy: Policy,
    sidecar: Sidecar,
    judges: Mapping[str, Judge],
    poster: Poster | None = None,
) -> dict[str, Scanner]:
    """By the guard's name; ``judges`` are those of the guards that name one. ``poster`` is for webhooks."""
    return {
        name: Webhook(name, guard, poster)
        if isinstance(guard, schema.WebhookGuard)
        else build_scanner(guard, sidecar, judges.get(name))
        for name, guard in policy.guards.items()
    }


def build_scanner(guard: schema.Guard, sidecar: Sidecar, judge: Judge | None) -> Scanner:
    """That of one guard whose fast check runs here."""
    match guard:
        case schema.PiiGuard():
            return Pii(guard, sidecar)
        case schema.SecretsGuard():
            return Secrets(guard)
        case schema.InjectionGuard():
            return injection(guard, sidecar, judge)
        case schema.ToxicityGuard():
            return toxicity(guard, sidecar, judge)
        case schema.TopicsGuard():
            return Topics(guard)
        case schema.LengthGuard():
            return _Nothing()
        case schema.WebhookGuard():
            raise TypeError("a webhook has no check that runs here")


class _Nothing:
    """The ``Scanner`` of a ``length`` guard: whoever reads the texts counts them."""

    origins: frozenset[Origin] = frozenset()
    longest = 0

    def quick(self, text: str, origin: Origin) -> Verdict:
        return Verdict()

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        return [Verdict() for _ in texts]
