"""The Unix socket in the state folder by which commands, and the workers' admin API, reach a running gateway.

Its file mode decides who may connect: the gateway's own user, and root. Each connection carries one request, a line of
JSON, and one response:

    {"do": "create", "policies": [device, inode], "entry": {…}}    →  {"file": "…", "confirmed": true}
    {"do": "revoke", "policies": [device, inode], "id": "…"}       →  {"file": "…", "left": 2, "confirmed": true}
    {"do": "drain", "policies": [device, inode], "backend": "…"}   →  {"changed": true, "confirmed": true}
                                                                   or {"error": "…"}, {"elsewhere": true}

``gateway.control.changes`` has them all. ``by`` says who asks, for the audit log. Keys themselves are never sent, only
their hashes. ``confirmed`` means that the change is in force: every worker has been seen to obey it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gateway.control.changes import REFUSALS, Changes
from gateway.control.client import MAX_LINE, SOCKET, TIMEOUT, identity
from gateway.control.unix_socket import listen
from gateway.policy.reload import PolicyWatcher

_LOOK_EVERY = 0.05

log = logging.getLogger(__name__)


class ControlSocket:
    """Serves the socket within its ``async with`` block. A gateway that cannot have it logs that and does without."""

    def __init__(
        self,
        policies: Path,
        state_dir: Path,
        watcher: PolicyWatcher,
        in_force: Path,
        workers: int,
        env: Mapping[str, str],
    ) -> None:
        """``in_force`` is the folder where each of the ``workers`` writes a digest of the policy and keys it obeys."""
        self._policies = policies
        self._path = state_dir / SOCKET
        self._changes = Changes(policies, state_dir, env)
        self._watcher = watcher
        self._in_force_folder = in_force
        self._workers = workers
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> ControlSocket:
        try:
            sock = await asyncio.to_thread(listen, self._path)
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
            result = await asyncio.to_thread(self._changes.make, request)
        except REFUSALS as error:
            return {"error": str(error)}
        except OSError as error:
            return {"error": f"{error.filename or self._policies}: {error.strerror}"}
        match request["do"]:
            case "create" | "rotate":
                result |= await self._confirmed(result["sha256"], accepted=True)
            case "revoke":
                result |= await self._confirmed(result["sha256"], accepted=False)
            case "drain" | "undrain":
                result |= await self._drained(request["backend"], drained=request["do"] == "drain")
            case "roll_back" | "flush" | "change_key":
                result |= await self._in_force(result["fingerprint"])
        return result

    async def _drained(self, backend: str, *, drained: bool) -> dict[str, Any]:
        def applied() -> bool:
            current = self._watcher.current
            return current is not None and (backend in current.policy.drained) == drained

        return await self._seen(applied)

    async def _in_force(self, fingerprint: str) -> dict[str, Any]:
        def applied() -> bool:
            current = self._watcher.current
            return current is not None and current.fingerprint == fingerprint

        return await self._seen(applied)

    async def _confirmed(self, sha256: str, *, accepted: bool) -> dict[str, Any]:
        seen = await self._seen(lambda: self._watcher.accepts(sha256) == accepted)
        if seen["confirmed"]:
            log.info("a key was %s on request", "made" if accepted else "revoked")
        return seen

    async def _seen(self, applied: Callable[[], bool]) -> dict[str, Any]:
        """Wait until this process and every worker obey the change."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT):
                while not applied() or await asyncio.to_thread(self._behind):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_EVERY)
            return {"confirmed": True}
        return {"confirmed": False, "why": self._watcher.last_error or "a worker has not applied it"}

    def _behind(self) -> bool:
        """Whether a worker obeys another policy, or accepts other keys, than this process would."""
        for number in range(1, self._workers + 1):
            try:
                if (self._in_force_folder / str(number)).read_text() != self._watcher.in_force:
                    return True
            except FileNotFoundError:
                return True
        return False


def publish(folder: Path, worker: int, in_force: str) -> None:
    """Write down what a worker obeys (``PolicyWatcher.in_force``), for ``ControlSocket`` to read.

    Digests are of one length and written in place, so that a full disk has the space that ``preallocate`` took.
    Raises ``OSError``.
    """
    descriptor = os.open(folder / str(worker), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, in_force.encode(), 0)
    finally:
        os.close(descriptor)


def preallocate(folder: Path, workers: int) -> None:
    """Reserve the disk space for ``publish``, as far as there is any."""
    with suppress(OSError):
        for number in range(1, workers + 1):
            publish(folder, number, f"{'-' * 64} {'-' * 64}")
