"""The Unix socket in the state folder by which ``tollgate keys`` reaches a running gateway.

Its file mode decides who may connect: the gateway's own user, and root. Each connection carries one request, a line of
JSON, and one response:

    {"do": "create", "policies": [device, inode], "entry": {…}}    →  {"file": "…", "confirmed": true}
    {"do": "revoke", "policies": [device, inode], "id": "…"}       →  {"file": "…", "left": 2, "confirmed": true}
                                                                   or {"error": "…"}, {"elsewhere": true}

Keys themselves are never sent, only their hashes. ``confirmed`` means that every worker has been seen to accept the
key, or to refuse it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gateway.policy.key_store import ISSUED, KeyStore, KeyStoreError
from gateway.policy.problems import PolicyError
from gateway.policy.reload import PolicyWatcher
from gateway.policy.schema import Key
from gateway.private import private_folder

SOCKET = "control.sock"
MAX_LINE = 256 * 1024
TIMEOUT = 10.0
"""Seconds for a request to arrive whole, and again for all workers to apply a change."""
_LOOK_EVERY = 0.05
_LONGEST_PATH = 100
"""Bytes, of the 104 or more that the address of a Unix socket may have."""

log = logging.getLogger(__name__)


class ControlSocket:
    """Serves the socket within its ``async with`` block. A gateway that cannot have it logs that and does without."""

    def __init__(
        self,
        policies: Path,
        state_dir: Path,
        watcher: PolicyWatcher,
        worker_keys: Path,
        workers: int,
        env: Mapping[str, str],
    ) -> None:
        """``worker_keys`` is the folder where each of the ``workers`` writes a digest of the keys it accepts."""
        self._policies = policies
        self._path = state_dir / SOCKET
        self._book = KeyStore(policies, state_dir / ISSUED, env)
        self._watcher = watcher
        self._worker_keys = worker_keys
        self._workers = workers
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> ControlSocket:
        try:
            sock = await asyncio.to_thread(_listen, self._path)
            self._server = await asyncio.start_unix_server(self._serve, sock=sock, limit=MAX_LINE)
        except OSError as error:
            log.warning(
                "'tollgate keys' cannot reach this gateway, only its files: %s: %s",
                self._path,
                error.strerror or error,
            )
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._server is not None:
            self._server.close()
            with suppress(OSError):
                self._path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TIMEOUT):
                line = await reader.readline()
            writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
            async with asyncio.timeout(TIMEOUT):
                await writer.drain()
        except (OSError, ValueError, TimeoutError):
            pass  # the client is gone, or speaks another protocol
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        request = json.loads(line)
        if not isinstance(request, dict):
            return {"error": "the request should be an object"}
        if request.get("policies") != await asyncio.to_thread(identity, self._policies):
            return {"elsewhere": True}
        try:
            match request:
                case {"do": "create", "entry": dict() as entry}:
                    key = Key.model_validate(entry)
                    file = await asyncio.to_thread(self._book.add, entry)
                    return {"file": str(file), **await self._confirmed(key.sha256, accepted=True)}
                case {"do": "revoke", "id": str() as id}:
                    done = await asyncio.to_thread(self._book.revoke, id)
                    result = {"file": str(done.file), "left": done.left, "problems": done.problems}
                    return {**result, **await self._confirmed(done.sha256, accepted=False)}
        except (KeyStoreError, PolicyError, ValidationError) as error:
            return {"error": str(error)}
        except OSError as error:
            return {"error": f"{error.filename or self._policies}: {error.strerror}"}
        return {"error": "this gateway does not know that request; it is of another version"}

    async def _confirmed(self, sha256: str, *, accepted: bool) -> dict[str, Any]:
        """Wait until this process and every worker accept or refuse it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT):
                while True:
                    if self._watcher.accepts(sha256) == accepted and not await asyncio.to_thread(
                        self._behind
                    ):
                        break
                    await asyncio.sleep(_LOOK_EVERY)
            log.info("a key was %s by 'tollgate keys'", "made" if accepted else "revoked")
            return {"confirmed": True}
        why = self._watcher.last_error or "a worker has not applied it"
        return {"confirmed": False, "why": why}

    def _behind(self) -> bool:
        """Whether a worker accepts other keys than this process would."""
        for number in range(1, self._workers + 1):
            try:
                if (self._worker_keys / str(number)).read_text() != self._watcher.keys_digest:
                    return True
            except FileNotFoundError:
                return True
        return False


def publish_keys(worker_keys: Path, worker: int, keys_digest: str) -> None:
    """Write down which keys a worker accepts, for ``ControlSocket`` to read.

    Digests are of one length and written in place, so that a full disk has the space that ``preallocate`` took.
    Raises ``OSError``.
    """
    descriptor = os.open(worker_keys / str(worker), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, keys_digest.encode(), 0)
    finally:
        os.close(descriptor)


def preallocate(worker_keys: Path, workers: int) -> None:
    """Reserve the disk space for ``publish_keys``, as far as there is any."""
    with suppress(OSError):
        for number in range(1, workers + 1):
            publish_keys(worker_keys, number, "-" * 64)


def send_request(state_dir: Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """The response of this state folder's gateway; None where none runs, or where it serves another policy folder.

    Raises ``OSError`` where one runs that does not let us connect.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(3 * TIMEOUT)
        try:
            with _usable(state_dir / SOCKET) as address:
                sock.connect(address)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return None
        sock.sendall(json.dumps(request).encode() + b"\n")
        with sock.makefile("rb") as stream:
            line = stream.readline(MAX_LINE)
    if not line:
        raise ConnectionResetError(0, "the gateway sent no response")
    answer: dict[str, Any] = json.loads(line)
    return None if answer.get("elsewhere") else answer


def identity(folder: Path) -> list[int] | None:
    """Device and inode: the same for a folder and for every mount of it."""
    try:
        stat = folder.stat()
    except OSError:
        return None
    return [stat.st_dev, stat.st_ino]


def _listen(path: Path) -> socket.socket:
    """Raises ``OSError``, also where another gateway listens there."""
    private_folder(path.parent)
    sock = socket.socket(socket.AF_UNIX)
    try:
        with _usable(path) as address:
            with socket.socket(socket.AF_UNIX) as other, suppress(FileNotFoundError, ConnectionRefusedError):
                other.connect(address)
                raise OSError("another gateway has this state folder")
            path.unlink(missing_ok=True)
            before = os.umask(0o177)
            try:
                sock.bind(address)
            finally:
                os.umask(before)
        sock.listen(8)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


@contextmanager
def _usable(path: Path) -> Iterator[str]:
    """An address for a socket of any path; a long one is reached by its folder's file descriptor."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
