"""From a tenant's two files to an adapter: checked as they are copied, and kept as one archive.

The archive is written first, its row last, in a transaction that counts what the tenant has. A crash in between leaves
an archive without a row, which the sweep removes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from hashlib import sha256

from gateway.adapters.adapter import Adapter, is_adapter_name, new_id
from gateway.adapters.archive import archived
from gateway.adapters.check import MOST_CONFIG, Layers, NotAnAdapter, check_layers, read_config
from gateway.adapters.safetensors import LENGTH, NotSafetensors, header_length, read_header
from gateway.adapters.table import AdapterTable, Owned
from gateway.errors import BadRequest, Conflict
from gateway.files.file_table import FileMissing, StoredFile
from gateway.files.stored_files import StoredFiles
from gateway.policy.schema import AdapterSettings

log = logging.getLogger(__name__)

KEEPER = "#adapters"
"""The tenant whose files archives are: no name of a tenant, so that no caller finds them."""
PURPOSE = "adapter"
ORPHANED = 3600
"""Seconds after which an archive without a row is one that a crash has left."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller asks to be made an adapter."""

    tenant: str
    key_id: str
    name: str
    base: str
    config_file_id: str
    weights_file_id: str
    sha256: str | None = None
    """What the weights should have."""
    shared_with: tuple[str, ...] = ()


async def create(asked: Asked, files: StoredFiles, table: AdapterTable, settings: AdapterSettings) -> Adapter:
    """Raises ``BadRequest`` for what is none, ``Conflict`` where its name is taken, ``UpstreamUnavailable``."""
    if not is_adapter_name(asked.name):
        raise BadRequest(
            "'name' should be 1 to 64 letters, digits and ._-, and begin with a letter or digit.",
            param="name",
            code="invalid_value",
        )
    config_file = await _file(files, asked.tenant, asked.config_file_id, "config_file_id", MOST_CONFIG)
    weights = await _file(files, asked.tenant, asked.weights_file_id, "weights_file_id", settings.max_bytes)
    planned = Adapter(
        id=new_id(),
        tenant=asked.tenant,
        name=asked.name,
        base=asked.base,
        rank=0,
        targets=(),
        bytes=weights.bytes,
        sha256="",
        archive="",
        archive_sha256="",
        archive_bytes=0,
        created_at=int(time.time()),
        key_id=asked.key_id,
        shared_with=asked.shared_with,
    )

    def admitted(owned: Owned) -> None:
        _check_room(owned, planned, settings)

    # A first look, before anything is copied.
    await files.call(table.check, planned, admitted)
    try:
        config = b"".join([piece async for piece in files.read(asked.tenant, config_file.id)])
        copy = _Copy(config, files, weights, settings.max_rank)
        archive = await files.create(
            KEEPER, planned.id, PURPOSE, copy.pieces(), key_id=asked.key_id, lasts=True
        )
    except NotAnAdapter as error:
        raise BadRequest(str(error), param=error.field, code="invalid_adapter") from None
    except NotSafetensors as error:
        raise BadRequest(
            f"The file {weights.id} is not one of safetensors: {error}.",
            param="weights_file_id",
            code="invalid_adapter",
        ) from None
    except FileMissing:
        raise BadRequest("One of the files was deleted meanwhile.", code="invalid_value") from None
    try:
        if asked.sha256 is not None and asked.sha256.lower() != copy.sha256:
            raise BadRequest(
                f"The weights have the SHA-256 {copy.sha256}, not the one that was given. Upload them again.",
                param="sha256",
                code="sha256_differs",
            )
        adapter = replace(
            planned,
            rank=copy.layers.rank,
            targets=copy.layers.targets,
            sha256=copy.sha256,
            archive=archive.id,
            archive_sha256=copy.archive_sha256,
            archive_bytes=archive.bytes,
        )
        await files.call(table.add, adapter, admitted)
    except BaseException:
        await asyncio.shield(files.delete(KEEPER, archive.id))
        raise
    return adapter


