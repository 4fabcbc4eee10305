"""Files and folders that are moved together or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gateway.private import private_folder


class Moves:
    """Those that were made, so that they can be undone."""

    def __init__(self) -> None:
        self._undo: list[tuple[Path, Callable[[], None]]] = []

    def move(self, source: Path, target: Path) -> None:
        """Also to another disk. A link leads from there where it led before. Raises ``OSError``."""
        for folder in reversed([folder for folder in target.parents if not folder.is_dir()]):
            private_folder(folder)
            self._undo.append((folder, folder.rmdir))
        if not source.is_symlink():
            _rename(source, target)
            self._undo.append((target, lambda: _rename(target, source)))
            return
        led = os.readlink(source)
        target.symlink_to(source.parent.absolute() / led)
        self._undo.append((target, target.unlink))
        source.unlink()
        self._undo.append((source, lambda: source.symlink_to(led)))

    def back(self) -> list[Path]:
        """Undo them all, the last first; what stays where it is, as that failed."""
        left: list[Path] = []
        while self._undo:
            path, undo = self._undo.pop()
            try:
                undo()
            except OSError:
                if not path.is_dir() or any(path.iterdir()):
                    left.append(path)
        return left


def _rename(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        try:
            shutil.move(source, target)
        except OSError:  # of a folder, all is still at one of the two
            with suppress(OSError):
                if source.exists():
                    shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
            raise
