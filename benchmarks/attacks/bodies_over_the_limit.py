"""Bodies of twice the limit: does who sends them learn why they are refused?"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator

import httpx
import openai

from benchmarks.attacks.frame import MALLORY, Gateway, Rig, must

POINT = "30.14"
TRIED = (
    "64 MiB to a gateway that takes 32: declared, chunked and to be closed, by plain sockets, httpx and OpenAI's "
    "client, blocking and not"
)
HOLDS = "each is told 413 with OpenAI's body, and no connection is reset before"
SIZE, PIECE = 64 * 2**20, 2**18


async def attack(rig: Rig) -> str:
    gateway = await rig.gateway(rig.policy())
    got = {
        "declared": await asyncio.to_thread(_by_socket, gateway, f"content-length: {SIZE}\r\n", False),
        "chunked": await asyncio.to_thread(_by_socket, gateway, "transfer-encoding: chunked\r\n", True),
        "closing": await asyncio.to_thread(
            _by_socket, gateway, f"content-length: {SIZE}\r\nconnection: close\r\n", False
        ),
        "httpx": await asyncio.to_thread(_by_httpx, gateway, b" " * SIZE),
        "httpx, chunked": await asyncio.to_thread(_by_httpx, gateway, _pieces()),
        "async httpx": await _by_async_httpx(gateway, b" " * SIZE),
        "async httpx, chunked": await _by_async_httpx(gateway, _async_pieces()),
        "openai": await asyncio.to_thread(_by_openai, gateway),
        "async openai": await _by_async_openai(gateway),
    }
    told = "; ".join(f"{name}: {what}" for name, what in got.items())
    must(all(what == "413" for what in got.values()), told)
    return f"{len(got)} of {len(got)} told 413"


def _pieces() -> Iterator[bytes]:
    return (b" " * PIECE for _ in range(SIZE // PIECE))


def _by_socket(gateway: Gateway, framing: str, chunked: bool) -> str:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {MALLORY}\r\n{framing}\r\n"
    )
    got = b""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as sock:
        try:
            sock.sendall(head.encode())
            for piece in _pieces():
                sock.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            if chunked:
                sock.sendall(b"0\r\n\r\n")
        except OSError as error:
            return type(error).__name__
        try:
            while b'"code"' not in got and (data := sock.recv(2**16)):
                got += data
        except OSError as error:
            return type(error).__name__
    return got[9:12].decode()


def _by_httpx(gateway: Gateway, content: bytes | Iterator[bytes]) -> str:
    headers = {"authorization": f"Bearer {MALLORY}", "content-type": "application/json"}
    url = f"{gateway.url}/v1/chat/completions"
    try:
        with httpx.Client(timeout=60, trust_env=False) as client:
            answer = client.post(url, content=content, headers=headers)
    except httpx.TransportError as error:
        return type(error).__name__
    return str(answer.status_code) if answer.json()["error"]["code"] else answer.text[:50]


async def _async_pieces() -> AsyncIterator[bytes]:
    for piece in _pieces():
        yield piece


async def _by_async_httpx(gateway: Gateway, content: bytes | AsyncIterator[bytes]) -> str:
    headers = {"authorization": f"Bearer {MALLORY}", "content-type": "application/json"}
    url = f"{gateway.url}/v1/chat/completions"
    try:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            answer = await client.post(url, content=content, headers=headers)
    except httpx.TransportError as error:
        return type(error).__name__
    return str(answer.status_code) if answer.json()["error"]["code"] else answer.text[:50]


async def _by_async_openai(gateway: Gateway) -> str:
    client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=MALLORY, max_retries=0)
    try:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * SIZE}])
    except openai.APIStatusError as error:
        return str(error.status_code)
    except openai.APIConnectionError as error:
        return type(error).__name__
    return "200"


def _by_openai(gateway: Gateway) -> str:
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=MALLORY, max_retries=0)
    try:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * SIZE}])
    except openai.APIStatusError as error:
        return str(error.status_code)
    except openai.APIConnectionError as error:
        return type(error).__name__
    return "200"
