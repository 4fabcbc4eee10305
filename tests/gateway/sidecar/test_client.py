"""The client and the server over a real socket; what the server does is the test's to say."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.findings import Finding
from gateway.sidecar.api import Hit, LookupResult, Scored, SidecarBusy, SidecarDown, SidecarError
from gateway.sidecar.client import NoSidecar, SidecarClient
from gateway.sidecar.protocol import encode
from gateway.sidecar.server import Response, serve

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Workers run on uvloop, whose transports are of another make."""
    return "asyncio", {"use_uvloop": request.param}


class Script:
    """Answers as told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any], bytes]] = []
        self.cancelled = 0
        self.waiting = 0
        self.released = asyncio.Event()
        self.answers: dict[str, Response | Exception] = {}

    async def __call__(self, op: str, arguments: Mapping[str, Any], payload: bytes) -> Response:
        self.asked.append((op, dict(arguments), payload))
        if arguments.get("texts") == ["wait"]:
            self.waiting += 1
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            finally:
                self.waiting -= 1
        answer = self.answers.get(op, ({}, b"\0\0\0\0" * len(arguments.get("texts", ()))))
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def path() -> Any:
    with tempfile.TemporaryDirectory(prefix="tg-") as folder:
        yield Path(folder) / "s"


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
async def client(path: Path, script: Script) -> AsyncIterator[SidecarClient]:
    server = await serve(path, script)
    client = SidecarClient(path)
    yield client
    await client.aclose()
    await closed(server)


async def closed(server: asyncio.Server) -> None:
    server.close()
    await asyncio.sleep(0.01)  # its connections learn of their end in the next turns of the loop


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_what_is_asked_arrives_and_so_do_the_answers(client: SidecarClient, script: Script) -> None:
    script.answers = {
        "embed": ({}, b"abcdefgh"),
        "score": ({"scores": [[(0, 4, {"hate": 0.25})]]}, b""),
        "classify": ({"scores": [[]]}, b""),
        "entities": ({"found": [[("PERSON", 1, 3, 0.5)], []]}, b""),
        "look_up": ({"hit": (0.9, 0.8, 7.0), "reason": "hit", "similarity": 0.9}, b"payload"),
        "status": ({"models": {}}, b""),
    }
    assert await client.embed(["a", "b"]) == [b"abcd", b"efgh"]
    assert await client.embed([]) == []
    assert await client.score("toxicity", ["text"]) == [[Scored(0, 4, {"hate": 0.25})]]
    assert await client.classify("a/model", ["text"]) == [[]]
    found = await client.entities(["x", "y"], language="en", entities=["PERSON"])
    assert found == [[Finding("PERSON", 1, 3, 0.5)], []]
    look = await client.look_up("p", "q", budget=0.05, floor=0.1)
    assert look == LookupResult(Hit(b"payload", 0.9, 0.8, 7.0), "hit", 0.9)
    await client.remember("p", "q", b"\xff" * 9, key="k", ttl=1.5)
    await client.forget("p", "k")
    assert await client.status() == {"models": {}}
    assert (
        "remember",
        {"partition": "p", "question": "q", "key": "k", "ttl": 1.5},
        b"\xff" * 9,
    ) in script.asked
    assert ("entities", {"texts": ["x", "y"], "language": "en", "entities": ["PERSON"]}, b"") in script.asked


async def test_a_look_without_a_hit(client: SidecarClient, script: Script) -> None:
    script.answers["look_up"] = ({"hit": None, "reason": "number", "similarity": 0.97}, b"")
    assert await client.look_up("p", "q", budget=0.05, floor=0) == LookupResult(None, "number", 0.97)


async def test_answers_may_overtake_each_other(client: SidecarClient, script: Script) -> None:
    slow = asyncio.create_task(client.embed(["wait"]))
    await until(lambda: script.waiting)
    assert await client.embed(["quick"]) == [b"\0" * 4]
    script.released.set()
    assert await slow == [b"\0" * 4]


async def test_errors_arrive_as_what_they_are(client: SidecarClient, script: Script) -> None:
    script.answers["embed"] = SidecarBusy("full")
    with pytest.raises(SidecarBusy, match="full"):
        await client.embed(["x"])


async def test_a_bug_is_told_without_its_message(client: SidecarClient, script: Script) -> None:
    script.answers["embed"] = KeyError("the text")
    with pytest.raises(SidecarError, match=r"^'embed' failed \(KeyError\)$"):
        await client.embed(["x"])


async def test_a_cancelled_request_is_cancelled_over_there(client: SidecarClient, script: Script) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.embed(["wait"])
    await until(lambda: script.cancelled == 1)
    assert await client.embed(["x"]) == [b"\0" * 4]


async def test_a_client_that_goes_away_leaves_no_work(client: SidecarClient, script: Script) -> None:
    tasks = [asyncio.create_task(client.embed(["wait"])) for _ in range(3)]
    await until(lambda: script.waiting == 3)
    await client.aclose()
    await until(lambda: script.cancelled == 3)
    for task in tasks:
        with pytest.raises(SidecarDown, match="shutting down"):
            await task
    with pytest.raises(SidecarDown, match="shutting down"):
        await client.embed(["x"])


async def test_a_request_larger_than_a_frame_is_refused_here(client: SidecarClient, script: Script) -> None:
    with pytest.raises(SidecarError, match="too large"):
        await client.remember("p", "q", bytes(64 * 2**20), key="k", ttl=1)
    assert script.asked == []


async def test_half_surrogates_are_no_error(client: SidecarClient, script: Script) -> None:
    await client.embed(["\udc80"])
    assert script.asked[0][1] == {"texts": ["?"]}


async def test_after_a_failed_attempt_requests_fail_at_once_for_a_growing_pause(
    path: Path, script: Script
) -> None:
    now = 0.0
    client = SidecarClient(path, clock=lambda: now)
    for pause in (0.05, 0.1, 0.2, 0.4, 0.5, 0.5):
        with pytest.raises(SidecarDown, match="No such file"):
            await client.embed(["x"])
        now += pause - 0.001
        with pytest.raises(SidecarDown, match="again in a moment"):
            await client.embed(["x"])
        now += 0.001
    server = await serve(path, script)
    assert await client.embed(["x"]) == [b"\0" * 4]
    await client.aclose()
    await closed(server)


async def test_all_that_wait_share_one_attempt(path: Path, script: Script) -> None:
    connections = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(silent, str(path))
    client = SidecarClient(path)
    tasks = [asyncio.create_task(client.embed(["x"])) for _ in range(5)]
    await until(lambda: connections)
    tasks[0].cancel()
    await asyncio.sleep(0.01)
    assert (connections, tasks[1].done()) == (1, False)
    await client.aclose()
    for task in tasks[1:]:
        with pytest.raises(SidecarDown, match="shutting down"):
            await task
    await closed(server)


@pytest.mark.parametrize("greeting", [encode({"tollgate-sidecar": 99}), b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_whoever_else_listens_there_is_no_sidecar(path: Path, greeting: bytes) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(other, str(path))
    client = SidecarClient(path)
    with pytest.raises(SidecarDown, match="cannot be reached"):
        await client.embed(["x"])
    await client.aclose()
    await closed(server)


async def test_the_socket_is_this_users_alone(path: Path, script: Script) -> None:
    server = await serve(path, script)
    assert path.stat().st_mode & 0o077 == 0  # noqa: ASYNC240
    await closed(server)


async def test_without_a_sidecar_all_say_what_to_do() -> None:
    with pytest.raises(SidecarDown, match="tollgate serve"):
        await NoSidecar().embed(["x"])
    with pytest.raises(SidecarDown, match="tollgate serve"):
        await NoSidecar().status()
    await NoSidecar().aclose()


async def test_a_look_with_the_projection_of_the_question(client: SidecarClient, script: Script) -> None:
    script.answers["look_up"] = (
        {"hit": None, "reason": "empty", "similarity": None, "projection": [3, -1]},
        b"",
    )
    look = await client.look_up("p", "q", budget=0.05, floor=0, projects=True)
    assert look == LookupResult(None, "empty", None, (3, -1))
    (asked,) = [one for one in script.asked if one[0] == "look_up"]
    assert asked[1]["projects"] is True