async def delete(tenant: str | None, id: str, files: StoredFiles, table: AdapterTable) -> Adapter | None:
    """It, where it was there; from now on nobody finds it. Without ``tenant``, whosever it is."""
    removed = await files.call(table.remove, tenant, id)
    if removed is not None:
        await files.delete(KEEPER, removed.archive)
    return removed


async def sweep(files: StoredFiles, table: AdapterTable, now: float) -> int:
    """Remove archives that crashes have left. Returns how many that were."""
    _, rows = await files.call(table.all)
    kept = {row.archive for row in rows}
    found = await files.listed(KEEPER, purpose=None, after=None, limit=10_000, newest_first=False)
    orphans = [one.id for one in found if one.id not in kept and one.created_at < now - ORPHANED]
    for orphan in orphans:
        await files.delete(KEEPER, orphan)
    return len(orphans)


class _Copy:
    """The archive's pieces, checked as they pass."""

    def __init__(self, config: bytes, files: StoredFiles, weights: StoredFile, most_rank: int) -> None:
        self._config = config
        self._files = files
        self._weights = weights
        self._most_rank = most_rank
        self._sha256 = sha256()
        self._archive = sha256()
        self.layers = Layers(0, ())

    async def pieces(self) -> AsyncIterator[bytes]:
        """Raises ``NotAnAdapter``, ``NotSafetensors`` and ``FileMissing``."""
        settings, size = read_config(self._config), self._weights.bytes
        async with aclosing(self._files.read(self._weights.tenant, self._weights.id)) as read:
            begun = bytearray()
            needed = LENGTH
            while len(begun) < needed and (piece := await anext(read, b"")):
                begun += piece
                needed = LENGTH + header_length(bytes(begun[:LENGTH])) if len(begun) >= LENGTH else LENGTH
            if len(begun) < needed:
                raise NotSafetensors("it ends within its header")
            tensors = read_header(bytes(begun[LENGTH:needed]), size)
            self.layers = check_layers(settings, tensors, self._most_rank)

            async def weights() -> AsyncIterator[bytes]:
                self._sha256.update(begun)
                yield bytes(begun)
                async for piece in read:
                    self._sha256.update(piece)
                    yield piece

            async for piece in archived(self._config, weights(), size):
                self._archive.update(piece)
                yield piece

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def archive_sha256(self) -> str:
        return self._archive.hexdigest()


async def _file(files: StoredFiles, tenant: str, id: str, param: str, most: int) -> StoredFile:
    found = await files.find(tenant, id)
    if found is None:
        raise BadRequest(
            f"There is no file '{id[:80]}'. Upload it to /v1/files with the purpose 'fine-tune'.",
            param=param,
            code="invalid_value",
        )
    if found.bytes > most:
        raise BadRequest(
            f"The file has {found.bytes:,} bytes; {most:,} are the most here.",
            param=param,
            code="adapter_too_large",
        )
    return found


def _check_room(owned: Owned, wanted: Adapter, settings: AdapterSettings) -> None:
    if owned.named:
        raise Conflict(
            f"You have an adapter '{wanted.name}' of '{wanted.base}'. Delete it first, or choose another name.",
            param="name",
            code="adapter_exists",
        )
    if owned.adapters >= settings.max_tenant_adapters:
        raise BadRequest(
            f"You have {owned.adapters:,} adapters, and this gateway keeps {settings.max_tenant_adapters:,} at most. "
            "Delete some.",
            code="adapter_limit_reached",
        )
    if owned.bytes + wanted.bytes > settings.max_tenant_bytes:
        raise BadRequest(
            f"Your adapters have {owned.bytes:,} bytes; with {wanted.bytes:,} more they would exceed the "
            f"{settings.max_tenant_bytes:,} that this gateway keeps for you. Delete some.",
            code="adapter_storage_full",
        )
