"""What is kept, and where: ``store``, ``ledger``, ``caches``, ``responses``, ``files`` and ``batches``."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from gateway.policy.schema.backends import AwsAuth
from gateway.policy.schema.values import (
    Count,
    Duration,
    Form,
    Frozen,
    HttpUrl,
    Name,
    Share,
    Size,
    Text,
    Timeout,
)
from gateway.redis_address import FORM, RedisAddress

_BUCKET = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([A-Za-z0-9!_.*'()/-]{0,900}))?")


def _store(text: str) -> str:
    if text == "memory":
        return text
    if "://" not in text:
        raise ValueError("should be 'memory' or the URL of a Redis server, such as redis://127.0.0.1:6379/0")
    RedisAddress.parse(text)
    return text


def _cache_store(text: str) -> str:
    return text if text == "same" else _store(text)


def _ledger_store(text: str) -> str:
    if text != "sqlite" and not _is_postgres(text):
        raise ValueError(
            "should be 'sqlite' or the URL of a PostgreSQL server, such as postgresql://tollgate@127.0.0.1/tollgate"
        )
    return text


def _is_postgres(url: str) -> bool:
    try:
        return bool(re.fullmatch(r"postgres(ql)?://\S+", url)) and urlsplit(url).port != 0
    except ValueError:
        return False


def _file_store(text: str) -> str:
    if text != "folder" and not _BUCKET.fullmatch(text):
        raise ValueError("should be 'folder', or a bucket and where in it, such as s3://my-bucket/tollgate")
    return text


Store = Annotated[str, AfterValidator(_store), Form(rf"^(memory|{FORM})$")]
CacheStore = Annotated[str, AfterValidator(_cache_store), Form(rf"^(same|memory|{FORM})$")]


class LedgerSettings(Frozen):
    """The record of every request and what it cost."""

    enabled: bool = True
    store: Annotated[str, AfterValidator(_ledger_store), Form(r"^(sqlite|postgres(ql)?://\S+)$")] = "sqlite"
    """``sqlite`` is this machine alone; a PostgreSQL server has the records of all replicas that name it."""
    path: Text = "ledger.sqlite"
    """An SQLite file; a relative path begins at the state folder."""
    password_file: Text | None = None
    """Of the PostgreSQL server, where the URL has none."""


class AnyCache(Frozen):
    """When an answer may be given again."""

    ttl: Timeout = 3600.0
    max_bytes: Size = 256 * 2**20
    """In memory; a Redis store has bounds of its own."""
    max_entry: Size = 2**20
    """Longer answers are not kept."""
    per: Literal["tenant", "key"] = "tenant"
    """Who shares answers: a tenant's keys, or nobody but the key itself."""


class ExactCache(AnyCache):
    """The same request again gets the same answer."""

    single_flight: bool = True
    """Equal concurrent requests share one call upstream."""


class SemanticCache(AnyCache):
    """A question that means the same gets the same answer."""

    mode: Literal["on", "shadow", "off"] = "on"
    """``shadow`` only reports what it would have served."""
    error_budget: Share = 0.05
    """Share of its answers that may be for another question; the verifier's threshold follows from it."""
    threshold: Share = 0.0
    """Questions less alike than this (cosine) are never considered."""
    max_entries: Count = 100_000
    time_sensitive_ttl: Duration = 0.0
    """For questions whose answer changes with the time; 0 is not at all."""


class CacheSettings(Frozen):
    exact: ExactCache | None = None
    semantic: SemanticCache | None = None


class ResponseSettings(Frozen):
    """What ``/v1/responses`` keeps, for ``previous_response_id`` and to be fetched again.

    Responses and their input are kept where ``store`` says, for their tenant alone.
    """

    enabled: bool = True
    """``false`` keeps nothing, whatever a request asks for."""
    ttl: Timeout = 86_400.0
    """From when it was given, or continued."""
    max_bytes: Size = 64 * 2**20
    """In memory, of each worker; a Redis store has bounds of its own."""
    max_entry: Size = 8 * 2**20
    """Of one response and its own input; longer ones are not kept."""


class S3Settings(AwsAuth):
    """Where a bucket is, and who the gateway is there."""

    endpoint: HttpUrl | None = None
    """Of another server than Amazon's that speaks S3's API."""
    region: Name = "us-east-1"


class FileSettings(Frozen):
    """Files that callers upload, for their tenant alone. Their names and sizes are in the ledger's database."""

    enabled: bool = True
    store: Annotated[str, AfterValidator(_file_store), Form("^(folder|s3://.+)$")] = "folder"
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


class RecordSettings(Frozen):
    """Traffic that is kept to be replayed: what was asked when, what was decided, what it took.

    Segments are where ``files`` says, in a folder of their own; what they hold of whom is in the ledger's database.
    """

    enabled: bool = False
    share: Share = 1.0
    """Of the requests; which, follows from their ids."""
    tenants: tuple[Name, ...] = ()
    """Whose requests are recorded; empty: everybody's."""
    texts: Literal["none", "masked"] = "none"
    """``masked``: prompts and answers, too, as the guards on personal data leave them."""
    path: Text = "recordings"
    """A folder; a relative path begins at the state folder. In it, segments wait until they are put away."""
    rotate: Timeout = 600.0
    """After which a segment is put away that is not full."""
    retention: Timeout = 30 * 86_400.0
    """After which a segment is deleted."""
    max_bytes: Size = 10 * 2**30
    """Of all segments; beyond it the oldest are deleted."""
    key_file: Text | None = None
    """Holds the secret that wraps the tenants' data keys; None: one that is made in the state folder."""


class DriftSettings(Frozen):
    """What models are asked and do, by the hour, against the same hour of the four weeks before.

    Counts by bin are where the ledger is, for five weeks; nothing of any text.
    """

    least_requests: Annotated[int, Field(strict=True, ge=20, le=10**6)] = 100
    """Of a model and route in an hour; hours with fewer are not judged."""
    least_psi: Annotated[float, Field(strict=True, ge=0, le=10, allow_inf_nan=False)] = 0.02
    """What differs by less is not told, however sure it is."""
    false_alarms_per_month: Annotated[float, Field(strict=True, gt=0, le=1000, allow_inf_nan=False)] = 1.0
    """Over all models, routes and measures together."""


class BatchSettings(Frozen):
    """What ``/v1/batches`` takes, and what its lines may use.

    Their state is where the ledger is, their files where ``files`` says.
    """

    enabled: bool = True
    """``false`` takes no new batch, and runs none: they wait until it is on again."""
    price_factor: Share = 0.5
    """Of what tokens cost by the price table."""
    max_utilization: Share = 0.5
    """Lines use a backend up to this share of it, what others use included; one may always run where nobody else
    does."""
    max_concurrency: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 64
    """Lines of one batch and model that run at once, of each worker, whatever room there is."""
    max_lines: Annotated[int, Field(strict=True, ge=1, le=50_000)] = 50_000
    """Of one batch."""
    keep: Timeout = 30 * 86_400.0
    """For how long a batch can be looked up, from when it was made."""
