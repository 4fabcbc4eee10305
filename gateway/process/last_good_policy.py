"""A copy of the policy files that worked last, for workers that start while the policy folder is broken."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from gateway.policy.loader import Loaded

log = logging.getLogger(__name__)


class LastGoodPolicy:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "current"
        """A link to the copy; it is replaced in one step."""
        self._copies = 0

    def keep(self, loaded: Loaded) -> None:
        self._copies += 1
        copy = self.path.with_name(str(self._copies))
        copy.mkdir(mode=0o700)
        try:
            for source in loaded.sources:
                with open(copy / source.path.name, "xb", opener=_private) as file:
                    file.write(source.content or b"")
        except OSError as error:
            log.warning("no copy of the policy was made: %s", error)
            shutil.rmtree(copy, ignore_errors=True)
            return
        link = copy.with_suffix(".link")
        link.symlink_to(copy.name)
        before = self.path.resolve()
        link.replace(self.path)
        if before != self.path:
            shutil.rmtree(before, ignore_errors=True)


def _private(path: str, flags: int) -> int:
    """For ``open``: a policy may hold providers' keys."""
    return os.open(path, flags, 0o600)
