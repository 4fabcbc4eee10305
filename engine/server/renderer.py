"""Chat templates with time and memory limits: the HTTP process's side of the processes in which they run."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from engine import channel
from engine.errors import InternalError, InvalidRequest, ModelUnavailable
from engine.server.rendering import (
    DONE,
    LENGTH,
    OUT_OF_MEMORY,
    REFUSED,
    RenderJob,
    RenderLimits,
    StartRendering,
)
from engine.server.template_files import Templates

log = logging.getLogger("engine.server")

_LARGE = 2**16
"""Bytes of messages from which a rendering goes to the process for slow ones, where it cannot hold up fast ones."""

_LEAVE = 2.0
"""Seconds after which a process that has closed its connection is killed."""

_PATIENCE = 60.0
"""Seconds after which a process that neither replies nor uses processor time is killed."""


class Renderer:
    """A model's chat template. Start it with ``Renderer.start``, and close it in any case."""

    def __init__(self, start: StartRendering) -> None:
        self.templates = start.templates
        self._small, self._large = _Lane(replace(start, brief=True)), _Lane(start)

    @classmethod
    async def start(
        cls, templates: Templates, tokens: Mapping[str, str] | None = None, bounds: RenderLimits | None = None
    ) -> Renderer:
        """``tokens``: as for ``ChatTemplate``. Raises ``ModelUnavailable`` if a template is not valid Jinja."""
        renderer = cls(StartRendering(templates, tokens or {}, bounds or RenderLimits()))
        try:
            await renderer._small.open()
        except BaseException:
            await renderer.close()
            raise
        return renderer

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        generation_prompt: bool = True,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """As ``ChatTemplate.render``; also raises ``InvalidRequest`` when it takes too much time or memory."""
        return await self._do(RenderJob(messages, tools, generation_prompt, variables=dict(variables)))

    async def render_open(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """As ``ChatTemplate.render_open``, with the same limits."""
        return await self._do(RenderJob(messages, tools, open=True, variables=dict(variables)))

    async def close(self) -> None:
        await self._small.close()
        await self._large.close()

    async def _do(self, job: RenderJob) -> str:
        try:
            data = channel.encode(job)
        except RecursionError:
            raise InvalidRequest("The messages are nested too deeply.", param="messages") from None
        if len(data) <= _LARGE:
            # A slow one that was not expected starts again in the process for slow ones.
            with suppress(_TooMuch):
                return await self._small.ask(data)
        try:
            return await self._large.ask(data)
        except _TooMuch as error:
            log.warning("the chat template took more than %s over one request: it was stopped", error)
            raise InvalidRequest(
                f"The model's chat template takes more than {error} over these messages, and was stopped. Send "
                "fewer or shorter ones.",
                param="messages",
            ) from None


class _TooMuch(Exception):
    """The limit that was exceeded."""


class _Lane:
    """One process and its queue. A process that has exited is replaced for the next in the queue."""

    def __init__(self, start: StartRendering) -> None:
        self._start = start
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> None:
        """Raises ``ModelUnavailable``."""
        async with self._lock:
            await self._opened()

    async def ask(self, job: bytes) -> str:
        """The prompt. Raises ``InvalidRequest``, ``_TooMuch``, and ``InternalError`` if the process exited for an
        unknown reason."""
        async with self._lock:
            try:
                await self._opened()
            except ModelUnavailable as error:  # though it did start before
                raise InternalError(error.message) from None
            kind, text = await self._exchange(job)
        if kind == REFUSED:
            param, _, message = text.partition("\n")
            raise InvalidRequest(message, param=param or None)
        return text

    async def close(self) -> None:
        """Ends the process, if there is one."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _opened(self) -> None:
        if self._streams is not None and self._process is not None and self._process.returncode is None:
            return
        await self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            path = os.pathsep.join(entry for entry in sys.path if entry)
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "engine.server.template_process", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )
        self._streams = await asyncio.open_unix_connection(sock=ours)
        try:
            kind, text = await self._exchange(channel.encode(self._start))
        except _TooMuch as error:
            raise ModelUnavailable(
                f"The model's chat template takes more than {error} to be compiled."
            ) from None
        if kind != DONE:
            raise ModelUnavailable(text)

    async def _exchange(self, data: bytes) -> tuple[bytes, str]:
        """Kind and text of the reply. A caller that is cancelled before it has come kills the process. Raises
        ``_TooMuch``."""
        assert self._streams is not None
        reader, writer = self._streams
        try:
            async with asyncio.timeout(_PATIENCE):
                writer.write(data)
                await writer.drain()
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                kind = await reader.readexactly(1)
                text = (await reader.readexactly(length)).decode(errors="surrogatepass")
        except (TimeoutError, EOFError, ConnectionError):
            raise await self._ended() from None
        except BaseException:
            await self.close()
            raise
        if kind == OUT_OF_MEMORY:
            await self.close()
            raise _TooMuch(f"{self._start.bounds.memory >> 20} MiB of memory")
        return kind, text

    async def _ended(self) -> Exception:
        """Why there is no reply."""
        status = None
        # Awaited before it is killed: otherwise asyncio may not learn how it exited by itself.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE):
                status = await self._process.wait() if self._process is not None else None
        await self.close()
        if status == -signal.SIGPROF:
            return _TooMuch(f"{self._start.bounds.seconds:g} s of processor time")
        log.error("the process that runs the chat template ended with status %s", status)
        return InternalError("The process that runs the model's chat template ended. Try again.")
