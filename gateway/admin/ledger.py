"""Where the ledger is that the admin API reads."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from gateway.admin.site import Site
from gateway.errors import Overloaded
from gateway.web.context import RequestContext


def ledger_path(context: RequestContext, site: Site) -> Path:
    """It may not exist."""
    ledger = context.runtime.ledger
    return ledger.path if ledger is not None else site.state_dir / context.runtime.policy.ledger.path


def unreadable(path: Path, error: sqlite3.Error) -> Overloaded:
    return Overloaded(
        f"The ledger cannot be read ({error}). Try again; if it stays so, check {path}.", retry_after=2.0
    )
