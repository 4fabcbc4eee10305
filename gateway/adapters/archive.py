"""An adapter as one file: an uncompressed tar (ustar) of ``adapter_config.json`` and ``adapter_model.safetensors``.

The same contents make the same bytes, so that its SHA-256 names it between the gateway and engines.
"""

from __future__ import annotations

import tarfile
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_END = b"\0" * (2 * tarfile.BLOCKSIZE)


def archive_size(config: int, weights: int) -> int:
    """Bytes, by those of its files."""
    return sum(tarfile.BLOCKSIZE + size + len(_padding(size)) for size in (config, weights)) + len(_END)


async def archived(config: bytes, weights: AsyncIterable[bytes], size: int) -> AsyncIterator[bytes]:
    """The archive's bytes, piece by piece. ``size`` is that of ``weights``."""
    yield _head(CONFIG, len(config)) + config + _padding(len(config)) + _head(WEIGHTS, size)
    async for piece in weights:
        yield piece
    yield _padding(size) + _END


def unpack(archive: Path, folder: Path) -> None:
    """Its two files into ``folder``, which is new. Raises ``OSError`` and ``tarfile.TarError``."""
    folder.mkdir(mode=0o755, parents=True)
    with tarfile.open(archive, "r:") as found:
        for name in (CONFIG, WEIGHTS):
            member = found.extractfile(name)
            if member is None:
                raise tarfile.ReadError(f"{name} is no file")
            with member, (folder / name).open("xb") as written:
                while piece := member.read(2**20):
                    written.write(piece)


def _head(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    return entry.tobuf(tarfile.USTAR_FORMAT)


def _padding(size: int) -> bytes:
    return b"\0" * (-size % tarfile.BLOCKSIZE)
