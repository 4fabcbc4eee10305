"""``adapters``: LoRA adapters that tenants upload, and the backends that serve them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SecretStr

from gateway.policy.schema.values import Count, Frozen, Name, Size, Text, Timeout


class AdapterServer(Frozen):
    """What a backend's servers are told of adapters. Each of its replicas is one."""

    slots: Count | None = None
    """Adapters that one server has at once; without it, it is asked for one more until it refuses."""
    token: SecretStr | None = None
    """What the bundled engine wants to hear before it loads anything."""
    folder: Text | None = None
    """Where a vLLM server mounts ``adapters.folder``. The bundled engine is sent the files."""


class AdapterListing(Frozen):
    """A backend whose servers are asked which adapters they list."""

    tenants: Annotated[tuple[Text, ...], Field(min_length=1)] = ("*",)
    """Who may ask these adapters, of those who may ask their base; patterns as in a shell."""


class AdapterSettings(Frozen):
    """Without ``adapters`` nobody can upload any, and nobody can ask those that servers list."""

    servers: dict[Name, AdapterServer] = Field(default={})
    """By backend. Models with targets there can have adapters that tenants upload."""
    listed: dict[Name, AdapterListing] = Field(default={})
    """By backend. What its servers list with a ``parent`` can be asked as an adapter of that model."""
    folder: Text | None = None
    """Where adapters are put for servers that mount it; a relative path begins at the state folder."""
    max_rank: Annotated[int, Field(strict=True, ge=1, le=4096)] = 64
    max_bytes: Size = 512 * 2**20
    """Of one adapter's weights."""
    max_tenant_bytes: Size = 4 * 2**30
    max_tenant_adapters: Count = 50
    load_timeout: Timeout = 60.0
    """How long a request waits until its adapter is loaded."""
