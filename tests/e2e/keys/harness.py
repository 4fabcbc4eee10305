"""Experiments that show what a key of the policy does: the same is asked of a gateway with it and of one without.

Each gateway is the whole of one worker on a real socket; ``up`` and ``other`` are model servers behind it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import httpx
import orjson

from tests.fakes import FakeUpstream, Script, completion, reply
from tests.serving import KEY, OPERATOR, OTHER_KEY, Gateway, chat, key, serving

Json = Any
Look = Callable[["Site"], Awaitable[Any]]
Test = TypeVar("Test", bound=Callable[..., Any])

UP, OTHER = "http://up.invalid/v1", "http://other.invalid/v1"
"""Stand in a policy for the addresses of the two model servers."""
PATIENCE, BEAT = 1.0, 0.01
"""Seconds after which a request that has no answer is taken to wait, and of one look at it."""


@dataclass
class Site:
    """A gateway, what stands behind it, and ways to ask it."""

    gateway: Gateway
    up: FakeUpstream
    other: FakeUpstream
    folder: Path

    async def ask(
        self,
        content: str = "Hi",
        *,
        model: str = "m",
        token: str = KEY,
        headers: Mapping[str, str] = {},
        **body: Json,
    ) -> httpx.Response:
        told = {"authorization": f"Bearer {token}", **headers}
        return await self.gateway.http.post(
            "/v1/chat/completions", json=chat(model, content, **body), headers=told
        )

    async def post(self, path: str, body: Json, **headers: str) -> httpx.Response:
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.gateway.http.post(path, json=body, headers=told)

    async def receipt(self, response: httpx.Response, token: str = KEY) -> dict[str, Any]:
        path = f"/v1/requests/{response.headers['x-request-id']}"
        headers = {"authorization": f"Bearer {token}"}
        async with asyncio.timeout(300):
            while (found := await self.gateway.http.get(path, headers=headers)).status_code == 404:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return dict(found.json())

    async def until(self, true: Callable[[], Any]) -> None:
        """Wait for what happens beside the answer."""
        async with asyncio.timeout(300):
            while not true():  # noqa: ASYNC110
                await asyncio.sleep(0.005)


def base() -> dict[str, Any]:
    """``m`` is answered by a script, ``up`` and ``other`` by servers."""
    once: dict[str, Any] = {"retry": {"attempts": 1}}
    return {
        "version": 1,
        "backends": {
            "script": {"kind": "fake", "script": [{"reply": "one two three"}]},
            "up": {"kind": "openai", "base_url": UP},
            "other": {"kind": "openai", "base_url": OTHER},
        },
        "models": {
            "m": {"targets": [{"backend": "script", "model": "x"}], **once},
            "up": {"targets": [{"backend": "up", "model": "u"}], **once},
            "other": {"targets": [{"backend": "other", "model": "o"}], **once},
        },
        "keys": [key(KEY, "one", tenant="acme"), key(OTHER_KEY, "two", tenant="rival")],
    }


def joined(one: Json, more: Json) -> Json:
    """Mappings are joined, all else is replaced; ``None`` takes a key away."""
    if not isinstance(one, dict) or not isinstance(more, dict):
        return more
    both = {
        **one,
        **{name: joined(one[name], value) if name in one else value for name, value in more.items()},
    }
    return {name: value for name, value in both.items() if value is not None}


def _placed(value: Json, where: Mapping[str, str]) -> Json:
    if isinstance(value, dict):
        return {name: _placed(inner, where) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_placed(inner, where) for inner in value]
    if isinstance(value, str):
        for stand_in, address in where.items():
            value = value.replace(stand_in.removesuffix("/v1"), address.removesuffix("/v1"))
    return value


def _beside(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@asynccontextmanager
async def a_site(
    folder: Path,
    policy: Mapping[str, Any],
    up: tuple[Script, ...] = (),
    other: tuple[Script, ...] = (),
    files: Mapping[str, bytes] = {},
    health: Script | None = None,
    **settings: Any,
) -> AsyncIterator[Site]:
    """``policy`` is joined to ``base()``; ``up`` and ``other`` are answers of the servers, the last one for ever.

    ``files`` lie beside the policy; ``health`` is what ``other`` says to every GET.
    """
    for name, content in files.items():
        _beside(folder / "policies" / name, content)
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(FakeUpstream(*scripts)) for scripts in (up, other)]
        servers[1].scripts = servers[1].scripts if other else [reply(completion("from the other"))]
        servers[1].health = health or servers[1].health
        where = {UP: servers[0].base_url, OTHER: servers[1].base_url}
        whole = _placed(joined(base(), policy), where)
        gateway = await stack.enter_async_context(serving(folder / "policies", whole, **settings))
        yield Site(gateway, *servers, folder)


@dataclass(frozen=True)
class Row:
    """One experiment: ``look`` sees ``sees`` of a gateway ``given`` the key, and ``instead`` of one ``without``."""

    key: str
    given: Mapping[str, Any]
    look: Look
    sees: Any
    instead: Any
    without: Mapping[str, Any] = field(default_factory=dict)
    up: tuple[Script, ...] = ()
    other: tuple[Script, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    async def run(self, folder: Path) -> None:
        assert self.sees != self.instead, "an experiment that sees the same twice shows nothing"
        for name, policy, expected in (
            ("given", self.given, self.sees),
            ("without", self.without, self.instead),
        ):
            async with a_site(folder / name, policy, self.up, self.other, **self.settings) as site:
                seen = await self.look(site)
            if isinstance(expected, list | tuple) and isinstance(seen, list | tuple):
                seen = type(expected)(seen)
            assert seen == expected, f"{self.key}, {name}: saw {seen!r}, not {expected!r}"

    def __repr__(self) -> str:
        return self.key


def shows(*keys: str) -> Callable[[Test], Test]:
    """Marks a test as the experiment for these keys."""

    def mark(test: Test) -> Test:
        test.keys = keys  # type: ignore[attr-defined]
        return test

    return mark


def shown_by(module: ModuleType) -> Iterator[str]:
    """The keys for which a module has an experiment."""
    for value in vars(module).values():
        if inspect.isfunction(value):
            yield from getattr(value, "keys", ())
        elif isinstance(value, list):
            yield from (row.key for row in value if isinstance(row, Row))


# What there is to look at.


def status(*args: Any, **ask: Any) -> Look:
    async def look(site: Site) -> int:
        return (await site.ask(*args, **ask)).status_code

    return look


def code(*args: Any, **ask: Any) -> Look:
    """200, or the error's code."""

    async def look(site: Site) -> Any:
        response = await site.ask(*args, **ask)
        return 200 if response.status_code == 200 else response.json()["error"]["code"]

    return look


