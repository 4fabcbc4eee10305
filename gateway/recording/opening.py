"""Where a policy's recordings are: their rows, their segments, their secret."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gateway.databases.opening import open_tables
from gateway.files.blobs import Blobs
from gateway.files.folder import FolderBlobs
from gateway.files.s3 import S3Blobs
from gateway.policy.schema import Policy
from gateway.recording.operator_secret import operator_secret
from gateway.recording.recording_table import RECORDINGS, RecordingTable

_IN_BUCKET = "recordings/"


@dataclass(frozen=True, slots=True)
class RecordingPlaces:
    table: RecordingTable
    blobs: Blobs
    spool: Path
    secret: Callable[[], str]
    """Raises ``SecretError``."""


def open_recordings(policy: Policy, state_dir: Path, *, makes: bool = True) -> RecordingPlaces:
    """Connects at the first need only. ``makes``: a secret is made where there is none."""
    folder = state_dir / policy.record.path
    blobs: Blobs = FolderBlobs(folder)
    if policy.files.bucket is not None:
        bucket, prefix = policy.files.bucket
        blobs = S3Blobs(bucket, f"{prefix}{_IN_BUCKET}", policy.files.s3)
    return RecordingPlaces(
        RecordingTable(open_tables(RECORDINGS, policy.ledger, state_dir)),
        blobs,
        folder / "open",
        partial(operator_secret, policy.record.key_file, state_dir, makes=makes),
    )
