"""``files``: what ``/v1/files`` keeps, and where."""

from __future__ import annotations

from gateway.policy.schema.values import Count, Frozen, Size, Text, Timeout


class FileSettings(Frozen):
    """Files that callers upload, for their tenant alone. Their names and sizes are in the ledger's database."""

    enabled: bool = True
    path: Text = "files"
    """A folder for their contents; a relative path begins at the state folder."""
    max_bytes: Size = 200 * 2**20
    """Of one file."""
    max_tenant_bytes: Size = 2**30
    """Of all files of a tenant, uploads under way included."""
    max_tenant_files: Count = 10_000
    max_age: Timeout | None = None
    """After which any file is gone, whatever its upload asked for."""
