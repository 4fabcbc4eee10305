"""What operators switch while a gateway runs: a file of the state folder that is part of the policy.

It holds the keys ``drained`` and ``cache_epochs``, as the policy folder's files may, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from gateway.policy.file_changes import locked, replace_file
from gateway.private import private_folder

OPERATIONS = "operations.yaml"
_HEAD = "# Written by 'tollgate backends', 'tollgate caches' and the admin API.\n"
_MOST = 2**53


class Operations:
    """``state_dir`` is made where it is not there. Every method raises ``OSError``."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._file = state_dir / OPERATIONS

    def drain(self, backend: str, *, drained: bool) -> bool:
        """Whether this changed anything."""

        def change(content: dict[str, Any]) -> None:
            before = content.get("drained")
            names = [str(name) for name in before] if isinstance(before, list) else []
            if drained != (backend in names):
                content["drained"] = [*names, backend] if drained else [n for n in names if n != backend]

        return self._edit(change)

    def flush(self, tenant: str, epoch: int) -> None:
        """Count the tenant's cache epoch up, from ``epoch``."""

        def change(content: dict[str, Any]) -> None:
            before = content.get("cache_epochs")
            epochs = dict(before) if isinstance(before, dict) else {}
            content["cache_epochs"] = {**epochs, tenant: (epoch + 1) % _MOST}

        self._edit(change)

    def _edit(self, change: Callable[[dict[str, Any]], None]) -> bool:
        private_folder(self._state_dir)
        with locked(self._state_dir):
            before = self._read()
            after = dict(before)
            change(after)
            if after == before:
                return False
            replace_file(self._file, _HEAD + yaml.safe_dump(after), 0o600)
            return True

    def _read(self) -> dict[str, Any]:
        """Nothing where a person has made something else of it."""
        try:
            content = yaml.safe_load(self._file.read_text("utf-8"))
        except (FileNotFoundError, yaml.YAMLError):
            return {}
        return content if isinstance(content, dict) else {}
