"""OpenAI's Files API: the fields of an upload, and files as its clients read them.

https://platform.openai.com/docs/api-reference/files
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from gateway.errors import BadRequest
from gateway.files.file_table import StoredFile
from gateway.types import Json

Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
PURPOSES: tuple[str, ...] = get_args(Purpose)
"""Of uploads. What the gateway writes itself has others, such as ``batch_output``."""
MOST_LISTED = 10_000
SHORTEST, LONGEST = 3600, 2_592_000
"""Seconds that an upload may ask to be kept: an hour to 30 days."""
BATCH_AGE = LONGEST
"""What ``purpose: batch`` is kept for where nothing is asked."""


class UploadBody(BaseModel):
    """``multipart/form-data``: ``expires_after[anchor]`` and ``expires_after[seconds]`` come together."""

    model_config = ConfigDict(extra="allow")
    file: Annotated[str, Field(json_schema_extra={"format": "binary"})]
    purpose: Purpose
    anchor: Annotated[Literal["created_at"] | None, Field(alias="expires_after[anchor]")] = None
    seconds: Annotated[int | None, Field(alias="expires_after[seconds]", ge=SHORTEST, le=LONGEST)] = None


class ListQuery(BaseModel):
    after: str | None = None
    """An id: the page begins behind it."""
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = MOST_LISTED
    order: Literal["asc", "desc"] = "desc"
    """By when they were created."""
    purpose: str | None = None


@dataclass(frozen=True, slots=True)
class UploadFields:
    purpose: str
    expires_after: int | None
    """Seconds from the upload on."""


def check_purpose(purpose: str) -> None:
    """Raises ``BadRequest``."""
    if purpose not in PURPOSES:
        raise BadRequest(
            f"'{purpose[:40]}' is not one of {list(PURPOSES)} - 'purpose'",
            param="purpose",
            code="invalid_value",
        )


def read_fields(fields: Mapping[str, str]) -> UploadFields:
    """Raises ``BadRequest``. Fields that are not known are ignored, but none that asks for an expiry in another form:
    the file would be kept for ever.
    """
    if "purpose" not in fields:
        raise BadRequest(
            "'purpose' is a required property", param="purpose", code="missing_required_parameter"
        )
    purpose = fields["purpose"]
    check_purpose(purpose)
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if "expires_after" in fields:
        raise BadRequest(
            "'expires_after' should be an object, in the fields 'expires_after[anchor]' and 'expires_after[seconds]'.",
            param="expires_after",
            code="invalid_type",
        )
    if anchor is None and seconds is None:
        return UploadFields(purpose, BATCH_AGE if purpose == "batch" else None)
    if anchor != "created_at":
        raise BadRequest(
            "'expires_after[anchor]' should be 'created_at'.",
            param="expires_after[anchor]",
            code="invalid_value" if anchor is not None else "missing_required_parameter",
        )
    whole = seconds is not None and seconds.isascii() and seconds.isdigit() and len(seconds) < 10
    if not whole or not SHORTEST <= int(seconds or 0) <= LONGEST:
        raise BadRequest(
            f"'expires_after[seconds]' should be a whole number of seconds from {SHORTEST} to {LONGEST}.",
            param="expires_after[seconds]",
            code="invalid_value" if seconds is not None else "missing_required_parameter",
        )
    return UploadFields(purpose, int(seconds or 0))


def read_list_query(query: Mapping[str, str]) -> ListQuery:
    """Raises ``BadRequest``."""
    limit, order = query.get("limit", str(MOST_LISTED)), query.get("order", "desc")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 10 and 1 <= int(limit) <= MOST_LISTED):
        raise BadRequest(
            f"'limit' should be a whole number from 1 to {MOST_LISTED}.", param="limit", code="invalid_value"
        )
    if order not in ("asc", "desc"):
        raise BadRequest("'order' should be 'asc' or 'desc'.", param="order", code="invalid_value")
    return ListQuery(
        after=query.get("after") or None,
        limit=int(limit),
        order="asc" if order == "asc" else "desc",
        purpose=query.get("purpose") or None,
    )


def write_file(file: StoredFile) -> dict[str, Json]:
    return {
        "object": "file",
        "id": file.id,
        "purpose": file.purpose,
        "filename": file.filename,
        "bytes": file.bytes,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
        "status": "processed",
        "status_details": None,
    }


def write_page(files: Sequence[StoredFile], *, more: bool) -> dict[str, Json]:
    return {
        "object": "list",
        "data": [write_file(file) for file in files],
        "first_id": files[0].id if files else None,
        "last_id": files[-1].id if files else None,
        "has_more": more,
    }


def write_deleted(id: str) -> dict[str, Json]:
    return {"object": "file", "id": id, "deleted": True}
