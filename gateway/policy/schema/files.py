"""``files``: what ``/v1/files`` keeps, and where."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from gateway.policy.schema.backends import AwsAuth
from gateway.policy.schema.values import Count, Frozen, HttpUrl, Name, Size, Text, Timeout

_BUCKET = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([A-Za-z0-9!_.*'()/-]{0,900}))?")


def _store(text: str) -> str:
    if text != "folder" and not _BUCKET.fullmatch(text):
        raise ValueError("should be 'folder', or a bucket and where in it, such as s3://my-bucket/tollgate")
    return text


class S3Settings(AwsAuth):
    """Where a bucket is, and who the gateway is there."""

    endpoint: HttpUrl | None = None
    """Of another server than Amazon's that speaks S3's API."""
    region: Name = "us-east-1"


class FileSettings(Frozen):
    """Files that callers upload, for their tenant alone. Their names and sizes are in the ledger's database."""

    enabled: bool = True
    store: Annotated[str, AfterValidator(_store)] = "folder"
    """Where their contents are: in a folder, or in a bucket."""
    path: Text = "files"
    """The folder; a relative path begins at the state folder."""
    s3: S3Settings = S3Settings()
    max_bytes: Size = 200 * 2**20
    """Of one file."""
    max_tenant_bytes: Size = 2**30
    """Of all files of a tenant, uploads under way included."""
    max_tenant_files: Count = 10_000
    max_age: Timeout | None = None
    """After which any file is gone, whatever its upload asked for."""

    @property
    def bucket(self) -> tuple[str, str] | None:
        """The bucket, and what keys in it begin with: nothing, or what ends in a slash. None where it is a folder."""
        match = _BUCKET.fullmatch(self.store)
        if match is None:
            return None
        prefix = (match[2] or "").strip("/")
        return match[1], f"{prefix}/" if prefix else ""
