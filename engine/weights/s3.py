"""A model's files from a bucket of Amazon S3, or of a server that speaks its API, by botocore (the extra ``s3``).

``s3://BUCKET/PREFIX`` is a folder, ``s3://BUCKET/KEY.gguf`` a file. Credentials, region and endpoint are what AWS' own
tools take them from (``AWS_ACCESS_KEY_ID``, ``AWS_PROFILE``, ``AWS_ENDPOINT_URL_S3``, roles:
https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html). The identity needs s3:GetObject and
s3:ListBucket.

Files are kept in ``$XDG_CACHE_HOME/tollgate/models``, and fetched again where the bucket has others: by size and ETag,
which are noted beside them. Each is read in parts at a time, all of one version (``If-Match``), and has its name only
when it is whole. ``--digest`` is what makes sure of contents: an ETag is none.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelUnavailable
from engine.extras import install_command
from engine.weights.progress import Progress, progress

log = logging.getLogger("engine.weights")

SCHEME = "s3://"
_PART = 16 * 2**20
"""Bytes of a request."""
_CONNECTIONS = 8
_ATTEMPTS = 4
_CONNECT_TIMEOUT, _READ_TIMEOUT = 5.0, 60.0
_SPARE = 2**30
"""Bytes of the disk that stay free."""
_NOTE = ".s3.json"


@dataclass(frozen=True, slots=True)
class _Object:
    key: str
    name: str
    """Of the file that it becomes."""
    size: int
    etag: str


def fetch(url: str) -> Path:
    """The folder, or the .gguf file, that ``url`` names, with the files that the bucket has now. Raises
    ``ModelUnavailable``."""
    bucket, key = _split(url)
    folder = _folder() / bucket / key
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(folder), _client() as client:
            found = _find(client, bucket, key)
            if not any(one.name.endswith((".safetensors", ".gguf")) for one in found):
                raise ModelUnavailable(
                    f"{url} holds no model: the bucket has no .safetensors or .gguf there, or does not show it to "
                    "this identity."
                )
            _update(client, bucket, found, folder)
    except OSError as error:
        raise ModelUnavailable(
            f"{url} cannot be kept in {folder}: {error}. Set XDG_CACHE_HOME to a folder that can be written."
        ) from error
    return folder / key.rpartition("/")[2] if key.endswith(".gguf") else folder


def _split(url: str) -> tuple[str, str]:
    bucket, _, key = url.removeprefix(SCHEME).strip("/").partition("/")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]+", bucket) or not key or ".." in key.split("/"):
        raise ModelUnavailable(
            f"{url} is no model: write s3://BUCKET/PREFIX for a folder, s3://BUCKET/KEY.gguf for a file."
        )
    return bucket, key


def _folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "tollgate" / "models"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Engines that start at once fetch a model once."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("waiting for another engine that fetches %s", folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _client() -> Iterator[Any]:
    """botocore's, whose errors become ``ModelUnavailable``."""
    try:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.session import Session
    except ImportError as error:
        raise ModelUnavailable(
            f"models from S3 need botocore, which comes with: {install_command('s3')}"
        ) from error
    try:
        client = Session().create_client(
            "s3",
            config=Config(
                connect_timeout=_CONNECT_TIMEOUT,
                read_timeout=_READ_TIMEOUT,
                retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                max_pool_connections=_CONNECTIONS,
                # Servers other than Amazon's know neither buckets in host names nor all checksums.
                s3={"addressing_style": "path"} if os.environ.get("AWS_ENDPOINT_URL_S3") else {},
                response_checksum_validation="when_required",
            ),
        )
        try:
            yield client
        finally:
            client.close()
    except (BotoCoreError, ClientError) as error:
        raise ModelUnavailable(
            f"S3: {error}. Credentials, region and endpoint are those of AWS' own tools: AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; AWS_REGION; AWS_ENDPOINT_URL_S3."
        ) from error


