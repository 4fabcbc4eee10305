"""Secrets that ``tollgate serve`` makes where none is given, and that keep from one run to the next.

The development key opens a gateway whose policy has no keys yet, the metrics token the operator's pages; the session
secret seals the cookies of those who signed in at ``/admin``, and compacted conversations.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gateway.identity.api_keys import make_key
from gateway.private import private_folder

VARIABLE = "TOLLGATE_DEV_KEY"


class DevelopmentKey(NamedTuple):
    key: str
    source: str
    """Where it is kept, for the banner."""


def development_key(state_dir: Path, env: Mapping[str, str]) -> DevelopmentKey:
    """TOLLGATE_DEV_KEY where it is set, else what ``<state_dir>/dev-key`` holds; that file is made if need be."""
    if key := env.get(VARIABLE, "").strip():
        return DevelopmentKey(key, VARIABLE)
    file = state_dir / "dev-key"
    try:
        return DevelopmentKey(_kept(file), str(file))
    except OSError as error:
        return DevelopmentKey(
            make_key(), f"for this run only: {file} cannot be used ({error.strerror or error})"
        )


def metrics_token(state_dir: Path) -> str:
    """What ``<state_dir>/metrics-token`` holds; that file is made if need be, and for this run only if it cannot be."""
    return _kept_if_possible(state_dir / "metrics-token")


def session_secret(state_dir: Path) -> str:
    """What ``<state_dir>/session-secret`` holds, likewise. Deleting that file, and a restart, end all sessions."""
    return _kept_if_possible(state_dir / "session-secret")


def _kept_if_possible(file: Path) -> str:
    try:
        return _kept(file)
    except OSError:
        return make_key()


def _kept(file: Path) -> str:
    private_folder(file.parent)
    try:
        key = file.read_text("utf-8", "replace").strip()
    except FileNotFoundError:
        key = ""
    if key:
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)
        return key
    key = make_key()
    # By rename, so that no other process reads half a key; of two that start at once the last to write wins.
    draft = file.with_name(f".{file.name}-{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        stream.write(key + "\n")
    draft.replace(file)
    return key
