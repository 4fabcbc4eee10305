"""Adapters as callers read them, in the manner of OpenAI's objects; OpenAI itself has no such API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gateway.adapters.adapter import Adapter
from gateway.policy.schema.values import Name
from gateway.types import Json

_MOST_SHARED = 100


class CreateAdapterBody(BaseModel):
    """``sha256`` is that of the weights' file, and compared."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: Annotated[str, Field(max_length=64, pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    model: Annotated[str, Field(min_length=1, max_length=256)]
    config_file_id: Annotated[str, Field(max_length=64)]
    """Of ``adapter_config.json``."""
    weights_file_id: Annotated[str, Field(max_length=64)]
    """Of ``adapter_model.safetensors``."""
    sha256: Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")] | None = None
    shared_with: Annotated[list[Name], Field(max_length=_MOST_SHARED, fail_fast=True)] = []
    """Tenants that may ask it, too."""


def write_adapter(adapter: Adapter, *, hides_listed: bool = False) -> Json:
    """``hides_listed``: its tenant could ask one by its name before, which a server lists."""
    more = {"hides_listed": True} if hides_listed else {}
    return {
        "id": adapter.id,
        "object": "adapter",
        "created_at": adapter.created_at,
        "name": adapter.name,
        "base_model": adapter.base,
        "model": adapter.model,
        "tenant": adapter.tenant,
        "shared_with": list(adapter.shared_with),
        "rank": adapter.rank,
        "target_modules": list(adapter.targets),
        "bytes": adapter.bytes,
        "sha256": adapter.sha256,
        **more,
    }


def write_list(adapters: Sequence[Adapter]) -> Json:
    """The newest first."""
    return {"object": "list", "data": [write_adapter(one) for one in reversed(adapters)], "has_more": False}


def write_deleted(id: str) -> Json:
    return {"object": "adapter", "id": id, "deleted": True}
