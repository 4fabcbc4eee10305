"""Changes that were refused before they were begun, for the audit log: those that it would not know of otherwise.

Only of callers who may open the admin API, and so many a minute: each entry is written to the disk at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from starlette.types import Scope

from gateway.admin.site import RefusedChange, Site, actor_of
from gateway.errors import GatewayError
from gateway.types import Principal
from gateway.web.session_auth import CHANGE_NOTHING

log = logging.getLogger(__name__)

ACTION = "request.refuse"
MOST = 60
"""Entries a minute of one worker."""
_MINUTE = 60.0
_LONGEST_PATH = 300


class Refusals:
    def __init__(self, site: Site, clock: Callable[[], float] = time.monotonic) -> None:
        self._site = site
        self._clock = clock
        self._began = float("-inf")
        self._entries = 0
        self._left_out = 0

    async def record(self, scope: Scope, principal: Principal, error: GatewayError) -> None:
        """Enter it where it is one of a change that is in the log not yet."""
        if scope["method"] in ("GET", "HEAD") or scope["path"] in CHANGE_NOTHING:
            return
        if isinstance(error, RefusedChange) or error.status >= 500 or not self._may_enter():
            return
        facts = {"left_out": self._left_out} if self._left_out else {}
        self._left_out = 0
        actor = actor_of(scope, principal)
        target = f"{scope['method']} {scope['path'][:_LONGEST_PATH]}"
        try:
            await asyncio.to_thread(
                self._site.audit_log.add, actor, ACTION, target, error=error.message, **facts
            )
        except OSError as failure:
            log.error("a refused change of '%s' is not in the audit log: %s", actor.name, failure.strerror)

    def _may_enter(self) -> bool:
        now = self._clock()
        if now - self._began >= _MINUTE:
            self._began, self._entries = now, 0
        self._entries += 1
        if self._entries > MOST:
            self._left_out += 1
            return False
        return True
