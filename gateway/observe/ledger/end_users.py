"""Who asked through a caller: the end users that requests name, as hashes by their tenant's salt."""

from __future__ import annotations

import hmac
import secrets

from gateway.databases.database import Database
from gateway.databases.own_tables import changed

_DIGITS = 16
"""Of the hash, which tells some millions of users of a tenant apart."""


class EndUsers:
    """Salts are made at the first need and lie beside the requests: replicas that share a ledger give a user the same
    hash. Who deletes a tenant's row of ``salts`` makes its users unknown for good."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._salts: dict[str, bytes] = {}

    def hash_of(self, tenant: str, user: str) -> str:
        """Empty for nobody. Raises ``DatabaseError``."""
        if not user:
            return ""
        salt = self._salts.get(tenant) or self._found(tenant)
        return hmac.new(salt, user.encode("utf-8", "surrogatepass"), "sha256").hexdigest()[:_DIGITS]

    def _found(self, tenant: str) -> bytes:
        made = {"tenant": tenant, "salt": secrets.token_hex(16)}
        insert = "INSERT INTO salts (tenant, salt) VALUES (:tenant, :salt) ON CONFLICT DO NOTHING"
        changed(self._database, lambda change: change.run(insert, made))
        with self._database.reading() as reader:  # whoever was first
            [row] = reader.rows("SELECT salt FROM salts WHERE tenant = :tenant", {"tenant": tenant})
        self._salts[tenant] = bytes.fromhex(row["salt"])
        return self._salts[tenant]
