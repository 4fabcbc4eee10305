"""The door by which ``tollgate keys`` reaches a running gateway: a Unix socket in the state folder.

Who may open it is a matter of the file's mode: the gateway's own user, and root. One question a connection, a line of
JSON, and one answer:

    {"do": "create", "policies": [device, inode], "entry": {…}}    →  {"file": "…", "confirmed": true}
    {"do": "revoke", "policies": [device, inode], "id": "…"}       →  {"file": "…", "left": 2, "confirmed": true}
                                                                   or {"error": "…"}, {"elsewhere": true}

Keys themselves never pass: whoever makes one sends its hash. ``confirmed`` means that every worker has been seen to let
the key in, or to refuse it.
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
PATIENCE = 10.0
"""Seconds for a question to arrive whole, and again for all workers to take up a change."""
_LOOK_EVERY = 0.05
_LONGEST_PATH = 100
"""Bytes, of the 104 or more that the address of a Unix socket may have."""

log = logging.getLogger(__name__)


class Control:
    """Answers at the socket while its block lasts. Where that cannot be had, the gateway does without, and says so."""

    def __init__(
        self,
        policies: Path,
        state_dir: Path,
        watcher: PolicyWatcher,
        taken_up: Path,
        workers: int,
        env: Mapping[str, str],
    ) -> None:
        """``taken_up`` is the folder where each of the ``workers`` says which keys it lets in."""
        self._policies = policies
        self._path = state_dir / SOCKET
        self._book = KeyStore(policies, state_dir / ISSUED, env)
        self._watcher = watcher
        self._taken_up = taken_up
        self._workers = workers
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Control:
        try:
            sock = await asyncio.to_thread(_listening, self._path)
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
            async with asyncio.timeout(PATIENCE):
                line = await reader.readline()
            writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
            async with asyncio.timeout(PATIENCE):
                await writer.drain()
        except (OSError, ValueError, TimeoutError):
            pass  # whoever asked is gone, or does not speak this
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        question = json.loads(line)
        if not isinstance(question, dict):
            return {"error": "the question should be an object"}
        if question.get("policies") != await asyncio.to_thread(identity, self._policies):
            return {"elsewhere": True}
        try:
            match question:
                case {"do": "create", "entry": dict() as entry}:
                    key = Key.model_validate(entry)
                    file = await asyncio.to_thread(self._book.add, entry)
                    return {"file": str(file), **await self._confirmed(key.sha256, let_in=True)}
                case {"do": "revoke", "id": str() as id}:
                    done = await asyncio.to_thread(self._book.revoke, id)
                    told = {"file": str(done.file), "left": done.left, "broken": done.broken}
                    return {**told, **await self._confirmed(done.sha256, let_in=False)}
        except (KeyStoreError, PolicyError, ValidationError) as error:
            return {"error": str(error)}
        except OSError as error:
            return {"error": f"{error.filename or self._policies}: {error.strerror}"}
        return {"error": "this gateway does not know that question; it is of another version"}

    async def _confirmed(self, sha256: str, *, let_in: bool) -> dict[str, Any]:
        """Wait until this process and every worker have it so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while True:
                    if self._watcher.lets_in(sha256) == let_in and not await asyncio.to_thread(self._behind):
                        break
                    await asyncio.sleep(_LOOK_EVERY)
            log.info("a key was %s by 'tollgate keys'", "made" if let_in else "revoked")
            return {"confirmed": True}
        why = self._watcher.last_error or "a worker has not taken it up"
        return {"confirmed": False, "why": why}

    def _behind(self) -> bool:
        """Whether a worker lets in other keys than this process would."""
        for number in range(1, self._workers + 1):
            try:
                if (self._taken_up / str(number)).read_text() != self._watcher.keys_in_force:
                    return True
            except FileNotFoundError:
                return True
        return False


def tell(taken_up: Path, worker: int, keys_in_force: str) -> None:
    """Say which keys a worker lets in, for ``Control`` to see.

    In place, as all that may be said is of one length: a full disk has the room that ``make_room`` took.
    Raises ``OSError``.
    """
    descriptor = os.open(taken_up / str(worker), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, keys_in_force.encode(), 0)
    finally:
        os.close(descriptor)


def make_room(taken_up: Path, workers: int) -> None:
    """Take the room for what workers will ``tell``, as far as there is any."""
    with suppress(OSError):
        for number in range(1, workers + 1):
            tell(taken_up, number, "-" * 64)


def ask(state_dir: Path, question: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the gateway of this state folder answers; None where none does, or where it serves another folder.

    Raises ``OSError`` where one is there that does not let us in.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(3 * PATIENCE)
        try:
            with _usable(state_dir / SOCKET) as address:
                sock.connect(address)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return None
        sock.sendall(json.dumps(question).encode() + b"\n")
        with sock.makefile("rb") as stream:
            line = stream.readline(MAX_LINE)
    if not line:
        raise ConnectionResetError(0, "the gateway gave no answer")
    answer: dict[str, Any] = json.loads(line)
    return None if answer.get("elsewhere") else answer


def identity(folder: Path) -> list[int] | None:
    """The same for a folder and for every mount of it."""
    try:
        stat = folder.stat()
    except OSError:
        return None
    return [stat.st_dev, stat.st_ino]


def _listening(path: Path) -> socket.socket:
    """Raises ``OSError``, also where another gateway answers there."""
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
    """An address for a socket of any path: of a long one, by way of its folder's file descriptor."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
