"""The ledger that the admin API reads."""

from __future__ import annotations

from gateway.admin.site import Site
from gateway.databases.database import Database, DatabaseError
from gateway.databases.opening import open_database
from gateway.errors import Overloaded
from gateway.web.context import RequestContext


def ledger_database(context: RequestContext, site: Site) -> Database:
    """It may never have been written."""
    ledger = context.runtime.ledger
    return ledger.database if ledger else open_database(context.runtime.policy.ledger, site.state_dir)


def unreadable(database: Database, error: DatabaseError) -> Overloaded:
    return Overloaded(
        f"The ledger cannot be read ({error}). Try again; if it stays so, check {database}.", retry_after=2.0
    )