def text(*args: Any, **ask: Any) -> Look:
    """What is answered; a status where nothing is."""

    async def look(site: Site) -> Any:
        response = await site.ask(*args, **ask)
        if response.status_code != 200:
            return response.status_code
        return response.json()["choices"][0]["message"]["content"]

    return look


def header(name: str, *args: Any, **ask: Any) -> Look:
    async def look(site: Site) -> Any:
        return (await site.ask(*args, **ask)).headers.get(name)

    return look


def answerer(*args: Any, **ask: Any) -> Look:
    """The model that answered; a status where none did."""

    async def look(site: Site) -> Any:
        response = await site.ask(*args, **ask)
        return response.headers["x-tollgate-model"] if response.status_code == 200 else response.status_code

    return look


def statuses(count: int, *args: Any, **ask: Any) -> Look:
    """Of so many requests, one after the other."""

    async def look(site: Site) -> list[int]:
        return [(await site.ask(*args, **ask)).status_code for _ in range(count)]

    return look


def together(count: int, *args: Any, **ask: Any) -> Look:
    """Statuses of so many requests at once, sorted."""

    async def look(site: Site) -> list[int]:
        answers = await asyncio.gather(*(site.ask(*args, **ask) for _ in range(count)))
        return sorted(answer.status_code for answer in answers)

    return look


def sent(field_: str, *args: Any, **ask: Any) -> Look:
    """A field of what the server ``up`` was sent for a request to the model ``up``."""

    async def look(site: Site) -> Any:
        await site.ask(*args, **{"model": "up", **ask})
        return site.up.requests[-1].json().get(field_)

    return look


async def figures(site: Site, name: str) -> float:
    """The sum of a metric over its labels."""
    page = (await site.gateway.http.get("/metrics", headers=OPERATOR)).text
    lines = [line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def waits(request: asyncio.Task[httpx.Response]) -> bool:
    """Whether it has no answer after ``PATIENCE``, counted in looks: while others have the processor nobody looks."""
    for _ in range(round(PATIENCE / BEAT)):
        await asyncio.wait([request], timeout=BEAT)
        if request.done():
            return False
    return True


async def second_while_the_first_hangs(site: Site, **ask: Any) -> int | str:
    """What a second request to ``up`` gets while one is under way there; ``waits`` where it gets nothing."""
    first = asyncio.create_task(site.ask(model="up", **ask))
    await site.up.arrived()
    second = asyncio.create_task(site.ask(model="up", **ask))
    seen = "waits" if await waits(second) else second.result().status_code
    for task in (first, second):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    return seen


async def streamed(site: Site, *args: Any, **ask: Any) -> tuple[str, str | None]:
    """The text of a streamed answer, and the code of the error that ended it."""
    said, error = "", None
    response = await site.ask(*args, **ask, stream=True)
    if response.status_code != 200:
        return "", response.json()["error"]["code"]
    for line in response.text.splitlines():
        if line.startswith("data: {"):
            event = orjson.loads(line.removeprefix("data: "))
            error = event["error"]["code"] if "error" in event else error
            for choice in event.get("choices", ()):
                said += choice["delta"].get("content") or ""
    return said, error


def message(words: str = "Hello there", **usage: int) -> dict[str, Any]:
    """A whole answer of Anthropic's."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "c",
        "stop_reason": "end_turn",
        "content": [{"type": "text", "text": words}],
        "usage": {"input_tokens": 7, "output_tokens": 3, **usage},
    }


def on(backend: str, **more: Any) -> dict[str, Any]:
    """A model with one target."""
    return {"targets": [{"backend": backend, "model": "x"}], "retry": {"attempts": 1}, **more}
