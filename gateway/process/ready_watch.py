"""Waits until a gateway that was just started can serve: all its workers accept, and its own ``/readyz`` says so."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from gateway.policy.loader import Loaded
from gateway.policy.reload import PolicyWatcher
from gateway.process.listener import reachable

_INTERVAL = 0.3
_TIMEOUT = 10.0


async def until_ready(
    listener: socket.socket,
    watcher: PolicyWatcher,
    token: str,
    on_wait: Callable[[str], None],
    missing: Callable[[], int],
) -> tuple[Collection[str], Loaded]:
    """The backends that are ready, and the policy in force; also where all that is waited for is disabled.

    ``on_wait`` is called with what it waits for each time that this changes; ``token`` is the operator's; ``missing``
    tells how many workers do not accept connections yet. Were they not waited for, the death of the one that does
    would leave callers waiting until the next one has started.
    """
    host, port = reachable(listener)
    reported = ""
    while True:
        waiting = "the gateway to start"
        with suppress(OSError, ValueError, TimeoutError):
            status, body = await asyncio.wait_for(_get(host, port, "/readyz", token), _TIMEOUT)
            page, loaded = json.loads(body), watcher.current
            if "error" in page:  # nobody serves yet
                pass
            elif absent := missing():
                waiting = f"{absent} more {'worker' if absent == 1 else 'workers'} to start"
            elif loaded is not None and (
                status == 200 or not loaded.enabled or _is_only_disabled(page, loaded)
            ):
                states = page.get("backends", {})
                return [name for name, state in states.items() if state == "ready"], loaded
            else:
                waiting = "; ".join(_reasons(page)) or "a backend that is enabled"
        if waiting != reported:
            on_wait(waiting)
            reported = waiting
        await asyncio.sleep(_INTERVAL)


def _is_only_disabled(page: dict[str, Any], loaded: Loaded) -> bool:
    waits_for = page.get("waits_for", ())
    return (
        bool(waits_for) and loaded.disabled.keys() >= set(waits_for) and not page.keys() & {"guards", "store"}
    )


def _reasons(page: dict[str, Any]) -> list[str]:
    backends = page.get("backends", {})
    # Without the advice to callers, which counts seconds and so is never twice the same.
    return [
        *(f"{name}: {backends[name].partition(' Try again')[0]}" for name in page.get("waits_for", ())),
        *(f"guard '{name}': {reason}" for name, reason in page.get("guards", {}).items()),
        *([f"the store: {page['store']}"] if "store" in page else []),
    ]


async def _get(host: str, port: int, path: str, token: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = (
            f"GET {path} HTTP/1.1",
            "host: tollgate",
            f"authorization: Bearer {token}",
            "connection: close",
        )
        writer.write("\r\n".join((*head, "", "")).encode())
        answer, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return int(answer[9:12]), body
    finally:
        writer.close()
