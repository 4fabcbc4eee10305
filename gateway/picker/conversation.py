"""One HTTP request, as a gateway tells of it in one stream, and what is answered.

What a gateway waits for depends on how it sends bodies (``processing_mode.proto`` of Envoy's filter):

    NONE, STREAMED         an answer to the headers: the engine is picked before anything is known of the body
    BUFFERED, …_PARTIAL    an answer to the headers at once, and the engine in that to the whole body
    FULL_DUPLEX_STREAMED   nothing before the body has ended; then the engine in the answer to the headers, and the body
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from gateway.errors import BodyTooLarge, GatewayError
from gateway.metering.estimate import Estimator
from gateway.picker.answers import Answers, destination_of, served_by, subset_of
from gateway.picker.asked import LARGE, header_map, read_call
from gateway.picker.figures import Figures
from gateway.picker.pick import NoEndpoint, Pick, pick
from gateway.picker.pool import EnginePool
from gateway.picker.settings import PickerSettings
from gateway.wire import json_body


class BodyMode(IntEnum):
    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


class UnsupportedMode(Exception):
    """The gateway sends bodies in a way that is not served."""


class Conversation:
    """``close`` it, however the stream ends."""

    def __init__(
        self, pool: EnginePool, settings: PickerSettings, answers: Answers, figures: Figures
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._answers = answers
        self._figures = figures
        self._request_mode = self._response_mode = BodyMode.FULL_DUPLEX_STREAMED
        self._headers: dict[str, str] = {}
        self._subset: frozenset[str] | None = None
        self._parts: list[bytes] = []
        self._length = 0
        self._waiting = False
        """The headers are not answered yet."""
        self._pick: Pick | None = None
        self._began = False

    async def answer(self, request: Any) -> Iterator[Any] | list[Any]:
        """The messages to send now. After one that refuses the request nothing more is to be said.

        Raises ``UnsupportedMode``.
        """
        if request.HasField("protocol_config"):
            # Only a stream's first message has it. Who does not say does as the picker's protocol asks.
            self._request_mode = _mode(request.protocol_config.request_body_mode)
            self._response_mode = _mode(request.protocol_config.response_body_mode)
        what = request.WhichOneof("request")
        try:
            answers = await self._answered(what, request)
        except GatewayError as error:
            self._figures.refused(error)
            return [self._answers.refused(error, self._headers.get("x-request-id", ""))]
        return [] if request.observability_mode else answers

    def close(self) -> None:
        if self._pick is not None:
            self._pick.ended()
            self._pick = None

    async def _answered(self, what: str | None, request: Any) -> Iterator[Any] | list[Any]:
        match what:
            case "request_headers":
                return await self._request_headers(request)
            case "request_body":
                return await self._request_body(request.request_body)
            case "request_trailers":
                before = await self._whole(ended=False) if self._waiting else []
                return [*before, self._answers.passed(what)]
            case "response_headers":
                self._answered_by(request)
                return [self._answers.passed(what)]
            case "response_body":
                return self._response_body(request.response_body)
            case "response_trailers":
                self.close()
                return [self._answers.passed(what)]
        return []

    async def _request_headers(self, request: Any) -> list[Any]:
        self._headers = header_map(request.request_headers.headers)
        self._subset = subset_of(request)
        if request.request_headers.end_of_stream or self._request_mode in (BodyMode.NONE, BodyMode.STREAMED):
            destination, headers = await self._picked(None)
            return [self._answers.picked("request_headers", destination, headers)]
        if self._request_mode is BodyMode.FULL_DUPLEX_STREAMED:
            self._waiting = True
            return []
        return [self._answers.passed("request_headers")]

    async def _request_body(self, body: Any) -> list[Any]:
        if self._request_mode is BodyMode.FULL_DUPLEX_STREAMED:
            if not self._waiting:
                return []
            self._length += len(body.body)
            if self._length > self._settings.max_body:
                raise BodyTooLarge(f"The body is larger than {self._settings.max_body:,} bytes.")
            self._parts.append(body.body)
            return await self._whole(ended=True) if body.end_of_stream else []
        if self._request_mode is BodyMode.STREAMED:
            return [self._answers.passed("request_body")]
        # Of what is too long for a gateway's buffer it may send the beginning, of which nothing can be read.
        ended = body.end_of_stream or self._request_mode is BodyMode.BUFFERED
        whole = (body.body or None) if ended else None
        destination, headers = await self._picked(whole)
        rewritten = await self._rewritten(whole)
        if rewritten is not None:
            headers = {**headers, "content-length": str(len(rewritten))}
        return [self._answers.picked("request_body", destination, headers, rewritten)]

    async def _whole(self, *, ended: bool) -> list[Any]:
        """The answer to the headers, and the body; ``ended``: no trailers follow it."""
        self._waiting = False
        body = b"".join(self._parts)
        self._parts = []
        destination, headers = await self._picked(body or None)
        rewritten = await self._rewritten(body or None)
        if rewritten is not None:
            headers = {**headers, "content-length": str(len(rewritten))}
        return [
            self._answers.picked("request_headers", destination, headers),
            *self._answers.streamed("request_body", rewritten if rewritten is not None else body, end=ended),
        ]

    async def _picked(self, body: bytes | None) -> tuple[str, dict[str, str]]:
        """The destination, and what else the engine is to be told."""
        standing = self._pool.standing
        if standing is None or not self._pool.ready:
            raise NoEndpoint("It is not known yet which engines this pool has.", retry_after=1.0)
        began = time.perf_counter()
        call = await read_call(self._headers, body, standing.policy, standing.usual, self._estimator)
        if self._pick is not None:  # a gateway that begins anew within its stream
            self._pick.ended()
        settings = self._settings
        self._pick = await pick(
            self._pool,
            standing,
            call,
            subset=self._subset,
            patience=settings.patience,
            fallbacks=settings.fallbacks,
            seen=self._response_mode in (BodyMode.STREAMED, BodyMode.FULL_DUPLEX_STREAMED),
        )
        self._figures.picked(call.model, time.perf_counter() - began)
        return destination_of(self._pick), self._pick.hints()

    @property
    def _estimator(self) -> Estimator:
        return self._pool.estimator

    async def _rewritten(self, body: bytes | None) -> bytes | None:
        """The body with the model's name as the engine knows it, and its tenant's salt; None where it has these
        already, or is no JSON."""
        if body is None or self._pick is None or "json" not in self._headers.get("content-type", "json"):
            return None
        fields, limits = self._pick.fields(), self._pick.call.policy.limits
        if not fields:
            return None
        if len(body) < LARGE:
            return json_body.with_fields(body, limits, fields)
        return await asyncio.to_thread(json_body.with_fields, body, limits, fields)

    def _answered_by(self, request: Any) -> None:
        if self._pick is None:
            return
        status = header_map(request.response_headers.headers).get(":status", "")
        self._pick.answered(int(status) if status.isdecimal() else 0, served_by(request))
        if request.response_headers.end_of_stream:
            self.close()

    def _response_body(self, body: Any) -> Iterator[Any] | list[Any]:
        if self._pick is not None and body.body:
            if not self._began:
                self._began = True
                self._pick.began()
            self._pick.came(body.body)
        if body.end_of_stream:
            self.close()
        if self._response_mode is BodyMode.FULL_DUPLEX_STREAMED:
            return self._answers.streamed("response_body", body.body, end=body.end_of_stream)
        return [self._answers.passed("response_body")]


def _mode(said: int) -> BodyMode:
    """Raises ``UnsupportedMode``."""
    try:
        mode = BodyMode(said)
    except ValueError:
        raise UnsupportedMode(
            f"there is no body mode {said} here: send bodies FULL_DUPLEX_STREAMED"
        ) from None
    if mode is BodyMode.GRPC:
        raise UnsupportedMode("bodies of gRPC are not served: send them FULL_DUPLEX_STREAMED")
    return mode
