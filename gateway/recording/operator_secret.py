"""The operator's secret, which wraps the data keys of recordings: in a file of theirs, or in one that is made here."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from gateway.private import private_folder

FILE = "record.key"
"""In the state folder."""
LEAST = 32
"""Characters."""


class SecretError(Exception):
    """There is none that can be used; the message says what to do."""


def operator_secret(key_file: str | None, state_dir: Path, *, makes: bool = True) -> str:
    """``makes``: where no file is named, and the state folder has none, one is made. Raises ``SecretError``."""
    path = Path(key_file) if key_file is not None else state_dir / FILE
    try:
        if key_file is None and makes and not path.exists():
            _make(path)
        secret = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        raise SecretError(
            f"'{path}', which holds the secret of recordings, cannot be read: {why or error}; name a file with one "
            "under 'record.key_file'"
        ) from None
    if len(secret) < LEAST:
        raise SecretError(
            f"'{path}' holds {len(secret)} characters, and the secret of recordings has {LEAST} or more: "
            "'openssl rand -hex 32' makes one"
        )
    return secret


def _make(path: Path) -> None:
    """Whole from the moment that it is there; of several processes the first one's is everybody's."""
    private_folder(path.parent)
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{secrets.token_hex(32)}\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        Path(draft).unlink()
