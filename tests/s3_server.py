"""A server that speaks S3's API, for tests, and a way to it that breaks off."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gateway.files.s3 import S3Blobs, _client
from gateway.policy.schema import S3Settings

BUCKET = "files-of-tests"


class S3Server:
    """moto's, in threads of this process. It believes any key."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, self.port = self._server.get_host_and_port()
        self.url = f"http://{host}:{self.port}"
        self.client: Any = _client(settings(self.url))
        self.client.create_bucket(Bucket=BUCKET)

    def keys(self) -> list[str]:
        return [one["Key"] for one in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", ())]

    def begun(self) -> list[str]:
        """The keys of uploads in parts that have not ended."""
        found = self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ())
        return [one["Key"] for one in found]

    def empty(self) -> None:
        blobs = S3Blobs(BUCKET, "", settings(self.url))
        for key in {*self.keys(), *self.begun()}:
            blobs.delete(key)
        blobs.close()

    def stop(self) -> None:
        self.client.close()
        self._server.stop()


def settings(url: str) -> S3Settings:
    return S3Settings.model_validate(
        {"endpoint": url, "access_key_id": "AKIATESTS", "secret_access_key": "of-tests"}
    )


@contextmanager
def cutting(port: int, after: int, times: int) -> Iterator[str]:
    """The address of a proxy that cuts the first ``times`` connections once ``after`` bytes of answers have come."""
    with _proxy(port, [after] * times, []) as url:
        yield url


@contextmanager
def recording(port: int) -> Iterator[tuple[str, list[str]]]:
    """The address of a proxy, and what comes first on each of its connections: the head of a request."""
    heads: list[str] = []
    with _proxy(port, [], heads) as url:
        yield url, heads


@contextmanager
def _proxy(port: int, cuts: list[int], heads: list[str]) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=relay, args=(client,), daemon=True).start()

    def relay(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            threading.Thread(target=copy, args=(client, server, None, heads), daemon=True).start()
            copy(server, client, cuts.pop() if cuts else None, [])

    def copy(source: socket.socket, target: socket.socket, most: int | None, first: list[str]) -> None:
        taken = 0
        with suppress(OSError):
            while data := source.recv(65536):
                if not taken:
                    first.append(data.decode("latin-1"))
                target.sendall(data)
                taken += len(data)
                if most is not None and taken >= most:
                    break
            for one in (source, target):
                one.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
