"""Contents in a bucket of Amazon S3 or of a server that speaks its API, by botocore, which the extra ``s3`` brings.

https://docs.aws.amazon.com/AmazonS3/latest/API/Welcome.html. The identity needs s3:PutObject, s3:GetObject,
s3:DeleteObject, s3:AbortMultipartUpload and s3:ListBucketMultipartUploads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gateway.files.blobs import BlobError, BlobMissing
from gateway.packages import no_s3
from gateway.policy.schema import S3Settings

PART = 8 * 2**20
"""Bytes of a part, which are held until it is sent; S3 takes 10,000 of them, of 5 MiB or more each but the last."""
CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 30.0
ATTEMPTS = 3
"""To send a request, or to go on with an answer that broke off."""
CONNECTIONS = 16


class S3Blobs:
    """Objects of ``bucket`` whose keys begin with ``prefix``, which is empty or ends in a slash.

    Connects, and looks for credentials, at the first need.
    """

    def __init__(self, bucket: str, prefix: str, config: S3Settings) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._config = config
        self._made: Any = None
        self._making = threading.Lock()

    def writer(self, name: str) -> _Writer:
        return _Writer(self, name)

    def reader(self, name: str, start: int) -> _Reader:
        return _Reader(self, name, start)

    def delete(self, name: str) -> None:
        self.call("delete_object", name)
        key = f"{self._prefix}{name}"
        with translated():
            found = self.client().list_multipart_uploads(Bucket=self._bucket, Prefix=key)
        for upload in found.get("Uploads", ()):
            if upload["Key"] == key:
                self.call("abort_multipart_upload", name, UploadId=upload["UploadId"])

    def close(self) -> None:
        if self._made is not None:
            self._made.close()

    def call(self, operation: str, name: str, **given: Any) -> Any:
        """An operation on one object. Raises ``BlobMissing`` and ``BlobError``."""
        client = self.client()
        with translated():
            return getattr(client, operation)(Bucket=self._bucket, Key=f"{self._prefix}{name}", **given)

    def client(self) -> Any:
        # Its description of the API takes a moment to read; threads may use it together.
        with self._making:
            if self._made is None:
                self._made = _client(self._config)
            return self._made


class _Writer:
    """A small content is one request; of a larger one each part is sent as soon as it is there."""

    def __init__(self, blobs: S3Blobs, name: str) -> None:
        self._blobs = blobs
        self._name = name
        self._waiting = bytearray()
        self._upload: str | None = None
        self._parts: list[dict[str, Any]] = []

    def write(self, data: bytes) -> None:
        self._waiting += data
        while len(self._waiting) >= PART:
            part = bytes(self._waiting[:PART])
            del self._waiting[:PART]
            self._send(part)

    def commit(self) -> None:
        last = bytes(self._waiting)
        if self._upload is None:
            self._blobs.call("put_object", self._name, Body=last)
            return
        if last:
            self._send(last)
        self._blobs.call(
            "complete_multipart_upload",
            self._name,
            UploadId=self._upload,
            MultipartUpload={"Parts": self._parts},
        )

    def abort(self) -> None:
        self._waiting.clear()
        upload, self._upload = self._upload, None
        if upload is not None:
            with suppress(BlobMissing):  # it is complete, or gone
                self._blobs.call("abort_multipart_upload", self._name, UploadId=upload)

    def _send(self, part: bytes) -> None:
        if self._upload is None:
            self._upload = self._blobs.call("create_multipart_upload", self._name)["UploadId"]
        number = len(self._parts) + 1
        sent = self._blobs.call(
            "upload_part", self._name, UploadId=self._upload, PartNumber=number, Body=part
        )
        self._parts.append({"PartNumber": number, "ETag": sent["ETag"]})


class _Reader:
    """Goes on where an answer breaks off: a server may close a connection on which a slow client takes nothing."""

    def __init__(self, blobs: S3Blobs, name: str, start: int) -> None:
        self._blobs = blobs
        self._name = name
        self._at = start
        self._body: Any = None

    def read(self, size: int) -> bytes:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._read(size)
            except BlobError:
                self.close()
                if attempt == ATTEMPTS:
                    raise
        return b""

    def close(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            body.close()

    def _read(self, size: int) -> bytes:
        if self._body is None:
            span = {"Range": f"bytes={self._at}-"} if self._at else {}
            try:
                self._body = self._blobs.call("get_object", self._name, **span)["Body"]
            except _PastTheEnd:
                return b""
        with translated():
            data: bytes = self._body.read(size)
        self._at += len(data)
        return data


class _PastTheEnd(Exception):
    """A range that begins where the content ends."""


def _client(config: S3Settings) -> Any:
    try:
        from botocore.config import Config
        from botocore.session import Session
    except ImportError as error:
        raise BlobError(no_s3()) from error
    with translated():
        session = Session(profile=config.profile)
        keys: dict[str, Any] = {}
        if config.access_key_id is not None and config.secret_access_key is not None:
            keys = {
                "aws_access_key_id": config.access_key_id,
                "aws_secret_access_key": config.secret_access_key.get_secret_value(),
            }
            if config.session_token is not None:
                keys["aws_session_token"] = config.session_token.get_secret_value() or None
        options: dict[str, Any] = {
            "connect_timeout": CONNECT_TIMEOUT,
            "read_timeout": READ_TIMEOUT,
            "retries": {"mode": "standard", "total_max_attempts": ATTEMPTS},
            "max_pool_connections": CONNECTIONS,
        }
        if config.endpoint is not None:
            # What other servers know least: names of buckets in host names, and checksums behind a body.
            options["s3"] = {"addressing_style": "path"}
            options["request_checksum_calculation"] = "when_required"
            options["response_checksum_validation"] = "when_required"
        return session.create_client(
            "s3", region_name=config.region, endpoint_url=config.endpoint, config=Config(**options), **keys
        )


@contextmanager
def translated() -> Iterator[None]:
    """botocore's errors as ours."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        told = error.response.get("Error", {})
        if told.get("Code") in ("NoSuchKey", "NoSuchUpload", "404"):
            raise BlobMissing(str(error)) from error
        if told.get("Code") == "InvalidRange":
            raise _PastTheEnd from error
        raise BlobError(str(error)) from error
    except (BotoCoreError, OSError) as error:
        raise BlobError(str(error)) from error
