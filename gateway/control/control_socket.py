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
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gateway.control.changes import REFUSALS, Changes, DrainForAll
from gateway.control.client import MAX_LINE, SOCKET, TIMEOUT, identity
from gateway.control.in_force import InForce
from gateway.control.unix_socket import listen
from gateway.policy.reload import PolicyWatcher

log = logging.getLogger(__name__)


class ControlSocket:
    """Serves the socket within its ``async with`` block. A gateway that cannot have it logs that and does without."""

    def __init__(
        self,
        policies: Path,
        state_dir: Path,
        watcher: PolicyWatcher,
        in_force: InForce,
        env: Mapping[str, str],
        drain_for_all: DrainForAll | None = None,
    ) -> None:
        self._policies = policies
        self._path = state_dir / SOCKET
        self._changes = Changes(policies, state_dir, env, drain_for_all)
        self._watcher = watcher
        self._in_force = in_force
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
            return {"error": f"{error.filename or self._policies}: {error.strerror or error}"}
        match request["do"]:
            case "create" | "rotate":
                result |= await self._confirmed(result["sha256"], accepted=True)
            case "revoke":
                result |= await self._confirmed(result["sha256"], accepted=False)
            case "drain" | "undrain" if "for_all" not in result:
                result |= await self._drained(request["backend"], drained=request["do"] == "drain")
            case "roll_back" | "flush" | "change_key":
                result |= await self._applied(result["fingerprint"])
        return result

    async def _drained(self, backend: str, *, drained: bool) -> dict[str, Any]:
        def applied() -> bool:
            current = self._watcher.current
            return current is not None and (backend in current.policy.drained) == drained

        return await self._seen(applied)

    async def _applied(self, fingerprint: str) -> dict[str, Any]:
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
        if await self._in_force.until(applied):
            return {"confirmed": True}
        return {"confirmed": False, "why": self._watcher.last_error or "a worker has not applied it"}
