"""A program that takes a port over as the engine does, and says which one it is: ``stub_engine.py NAME --port P …``.

It answers every request with its name, a POST as a chat completion, one whose path is ``/slow`` after half a second.
Named ``broken`` it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import sys


def bound(port: int, *, shared: bool) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    return listener


async def serve(name: str, port: int, standby: int | None) -> None:
    stop, promoted = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, promoted.set)
    open_requests: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b" /slow" in head:
            await asyncio.sleep(0.5)
        body = name.encode()
        if head.startswith(b"POST"):
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            await reader.readexactly(length)
            body = json.dumps({"choices": [{"message": {"content": name}}]}).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        await writer.drain()
        writer.close()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = loop.create_task(answer(reader, writer))
        open_requests.add(task)
        task.add_done_callback(open_requests.discard)

    listener = bound(port, shared=True) if standby is None else bound(standby, shared=False)
    server = await asyncio.start_server(accepted, sock=listener)
    print("serves", name, flush=True)  # noqa: T201
    if standby is not None:
        waiting = [loop.create_task(event.wait()) for event in (promoted, stop)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        if promoted.is_set():
            before, server = server, await asyncio.start_server(accepted, sock=bound(port, shared=True))
            before.close()
    await stop.wait()
    server.close()
    with contextlib.suppress(Exception):
        await asyncio.gather(*open_requests)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--standby-port", type=int)
    given = parser.parse_args()
    if given.name == "broken":
        sys.exit("out of memory, say")
    asyncio.run(serve(given.name, given.port, given.standby_port))


if __name__ == "__main__":
    main()