def _find(client: Any, bucket: str, key: str) -> list[_Object]:
    """The model's objects, which lie in one folder: of a .gguf file all its parts."""
    if key.endswith(".gguf"):
        prefix = re.sub(r"-00001(-of-\d{5}\.gguf)$", "", key)
        wanted = re.compile(re.escape(key).replace("\\-00001\\-of", r"\-\d{5}\-of") + "$")
    else:
        prefix = f"{key}/"
        wanted = re.compile(re.escape(prefix) + r"([^/]+\.(json|safetensors|jinja|gguf)|tokenizer\.model)$")
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, Delimiter="/")
    return [
        _Object(one["Key"], one["Key"].rpartition("/")[2], one["Size"], one["ETag"])
        for page in pages
        for one in page.get("Contents", ())
        if wanted.match(one["Key"])
    ]


def _update(client: Any, bucket: str, wanted: Sequence[_Object], folder: Path) -> None:
    """Fetches what ``folder`` lacks. What the bucket has no more is removed, or two models would be mixed."""
    note = folder / _NOTE
    known = _read(note)
    missing = [one for one in wanted if not _is_there(one, known, folder)]
    for name in known.keys() - {one.name for one in wanted}:
        (folder / name).unlink(missing_ok=True)
    known = {one.name: [one.size, one.etag] for one in wanted if one not in missing}
    note.write_text(json.dumps(known))
    if not missing:
        return
    total = sum(one.size for one in missing)
    free = shutil.disk_usage(folder).free - _SPARE
    if total > free:
        raise ModelUnavailable(
            f"s3://{bucket} has {total / 1e9:.1f} GB of the model that {folder} lacks, and {max(0, free) / 1e9:.1f} GB "
            "can be written there. Make room, or set XDG_CACHE_HOME to another disk."
        )
    log.info("fetching %d files, %.1f GB, into %s", len(missing), total / 1e9, folder)
    with progress(total, "fetching the model") as read:
        for one in missing:
            _fetch(client, bucket, one, folder / one.name, read)
            known[one.name] = [one.size, one.etag]
            note.write_text(json.dumps(known))


def _read(note: Path) -> dict[str, list[Any]]:
    try:
        found = json.loads(note.read_text())
    except (OSError, ValueError):  # none, or a damaged one
        return {}
    return found if isinstance(found, dict) else {}


def _is_there(one: _Object, known: dict[str, list[Any]], folder: Path) -> bool:
    path = folder / one.name
    return known.get(one.name) == [one.size, one.etag] and path.is_file() and path.stat().st_size == one.size


def _fetch(client: Any, bucket: str, one: _Object, path: Path, read: Progress) -> None:
    scratch = path.with_name(f".{path.name}.part")
    with scratch.open("wb") as file, ThreadPoolExecutor(_CONNECTIONS) as threads:
        file.truncate(one.size)
        parts = [
            threads.submit(_fetch_part, client, bucket, one, start, file.fileno())
            for start in range(0, one.size, _PART)
        ]
        try:
            for part in as_completed(parts):
                read(part.result())
        except BaseException:
            threads.shutdown(cancel_futures=True)
            scratch.unlink(missing_ok=True)
            raise
        os.fsync(file.fileno())
    scratch.replace(path)


def _fetch_part(client: Any, bucket: str, one: _Object, start: int, file: int) -> int:
    from botocore.exceptions import HTTPClientError, IncompleteReadError, ResponseStreamingError

    end = min(start + _PART, one.size)
    at = start
    for attempt in range(_ATTEMPTS):
        try:
            answer = client.get_object(
                Bucket=bucket, Key=one.key, Range=f"bytes={at}-{end - 1}", IfMatch=one.etag
            )
            for piece in answer["Body"].iter_chunks(2**20):
                os.pwrite(file, piece, at)
                at += len(piece)
            if at == end:
                return end - start
        except (HTTPClientError, IncompleteReadError, ResponseStreamingError):
            # An answer that broke off; one that never began was tried again by botocore itself.
            if attempt == _ATTEMPTS - 1:
                raise
    raise ModelUnavailable(f"s3://{bucket}/{one.key} ends {end - at} bytes early: try again.")
