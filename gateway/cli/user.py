"""Who runs a command, and where the gateway on this machine keeps its state."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

from gateway.control.audit_log import Actor
from gateway.settings import Settings


def user() -> Actor:
    """The user of this machine, for the audit log."""
    try:
        return Actor("user", getpass.getuser())
    except (KeyError, OSError):
        return Actor("user", str(os.getuid()))


def state_dir() -> Path:
    return Path(os.environ.get("TOLLGATE_STATE_DIR") or Settings().state_dir)
