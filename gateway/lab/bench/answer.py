"""An answer while it arrives: when which piece came, and how it ended."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from time import monotonic

import orjson

from gateway.lab.bench.apis import Api, ApiError, Told, error_in
from gateway.lab.bench.sample import Failure, Kind
from gateway.wire.sse import EventReader, EventTooLarge


class Answer:
    """Of one request. ``keep_text`` where the next turn of a conversation needs it."""

    __slots__ = (
        "_api",
        "_done",
        "_event",
        "_keep",
        "_reader",
        "chunks",
        "failure",
        "first",
        "gaps",
        "last",
        "text",
        "told",
    )

    def __init__(self, api: Api, *, keep_text: bool = False) -> None:
        self.told = Told()
        self.first: float | None = None
        """When the first text came."""
        self.last: float | None = None
        self.gaps = array("d")
        """Seconds between events with text."""
        self.chunks = 0
        """Events with text."""
        self.text: list[str] = []
        self.failure: Failure | None = None
        self._api = api
        self._event: Callable[..., str] = api.event
        self._keep = keep_text
        self._reader = EventReader()
        self._done = False

    def take(self, part: bytes) -> bytes:
        """What has come of a stream; never raises, and leaves nothing."""
        now = monotonic()
        try:
            for data in self._reader.feed(part):
                if data == b"[DONE]":
                    self._done = True
                elif text := self._event(orjson.loads(data), self.told):
                    if self.last is None:
                        self.first = now
                    else:
                        self.gaps.append(now - self.last)
                    self.last = now
                    self.chunks += 1
                    if self._keep:
                        self.text.append(text)
        except ApiError as error:
            self._fail(Failure("error event", code=error.code, message=str(error)))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, EventTooLarge) as error:
            self._fail(Failure("malformed", message=f"{type(error).__name__}: {error}"))
        return b""

    def end(self) -> None:
        """The stream is over: in good order?"""
        if not self._done and not self.told.finish:
            self._fail(Failure("broken stream", message="it ended without a finish reason"))

    def take_whole(self, body: bytes) -> None:
        try:
            text = self._api.whole(orjson.loads(body), self.told)
        except ApiError as error:
            self._fail(Failure("error event", code=error.code, message=str(error)))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            self._fail(Failure("malformed", message=f"{type(error).__name__}: {error}"))
        else:
            self.text.append(text)

    def take_refusal(self, status: int, body: bytes) -> None:
        """An answer with another status than 200."""
        try:
            code, message = error_in(orjson.loads(body))
        except ValueError:
            code, message = "", body[:200].decode("utf-8", "replace")
        kind: Kind = "refused" if status == 429 else "overloaded" if status in (503, 529) else "status"
        self._fail(Failure(kind, status=status, code=code, message=message))

    def _fail(self, failure: Failure) -> None:
        """The first is the cause of those after it."""
        self.failure = self.failure or failure
