"""Long computations in a pool of processes, each of which is killed when its time is up.

A thread would not do: what computes in Python, or in C without giving up the interpreter's lock, stops all threads.
``python -m gateway.children.process_pool FD`` is such a process; it reads pickled calls from a socket and writes their
results. Only this program's own functions are called, by the process that started it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, ParamSpec, TypeVar

from gateway.children.child import DIE_WITH_PARENT

_P = ParamSpec("_P")
_T = TypeVar("_T")

_LENGTH = struct.Struct("!Q")
_PIECE = 2**18
_ENVIRONMENT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "HOME",
)
"""All that such a process inherits: it needs no provider's keys."""
_NICE = 5
_STUCK = 6
"""Times as long as it may work a call may wait for the processor, or whatever else it waits for."""
_EXIT_TIMEOUT = 5.0
"""Seconds in which one that has closed its pipe will have ended."""
_START = 30.0
"""Seconds for a process to start, and to load what a call needs."""


class ProcessDied(Exception):
    """The process ended before it was done: killed for its memory, perhaps."""


class PoolBusy(Exception):
    """No process was free in time."""


class ProcessPool:
    """Up to ``size`` processes, started when first needed. Each owner uses one of them at a time."""

    def __init__(self, size: int = 2, *, queue_timeout: float | None = None) -> None:
        """``queue_timeout``: seconds that a call may wait for its owner's slot and a free process."""
        self._queue_timeout = queue_timeout
        self._free = asyncio.Semaphore(size)
        self._idle: list[_Process] = []
        self._owners: dict[str, _OwnerSlot] = {}
        self._working: set[asyncio.Task[bytearray]] = set()
        self._closed = False

    async def run(
        self, owner: str, timeout: float, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """What ``function``, which is of some module's top level, returns or raises.

        Raises ``TimeoutError`` after ``timeout`` seconds of processor time, or many times as many seconds without a
        result; ``PoolBusy`` and ``ProcessDied``. Neither the wait for a free process counts, nor its start, nor the
        unpickling of arguments, nor time that other programs take. A call that is cancelled runs to its end, and keeps
        its owner's slot until then.
        """
        call = pickle.dumps((timeout, pickle.dumps((function, args, kwargs), pickle.HIGHEST_PROTOCOL)))
        async with AsyncExitStack() as slot:
            try:
                async with asyncio.timeout(self._queue_timeout):
                    await slot.enter_async_context(self._slot_of(owner))
                    await slot.enter_async_context(self._free)
            except TimeoutError:
                raise PoolBusy from None
            # A cancelled call runs to its end: a process that is killed takes long to replace, and others would wait.
            work = asyncio.create_task(self._work(timeout, call, slot.pop_all()))
        self._working.add(work)
        work.add_done_callback(self._ended)
        fine, result = pickle.loads(await asyncio.shield(work))
        if not fine:
            raise result
        return result  # type: ignore[no-any-return]

    async def _work(self, timeout: float, call: bytes, slot: AsyncExitStack) -> bytearray:
        async with slot:
            process = await self._living() or await _Process.start()
            try:
                async with asyncio.timeout(timeout * _STUCK + _START):
                    answer = await process.ask(call)
            except BaseException:  # whatever it is busy with now, it is not to go on with it
                await process.end()
                raise
            if self._closed:
                await process.end()
            else:
                self._idle.append(process)
            return answer

    def _ended(self, work: asyncio.Task[bytearray]) -> None:
        self._working.discard(work)
        if not work.cancelled():
            work.exception()  # it may be that nobody waits for it any more

    async def _living(self) -> _Process | None:
        """An idle one that nobody has killed meanwhile."""
        while self._idle:
            process = self._idle.pop()
            if not process.has_ended:
                return process
            await process.end()
        return None

    async def aclose(self) -> None:
        """End the processes, and whatever they compute."""
        self._closed = True
        working = list(self._working)
        for work in working:
            work.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        while self._idle:
            await self._idle.pop().end()

    @asynccontextmanager
    async def _slot_of(self, owner: str) -> AsyncIterator[None]:
        """One call of an owner's runs at a time, so that others wait for one of them at most."""
        slot = self._owners.setdefault(owner, _OwnerSlot())
        slot.users += 1
        try:
            async with slot.lock:
                yield
        finally:
            slot.users -= 1
            if not slot.users:
                self._owners.pop(owner, None)


class _OwnerSlot:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class _Process:
    def __init__(self, process: asyncio.subprocess.Process, pipe: socket.socket) -> None:
        self._process = process
        self._pipe = pipe

    @classmethod
    async def start(cls) -> _Process:
        """Raises ``ProcessDied`` where none can be started."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *(
                        *DIE_WITH_PARENT,
                        str(os.getpid()),
                        sys.executable,
                        "-m",
                        __name__,
                        str(theirs.fileno()),
                    ),
                    env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
        except BaseException as error:
            ours.close()
            if isinstance(error, OSError):
                raise ProcessDied(f"no process can be started: {error.strerror or error}") from None
            raise
        return cls(process, ours)

    @property
    def has_ended(self) -> bool:
        """Of one that has answered all: whether it was killed, perhaps a moment ago."""
        try:
            return not self._pipe.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    async def ask(self, call: bytes) -> bytearray:
        """Raises ``ProcessDied``, and ``TimeoutError`` if its time is up."""
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._pipe, _LENGTH.pack(len(call)))
            await loop.sock_sendall(self._pipe, call)
            (length,) = _LENGTH.unpack(await self._read(_LENGTH.size))
            return await self._read(length)
        except (OSError, ProcessDied) as error:
            await self.end()
            if self._process.returncode == -signal.SIGPROF:
                raise TimeoutError from None
            raise ProcessDied(str(error)) from None

    async def _read(self, length: int) -> bytearray:
        loop = asyncio.get_running_loop()
        whole = bytearray(length)
        position = 0
        while position < length:
            with memoryview(whole) as view:
                count = await loop.sock_recv_into(self._pipe, view[position : position + _PIECE])
            if not count:
                raise ProcessDied("the process ended")
            position += count
        return whole

    async def end(self) -> None:
        if self.has_ended:
            # What ended it is known once it has been waited for; a signal would be in the way of that.
            with suppress(TimeoutError):
                async with asyncio.timeout(_EXIT_TIMEOUT):
                    await self._process.wait()
        self._pipe.close()
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()


def _serve(pipe: socket.socket) -> None:
    with pipe, pipe.makefile("rb") as calls:
        while head := calls.read(_LENGTH.size):
            timeout, call = pickle.loads(calls.read(*_LENGTH.unpack(head)))
            function, args, kwargs = pickle.loads(call)
            # Nothing handles its signal: it ends the process, whatever holds the interpreter up (setitimer(2)).
            signal.setitimer(signal.ITIMER_PROF, timeout)
            answer = pickle.dumps(_outcome(function, args, kwargs), pickle.HIGHEST_PROTOCOL)
            signal.setitimer(signal.ITIMER_PROF, 0)
            pipe.sendall(_LENGTH.pack(len(answer)))
            pipe.sendall(answer)


def _outcome(function: Callable[..., object], args: Any, kwargs: Any) -> tuple[bool, object]:
    try:
        return True, function(*args, **kwargs)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return False, RuntimeError(type(error).__name__)
        return False, error.with_traceback(None)


if __name__ == "__main__":
    os.nice(_NICE)
    _serve(socket.socket(fileno=int(sys.argv[1])))
