"""A worker of the gateway that counts what its event loop runs: ``python -m tests.counted_worker``.

It is given a worker's environment (``gateway.process.worker``). Each line on standard input is answered by one on
standard output, in JSON:

    reset    begins to count, from zero
    turn     waits until the loop has read what had come and has done what followed at once
    read     what was run since, and counts no more: {"bytecodes": …, "calls": …, "by_file": {path: bytecodes}}
    modules  the names of all modules that it has loaded

Bytecodes and calls are those of Python code on the event loop's thread, of the gateway's and of libraries' alike: what
``sys.settrace`` reports. What runs in threads is left out, and what the clock brings: uvicorn's ten turns a second, the
loop's lag fifty times.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import CodeType, FrameType
from typing import Any

from gateway.process import worker
from gateway.process.worker import WorkerServer

TURNS = 5
"""In the first a packet is read; what it wakes is done in those that follow."""
_BY_THE_CLOCK = (
    *("main_loop", "on_tick", "_accept_waiting"),
    *("watch_lag", "observe_lag", "sleep", "_set_result_unless_cancelled"),
)


class Counted:
    """What was run since the last ``reset``."""

    def __init__(self) -> None:
        self.calls: dict[CodeType, int] = {}
        self.bytecodes: dict[CodeType, int] = {}

    def reset(self) -> None:
        self.calls.clear()
        self.bytecodes.clear()
        sys.settrace(self._on_call)

    def read(self) -> dict[str, Any]:
        sys.settrace(None)
        by_file: dict[str, int] = {}
        for code, count in self.bytecodes.items():
            by_file[code.co_filename] = by_file.get(code.co_filename, 0) + count
        return {
            "bytecodes": sum(self.bytecodes.values()),
            "calls": sum(self.calls.values()),
            "by_file": by_file,
        }

    def _on_call(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if code.co_name in _BY_THE_CLOCK or code.co_filename == __file__:
            return None
        self.calls[code] = self.calls.get(code, 0) + 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._on_bytecode

    def _on_bytecode(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            self.bytecodes[frame.f_code] = self.bytecodes.get(frame.f_code, 0) + 1
        return self._on_bytecode


def main() -> int:
    counted = Counted()
    startup = WorkerServer.startup

    async def start(server: WorkerServer, sockets: Any = None) -> None:
        await startup(server, sockets)
        loop = asyncio.get_running_loop()
        threading.Thread(target=_obey, args=(counted, loop), daemon=True).start()

    WorkerServer.startup = start  # type: ignore[method-assign]
    return worker.main()


def _obey(counted: Counted, loop: asyncio.AbstractEventLoop) -> None:
    print(json.dumps("ready"), flush=True)  # noqa: T201
    answers: SimpleQueue[Any] = SimpleQueue()

    def wait(turns: int) -> None:
        loop.call_soon(wait, turns - 1) if turns else answers.put(None)

    orders: dict[str, Callable[[], None]] = {
        "reset": lambda: answers.put(counted.reset()),
        "read": lambda: answers.put(counted.read()),
        "turn": lambda: wait(TURNS),
        "modules": lambda: answers.put(sorted(sys.modules)),
    }
    for line in sys.stdin:
        loop.call_soon_threadsafe(orders[line.strip()])
        print(json.dumps(answers.get()), flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
