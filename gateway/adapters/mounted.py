"""The folder from which servers that mount it read adapters: one folder in it for each, by its id."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from secrets import token_hex
from tarfile import TarError

from gateway.adapters.adapter import Adapter, is_adapter_id
from gateway.adapters.archive import unpack
from gateway.errors import UpstreamUnavailable

LEFT = 3600.0
"""Seconds after which a scratch folder is one that a crash has left."""
_SCRATCH = re.compile(r"\.adapter-[0-9a-f]{32}\.[0-9a-f]{8}", re.ASCII)


class MountedFolder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put(self, adapter: Adapter, pieces: AsyncIterator[bytes]) -> Path:
        """Its files, from ``pieces`` of its archive. They appear at once, whole. Raises ``UpstreamUnavailable``."""
        place = self._folder / adapter.id
        if await asyncio.to_thread(place.is_dir):
            return place
        scratch = self._folder / f".{adapter.id}.{token_hex(4)}"
        try:
            await asyncio.to_thread(scratch.mkdir, 0o755, True)
            await _written(scratch / "archive", pieces)
            await asyncio.to_thread(unpack, scratch / "archive", scratch / "files")
            await asyncio.to_thread(_moved, scratch / "files", place)
        except (OSError, TarError) as error:
            raise UpstreamUnavailable(
                "The adapter cannot be put where its server reads it: the folder adapters.folder needs the operator's "
                "care.",
                code="adapter_folder_unavailable",
                retry_after=10.0,
            ) from error
        finally:
            await asyncio.to_thread(shutil.rmtree, scratch, True)
        return place

    async def keep(self, ids: Iterable[str]) -> None:
        """Remove all other adapters, and what a crash has left of one."""
        await asyncio.to_thread(self._keep, frozenset(ids))

    def _keep(self, ids: frozenset[str]) -> None:
        if self._folder.is_dir():
            for place in self._folder.iterdir():
                if (is_adapter_id(place.name) and place.name not in ids) or _is_left(place):
                    shutil.rmtree(place, ignore_errors=True)


def _is_left(place: Path) -> bool:
    """Whether it is a scratch folder in which nobody writes any more."""
    if _SCRATCH.fullmatch(place.name) is None:
        return False
    try:
        return place.stat().st_mtime < time.time() - LEFT
    except OSError:
        return False


async def _written(file: Path, pieces: AsyncIterator[bytes]) -> None:
    with await asyncio.to_thread(file.open, "xb") as written:
        async for piece in pieces:
            await asyncio.to_thread(written.write, piece)


def _moved(files: Path, place: Path) -> None:
    try:
        files.rename(place)
    except OSError:
        if not place.is_dir():  # else another worker was faster
            raise
