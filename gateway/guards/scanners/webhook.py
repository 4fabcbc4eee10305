"""A guard elsewhere: an HTTP server that is shown texts, and says what it finds in them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import httpx

from gateway.findings import Finding
from gateway.guards.scanners.locality import stays
from gateway.guards.scanners.pii import apart
from gateway.guards.scanners.scanner import ORIGINS, Origin, Unscanned, Verdict
from gateway.guards.scanners.webhook_formats import findings, question
from gateway.policy.schema.guards import WebhookGuard
from gateway.types import Call

MAX_ANSWER = 2**20
"""Bytes of an answer."""
FAILURES, PAUSE = 5, 5.0
"""Failures in a row after which it is not asked for so many seconds: callers would wait for each."""


class Webhook:
    """The ``Scanner`` of one ``webhook`` guard. ``transport`` stays the caller's to close."""

    def __init__(
        self,
        name: str,
        config: WebhookGuard,
        transport: httpx.AsyncBaseTransport | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.origins: frozenset[Origin] = frozenset(ORIGINS) - {"identifier"}
        # Only where it says what is to be replaced must windows show it whole.
        self.longest = config.window if config.action in ("redact", "mask") else 0
        self._name = name
        self._config = config
        self._transport = transport
        self._slots = asyncio.Semaphore(config.max_concurrency)
        self._clock = clock
        self._failures = 0
        self._away_until = 0.0

    def quick(self, text: str, origin: Origin) -> Verdict | None:
        return None if text and not text.isspace() else Verdict(check="webhook")

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        if call is not None and not self._config.local and stays(call):
            raise Unscanned("its texts must stay local, and this guard is not marked 'local: true'")
        if self._failures >= FAILURES and self._clock() < self._away_until:
            raise Unscanned("its server does not answer")
        body = question(self._config, self._name, texts, origin, call)
        async with self._slots:
            asked = self._clock()
            try:
                found = findings(self._config, texts, await self._ask(body, call))
            except Unscanned:
                self._failed()
                raise
            except asyncio.CancelledError:  # by the guard's timeout, or a caller that has left
                if self._clock() - asked > self._config.timeout / 2:
                    self._failed()
                raise
        self._failures = 0
        return [self._verdict(each) for each in found]

    def _failed(self) -> None:
        self._failures += 1
        self._away_until = self._clock() + PAUSE

    async def _ask(self, body: bytes, call: Call | None) -> bytes:
        if self._transport is None:
            raise Unscanned("there is no network here")
        config = self._config
        request = httpx.Request(
            "POST",
            config.url,
            headers={
                "content-type": "application/json",
                "accept": "application/json",
                "accept-encoding": "identity",
                "user-agent": "tollgate",
                **({name: value for name, value in call.headers.items() if value} if call else {}),
                **{name: value.get_secret_value() for name, value in config.headers.items()},
            },
            content=body,
            extensions={"timeout": {"connect": config.timeout, "read": config.timeout}},
        )
        try:
            response = await self._transport.handle_async_request(request)
            try:
                if response.status_code != 200:
                    raise Unscanned(f"its server answered with status {response.status_code}")
                answer = bytearray()
                async for part in response.aiter_raw():
                    answer += part
                    if len(answer) > MAX_ANSWER:
                        raise Unscanned(f"its answer is longer than {MAX_ANSWER} bytes")
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            raise Unscanned(f"its server cannot be reached: {type(error).__name__}") from None
        return bytes(answer)

    def _verdict(self, found: Sequence[Finding]) -> Verdict:
        config = self._config
        counted = [
            one
            for one in found
            if any(fnmatchcase(one.label, pattern) for pattern in config.labels or ("*",))
        ]
        best = max((one.score for one in counted), default=0.0)
        sure = [one for one in counted if one.score >= config.threshold]
        return Verdict(tuple(apart(sure, {})), best, "webhook")
