"""A guard elsewhere: an HTTP server that is shown texts, and says what it finds in them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import count
from typing import Protocol

import httpx
import orjson
from pydantic import ValidationError

from gateway.findings import Finding
from gateway.guards.scanners.covering import Covered, Private
from gateway.guards.scanners.locality import stays
from gateway.guards.scanners.pii import apart
from gateway.guards.scanners.scanner import ORIGINS, Origin, Unscanned, Verdict
from gateway.guards.scanners.webhook_formats import OWN, Question, WrongNumber
from gateway.guards.scanners.webhook_services import SERVICES
from gateway.policy.schema.webhook_guard import WebhookGuard
from gateway.residency import is_outside
from gateway.types import Call

FORMATS = {**OWN, **SERVICES}
MAX_ANSWER = 2**20
"""Bytes of an answer."""
FAILURES, PAUSE = 5, 5.0
"""After so many failures in a row one question in so many seconds is asked: callers would wait for each."""


class Reply(Protocol):
    """The answer to a post, its body still to be read."""

    status: int

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Raises ``httpx.TransportError``."""
        ...

    async def aclose(self) -> None: ...


class Poster(Protocol):
    async def post(self, url: str, headers: Mapping[str, str], body: bytes, *, connect: float) -> Reply:
        """Raises ``httpx.TransportError``."""
        ...


class Webhook:
    """The ``Scanner`` of one ``webhook`` guard."""

    def __init__(
        self,
        name: str,
        config: WebhookGuard,
        poster: Poster | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.origins: frozenset[Origin] = frozenset(ORIGINS) - {"identifier"}
        # Only where it says what is to be replaced must windows show it whole.
        edits = config.action in ("redact", "mask") or config.has_remedies
        self.longest = config.window if edits else 0
        self._name = name
        self._config = config
        self._format = FORMATS[config.format]
        self._private = Private() if config.texts == "masked" else None
        self._headers = _headers(config)
        self._poster = poster
        self._numbers = count(1)
        self._slots = asyncio.Semaphore(config.max_concurrency)
        self._clock = clock
        self._failures = 0
        self._away_until = 0.0

    def quick(self, text: str, origin: Origin) -> Verdict | None:
        return None if text and not text.isspace() else Verdict(check="webhook")

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        if call is not None and not self._config.local and stays(call):
            raise Unscanned("its texts must stay local, and this guard is not marked 'local: true'")
        if call is not None and is_outside(call, self._config.region):
            raise Unscanned("its texts stay in regions of which this guard's is none, see 'residency'")
        if self._format.takes_many:
            return await self._asked(texts, origin, call)
        tasks = [asyncio.ensure_future(self._asked([text], origin, call)) for text in texts]
        try:
            return [verdict for verdicts in await asyncio.gather(*tasks) for verdict in verdicts]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _asked(self, texts: Sequence[str], origin: Origin, call: Call | None) -> list[Verdict]:
        covered = [Covered(text, self._private.find(text) if self._private else ()) for text in texts]
        shown = [one.text for one in covered]
        body = orjson.dumps(self._format.body(Question(self._config, self._name, shown, origin, call)))
        async with self._slots:
            self._spare()
            asked = self._clock()
            try:
                found = self._read(shown, await self._post(body, call))
            except Unscanned:
                self._failed()
                raise
            except asyncio.CancelledError:  # by the guard's timeout, or a caller that has left
                if self._clock() - asked > self._config.timeout / 2:
                    self._failed()
                raise
        self._failures = 0
        return [
            self._verdict(one.in_original(findings)) for one, findings in zip(covered, found, strict=True)
        ]

    def _spare(self) -> None:
        """Raises ``Unscanned`` for all but an occasional question while the server does not answer."""
        if self._failures >= FAILURES:
            now = self._clock()
            if now < self._away_until:
                raise Unscanned("its server has not answered lately, and is not asked for a while")
            self._away_until = now + PAUSE

    def _failed(self) -> None:
        self._failures += 1
        self._away_until = self._clock() + PAUSE

    async def _post(self, body: bytes, call: Call | None) -> bytes:
        if self._poster is None:
            raise Unscanned("there is no network here")
        headers = {**(call.headers if call is not None else {}), **self._headers}
        if call is not None:  # of one request there may be many questions
            headers["x-request-id"] = f"{call.request_id}-{next(self._numbers):x}"
        try:
            response = await self._poster.post(self._config.url, headers, body, connect=self._config.timeout)
            try:
                if response.status != 200:
                    raise Unscanned(f"its server answered with status {response.status}")
                answer = bytearray()
                async for part in response:
                    answer += part
                    if len(answer) > MAX_ANSWER:
                        raise Unscanned(f"its answer is longer than {MAX_ANSWER} bytes")
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            raise Unscanned(f"its server cannot be reached: {type(error).__name__}") from None
        return bytes(answer)

    def _read(self, texts: Sequence[str], body: bytes) -> list[list[Finding]]:
        try:
            return self._format.read(texts, body)
        except ValidationError as error:  # its message may hold the text
            where = ".".join(str(step) for step in error.errors()[0]["loc"])
            form = self._config.format
            raise Unscanned(f"its answer is not in the format '{form}'{where and f', at {where}'}") from None
        except WrongNumber as error:
            raise Unscanned(str(error)) from None

    def _verdict(self, found: Sequence[Finding]) -> Verdict:
        config = self._config
        counted = [
            one
            for one in found
            if one.remedy is not None
            or any(fnmatchcase(one.label, pattern) for pattern in config.labels or ("*",))
        ]
        best = max((one.score for one in counted), default=0.0)
        sure = [one for one in counted if one.remedy is not None or one.score >= config.threshold]
        return Verdict(tuple(apart(sure, {})), best, "webhook")


def _headers(config: WebhookGuard) -> dict[str, str]:
    own = {
        "content-type": "application/json",
        "accept": "application/json",
        "accept-encoding": "identity",
        "user-agent": "tollgate",
    }
    if config.api_key is not None:
        own["authorization"] = f"Bearer {config.api_key.get_secret_value()}"
    return own | {name.lower(): value.get_secret_value() for name, value in config.headers.items()}
