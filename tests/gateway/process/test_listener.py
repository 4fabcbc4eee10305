"""New connections do not wait for one turn of a busy event loop each."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from gateway.process.listener import ACCEPTED, accepting, listen

uvloop = pytest.importorskip("uvloop")

WAITING = 5 * ACCEPTED


async def turns_until_all_are_in(handles: list[socket.socket]) -> int:
    """The turns of the loop until ``WAITING`` connections, all there at once, are accepted."""
    loop = asyncio.get_running_loop()
    clients = [socket.create_connection(handles[0].getsockname()) for _ in range(WAITING)]
    accepted: list[asyncio.BaseTransport] = []

    class Served(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(transport)

    servers = [await loop.create_server(Served, sock=handle) for handle in handles]
    turns = 0
    async with asyncio.timeout(60):
        while len(accepted) < WAITING:
            await asyncio.sleep(0)
            turns += 1
    for client in clients:
        client.close()
    for transport in accepted:
        transport.close()
    for server in servers:
        server.close()
        await server.wait_closed()
    return turns


def test_many_are_accepted_in_a_turn() -> None:
    (plain,), (listener,) = listen("127.0.0.1", 0), listen("127.0.0.1", 0)
    one_by_one = uvloop.run(turns_until_all_are_in([plain]))
    together = uvloop.run(turns_until_all_are_in(accepting(listener)))
    assert together <= WAITING // ACCEPTED + 5 < one_by_one


def test_closed_with_all_copies() -> None:
    (listener,) = listen("127.0.0.1", 0)
    handles = accepting(listener)
    address = listener.getsockname()
    for handle in handles:
        handle.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_a_worker_lets_no_other_holder_of_its_socket_wait() -> None:
    """The supervisor answers on it until a worker does: one that waited there would do nothing else."""
    (listener,) = listen("127.0.0.1", 0)
    with listener, socket.socket(fileno=os.dup(listener.fileno())) as handed_on:
        for handle in accepting(handed_on)[1:]:
            handle.close()
        assert not os.get_blocking(listener.fileno())
