"""A process in which chat templates run, and which may be killed at any time. ``python -m
engine.server.template_process FD``

A template is a program that came with a checkpoint, and callers choose what it runs on: it may loop for ever, or double
a text forty times, in one operation that Python cannot interrupt. So the operating system limits it: the kernel kills
this process once a rendering has used its processor time, and refuses memory beyond the limit.
"""

from __future__ import annotations

import resource
import signal
import socket
import sys
from contextlib import suppress

from engine.channel import Channel
from engine.errors import InvalidRequest, ModelUnavailable
from engine.server.chat_template import ChatTemplate
from engine.server.rendering import DONE, LENGTH, OUT_OF_MEMORY, REFUSED, UNUSABLE, RenderJob, StartRendering

_REASON = 2000
"""Characters of a refusal: a template may raise any text."""


class Worker:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._channel = Channel(connection)
        self._seconds = 0.0
        self._template: ChatTemplate | None = None

    def run(self) -> None:
        """Until memory runs out. Raises ``EOFError`` when the HTTP process has exited."""
        with suppress(MemoryError):
            while True:
                for message in self._channel.receive(None):
                    kind, text = self._timed(message)
                    self._send(kind, text)
        # Outside the try block the rendering's memory is free again.
        self._send(OUT_OF_MEMORY)

    def _timed(self, message: StartRendering | RenderJob) -> tuple[bytes, str]:
        if isinstance(message, StartRendering):
            self._seconds = message.bounds.seconds  # whatever is done later: it is compiled once
            # Where it cannot be set (a lower one is set already, or the system has none), time is still limited.
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_AS, (message.bounds.memory, message.bounds.memory))
        # Its signal has no handler, and so kills the process.
        signal.setitimer(signal.ITIMER_PROF, self._seconds)
        try:
            return self._start(message) if isinstance(message, StartRendering) else self._render(message)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            if isinstance(message, StartRendering) and message.brief:
                self._seconds = message.bounds.brief

    def _start(self, start: StartRendering) -> tuple[bytes, str]:
        try:
            self._template = ChatTemplate(start.templates, start.tokens, longest=start.bounds.characters)
        except ModelUnavailable as error:
            return UNUSABLE, error.message
        return DONE, ""

    def _render(self, job: RenderJob) -> tuple[bytes, str]:
        if self._template is None:
            raise TypeError("the first message must be Start")
        try:
            if job.open:
                return DONE, self._template.render_open(job.messages, job.tools, job.variables)
            return DONE, self._template.render(
                job.messages,
                job.tools,
                generation_prompt=job.generation_prompt,
                variables=job.variables,
            )
        except InvalidRequest as error:
            return REFUSED, f"{error.param or ''}\n{error.message[:_REASON]}"

    def _send(self, kind: bytes, text: str = "") -> None:
        payload = text.encode(errors="surrogatepass")
        self._connection.sendall(LENGTH.pack(len(payload)) + kind + payload)


def main(fd: int) -> int:
    # The HTTP process ends this one by closing the socket.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    try:
        Worker(socket.socket(fileno=fd)).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
