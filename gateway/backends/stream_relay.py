"""Pieces of text of a stream that nobody changes, from their server's bytes to their client's in one callback.

A lone piece costs a wake-up of its request's task, and a step of every generator between the model's server and the
client, most of which only look on. While the task waits for more of the answer, the read that brings a piece writes it
and tells those who look on. Whatever is not such a piece, or cannot be written at once, is left to the task.
"""

from __future__ import annotations

from gateway.backends.answer_limits import MAX_STREAM, AnswerLimits
from gateway.backends.timeouts import UpstreamTimeouts
from gateway.types import Sink
from gateway.wire import sse
from gateway.wire.event_template import EventTemplate

MOST = 2**14
"""Bytes that are passed on in one go: between two the client may have to be waited for, and others have their turn."""


class StreamRelay:
    """One stream's, from when its ``sink`` is open until the decoder has read its end. What the decoder has read of the
    stream it shares: ``reader``, ``template`` and ``limits``.
    """

    __slots__ = ("_half", "_limits", "_reader", "_template", "_timeouts", "is_refused", "sink")

    def __init__(
        self,
        sink: Sink,
        timeouts: UpstreamTimeouts,
        reader: sse.EventReader,
        template: EventTemplate,
        limits: AnswerLimits,
    ) -> None:
        self.sink = sink
        self._timeouts = timeouts
        self._reader = reader
        self._template = template
        self._limits = limits
        self._half = b""
        """The beginning of an event, which followed what was passed on last."""
        self.is_refused = False
        """There were pieces to pass on, and the sink did not take them."""

    def take(self, part: bytes) -> bytes:
        """Pass on the pieces that ``part`` begins with, all of them or none; what is left is for the decoder."""
        if self._half:
            part, self._half = self._half + part, b""
        template, limits = self._template, self._limits
        known = template.known
        if known is None or not self._reader.is_between:
            return part
        texts, end = template.texts(part, MOST)
        size = limits.size + end
        if not texts or size > MAX_STREAM:
            return part
        if not self.sink.pass_on(known, texts):
            self.is_refused = True
            return part
        limits.size = size - template.around * len(texts)
        self._timeouts.went_on()
        if end == len(part):
            return b""
        rest = part[end:]
        if b"\n\n" in rest or b"\r" in rest:
            return rest
        self._half = rest
        return b""
