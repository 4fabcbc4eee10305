"""What the admin endpoints share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.types import Scope

from gateway.control.audit_log import Actor, AuditLog
from gateway.control.changes import REFUSALS
from gateway.control.client import change
from gateway.control.peers import Peers
from gateway.databases.database import Database, DatabaseError
from gateway.databases.opening import open_database
from gateway.errors import Conflict, Overloaded
from gateway.identity.client_address import ClientAddress
from gateway.policy.history import PolicyHistory
from gateway.policy.key_store import ISSUED, KeyStore
from gateway.replicas.drains import drain_for_all
from gateway.runtime.runtime import Runtime
from gateway.types import Principal
from gateway.web.context import RequestContext


class RefusedChange(Conflict):
    """One that the audit log has."""


@dataclass(frozen=True, slots=True)
class Site:
    policies: Path
    state_dir: Path
    env: Mapping[str, str]
    peers: Peers
    rejected: Callable[[], str | None]
    """Why the files of the policy are not in force, where they are not."""
    generation: Callable[[], int]
    """The number of the policy in force."""
    current: Callable[[], Runtime]
    keys: KeyStore = field(init=False)
    history: PolicyHistory = field(init=False)
    audit_log: AuditLog = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", KeyStore(self.policies, self.state_dir / ISSUED, self.env))
        object.__setattr__(self, "history", PolicyHistory(self.state_dir, self.policies))
        object.__setattr__(self, "audit_log", AuditLog(self.state_dir))

    async def change(self, context: RequestContext, scope: Scope, **request: Any) -> dict[str, Any]:
        """Make a change (``gateway.control.changes``) for the caller. Raises ``RefusedChange``."""
        try:
            return await asyncio.to_thread(
                change,
                {**request, "by": actor_of(scope, context.caller()).content()},
                policies=self.policies,
                state_dir=self.state_dir,
                env=self.env,
                drain_for_all=drain_for_all,
            )
        except REFUSALS as error:
            raise RefusedChange(str(error)) from None
        except OSError as error:
            raise RefusedChange(f"{error.filename or self.policies}: {error.strerror or error}") from None


def actor_of(scope: Scope, principal: Principal) -> Actor:
    address = ClientAddress(RequestContext.of(scope).runtime.policy.trusted_proxies).of(scope)
    return Actor("key", principal.key_id, str(address) if address is not None else None)


def ledger_database(context: RequestContext, site: Site) -> Database:
    """It may never have been written."""
    ledger = context.runtime.ledger
    return ledger.database if ledger else open_database(context.runtime.policy.ledger, site.state_dir)


def unreadable(database: Database, error: DatabaseError) -> Overloaded:
    return Overloaded(
        f"The ledger cannot be read ({error}). Try again; if it stays so, check {database}.", retry_after=2.0
    )
