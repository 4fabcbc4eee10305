"""The way of scores to their receiver: JSON over HTTP, from a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

import httpx

from gateway.observe.batch_writer import BatchWriter
from gateway.observe.telemetry import score as forms
from gateway.observe.telemetry.otlp_json import logs
from gateway.observe.telemetry.score import Score
from gateway.policy import schema
from gateway.spans import Attributes
from gateway.version import version

log = logging.getLogger(__name__)

PAUSE = 2.0
"""Seconds before scores leave: their spans, which are exported each second, are to be there first."""
RETRIES = (1.0, 5.0, 25.0)
"""Seconds before each further attempt."""
BACKLOG = 10_000
_AGAIN = (404, 408, 409, 425, 429)
"""Statuses after which it may be taken later: 404 and 409 of a run that is not there yet."""


class _Refused(Exception):
    """It will never be taken; the text says why."""


class _Later(Exception):
    """It may be taken later."""


class ScoreSender:
    """One policy's. Scores that the receiver does not take are lost, not requests."""

    def __init__(
        self,
        config: schema.Telemetry,
        address: str,
        *,
        transport: httpx.BaseTransport | None = None,
        pause: float = PAUSE,
        retries: Sequence[float] = RETRIES,
    ) -> None:
        """``address`` is ``config.score_address``."""
        self._config = config
        given = config.scores.headers or config.headers
        self._project = next(
            (value.get_secret_value() for name, value in given.items() if name == "langsmith-project"), ""
        )
        self._client = httpx.Client(
            base_url=address,
            headers={name: value.get_secret_value() for name, value in given.items()},
            timeout=config.timeout,
            transport=transport,
        )
        self._address = address
        self._retries = tuple(retries)
        self._one_by_one = False
        """Whether this Langfuse takes scores alone, as releases before 5 do, and no list."""
        self._session: str | None = None
        self._deliver: Callable[[Score], None] = {
            "otlp": self._otlp,
            "langfuse": self._langfuse,
            "phoenix": self._phoenix,
            "langsmith": self._langsmith,
        }[config.scores.receiver]
        self._ending = threading.Event()
        self._writer = BatchWriter[Score]("scores", self._write, pause=pause, backlog=BACKLOG)

    def add(self, score: Score) -> None:
        self._writer.add(score)

    @property
    def lost(self) -> int:
        return self._writer.lost

    def flush(self, seconds: float) -> bool:
        """Block until all is sent or lost; False if that takes longer."""
        return self._writer.flush(seconds)

    def close(self) -> None:
        """Send what waits, within a few seconds."""
        self._ending.set()
        self._writer.close()
        self._client.close()

    def _write(self, batch: list[Score]) -> None:
        """Runs in the writer's thread."""
        waiting, why = batch, ""
        for pause in (*self._retries, None):
            waiting, why = self._tried(waiting)
            if not waiting or pause is None or self._ending.wait(pause):
                break
        self._lose(len(waiting), why)

    def _tried(self, scores: Sequence[Score]) -> tuple[list[Score], str]:
        """Those that are to be tried again, and why."""
        left, why = [], ""
        for score in scores:
            try:
                self._deliver(score)
            except _Later as later:
                left.append(score)
                why = str(later)
            except _Refused as refused:
                self._lose(1, str(refused))
        return left, why

    def _lose(self, count: int, why: str) -> None:
        if not count:
            return
        self._writer.lost += count
        message = (
            "'%s' does not take scores (%d are lost so far): %s; is telemetry.scores right, and do its headers hold "
            "the receiver's key?"
        )
        self._writer.warn(log, message, self._address, self._writer.lost, why)

    def _otlp(self, score: Score) -> None:
        config = self._config
        resource: Attributes = {
            "service.name": config.service,
            "service.version": version(),
            **config.resource,
        }
        self._send("POST", "/v1/logs", logs([forms.event(score)], resource))

    def _phoenix(self, score: Score) -> None:
        self._send("POST", "/v1/span_annotations", {"data": [forms.phoenix(score)]})

    def _langfuse(self, score: Score) -> None:
        body = forms.langfuse(score)
        if not self._one_by_one:
            status, told = self._asked("POST", "/api/public/scores", [body])
            if status != HTTPStatus.BAD_REQUEST:
                self._check(status)
                if status == HTTPStatus.MULTI_STATUS and told.get("rejected"):
                    raise _Refused(str(told.get("errors"))[:200])
                return
        self._send("POST", "/api/public/scores", body)
        self._one_by_one = True

    def _langsmith(self, score: Score) -> None:
        body = forms.langsmith(score)
        if (session := self._project_id()) is not None:
            body["session_id"] = session
        status, _ = self._asked("POST", "/feedback", body)
        if status == HTTPStatus.CONFLICT:  # it is there already, and is replaced
            changed = {name: body.get(name) for name in ("score", "value", "comment")}
            status, _ = self._asked("PATCH", f"/feedback/{body['id']}", changed)
        self._check(status)

    def _project_id(self) -> str | None:
        """LangSmith's id of the project of the traces: without it newer releases do not find the run."""
        if self._session is None:
            name = self._project or "default"
            status, told = self._asked("GET", f"/sessions?{httpx.QueryParams(name=name, limit=1)}", None)
            if status == HTTPStatus.OK and isinstance(told, list) and told:
                self._session = str(told[0].get("id"))
        return self._session

    def _send(self, method: str, path: str, body: Any) -> None:
        status, _ = self._asked(method, path, body)
        self._check(status)

    def _check(self, status: int) -> None:
        if status >= 500 or status in _AGAIN:
            raise _Later(f"status {status}")
        if not 200 <= status < 300:
            raise _Refused(f"status {status}")

    def _asked(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        try:
            response = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise _Later(f"it cannot be reached ({type(error).__name__})") from None
        try:
            return response.status_code, response.json()
        except ValueError:
            return response.status_code, {}
