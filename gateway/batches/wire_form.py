"""OpenAI's form of batches (https://platform.openai.com/docs/api-reference/batch), in and out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from gateway.batches.batch import Batch, Sums
from gateway.types import Json

MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class OutputExpiresAfter(BaseModel):
    """When the files that a batch writes are deleted, from when each was made."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(strict=True, ge=3600, le=2_592_000)]


class CreateBatchBody(BaseModel):
    """``POST /v1/batches``."""

    input_file_id: Annotated[str, Field(min_length=1, max_length=256)]
    endpoint: Literal[
        "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/moderations"
    ]
    completion_window: Literal["24h"]
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None
    output_expires_after: OutputExpiresAfter | None = None


class BatchPage(BaseModel):
    """The query of ``GET /v1/batches``."""

    after: Annotated[str, Field(max_length=256)] | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20


def written(batch: Batch) -> dict[str, Json]:
    """As the API shows it."""
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": {"object": "list", "data": [dict(one) for one in batch.errors]} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": "24h",
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": batch.created_at,
        "in_progress_at": batch.in_progress_at,
        "expires_at": batch.expires_at,
        "finalizing_at": batch.finalizing_at,
        "completed_at": batch.completed_at,
        "failed_at": batch.failed_at,
        "expired_at": batch.expired_at,
        "cancelling_at": batch.cancelling_at,
        "cancelled_at": batch.cancelled_at,
        "request_counts": {
            "total": batch.total,
            "completed": batch.sums.completed,
            "failed": batch.sums.failed,
        },
        "usage": _usage(batch.sums),
        "metadata": batch.metadata,
    }


def page(batches: Sequence[Batch], *, more: bool) -> dict[str, Json]:
    return {
        "object": "list",
        "data": [written(batch) for batch in batches],
        "first_id": batches[0].id if batches else None,
        "last_id": batches[-1].id if batches else None,
        "has_more": more,
    }


def _usage(sums: Sums) -> dict[str, Json]:
    return {
        "input_tokens": sums.prompt_tokens,
        "input_tokens_details": {"cached_tokens": sums.cached_tokens},
        "output_tokens": sums.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": sums.reasoning_tokens},
        "total_tokens": sums.prompt_tokens + sums.completion_tokens,
    }
