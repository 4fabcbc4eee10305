"""The data keys of all tenants: made at the first need, kept wrapped in the database, and known for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property

from gateway.recording.data_key import DataKey
from gateway.recording.recording_table import RecordingTable, WrappedKey
from gateway.secret_box import SecretBox

KNOWN = 30.0
"""Seconds for which a key is used without a look whether it is still there. What is recorded with a deleted one is
lost, as it is to be."""
PURPOSE = "record keys"


class KeyNotOurs(Exception):
    """A data key was wrapped with another secret than this gateway's; the message says what to do."""


class DataKeys:
    """``secret`` gives the operator's, which wraps them all. Methods wait for the database; one thread calls them."""

    def __init__(
        self, table: RecordingTable, secret: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._table = table
        self._secret = secret
        self._clock = clock
        self._known: dict[str, tuple[DataKey, float]] = {}

    def of(self, tenant: str) -> DataKey:
        """Raises ``KeyNotOurs``, ``SecretError`` and ``DatabaseError``."""
        key, until = self._known.get(tenant, (None, 0.0))
        if key is not None and self._clock() < until:
            return key
        fresh = DataKey.made(tenant)
        wrapped = self._table.key_of(tenant, self._wrapped(fresh), time.time())
        if key is None or key.id.hex() != wrapped.id:
            key = fresh if wrapped.id == fresh.id.hex() else self._unwrapped(wrapped)
        self._known[tenant] = key, self._clock() + KNOWN
        return key

    def forget(self, tenant: str) -> None:
        """It was deleted here, and is not used any more."""
        self._known.pop(tenant, None)

    def all(self) -> list[DataKey]:
        """Raises ``KeyNotOurs``, ``SecretError`` and ``DatabaseError``."""
        return [self._unwrapped(key) for key in self._table.all_keys()]

    @cached_property
    def _box(self) -> SecretBox:
        return SecretBox(self._secret(), PURPOSE)

    def _wrapped(self, key: DataKey) -> WrappedKey:
        return WrappedKey(
            key.id.hex(), key.tenant, self._box.seal(key.secret, f"{key.id.hex()} {key.tenant}")
        )

    def _unwrapped(self, wrapped: WrappedKey) -> DataKey:
        secret = self._box.open(wrapped.wrapped, f"{wrapped.id} {wrapped.tenant}")
        if secret is None:
            raise KeyNotOurs(
                f"the data key of tenant '{wrapped.tenant}' was wrapped with another secret than this one: give all "
                "gateways of this ledger the same file under 'record.key_file', or delete what was recorded of the "
                "tenant with 'tollgate record delete'"
            )
        return DataKey(bytes.fromhex(wrapped.id), wrapped.tenant, secret)
