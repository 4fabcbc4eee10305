"""A server that is measured, and one request to it."""

from __future__ import annotations

import asyncio
import errno
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
import orjson

from gateway.backends.endpoint import Endpoint
from gateway.backends.http1 import Http1Client
from gateway.lab.bench.answer import Answer
from gateway.lab.bench.apis import APIS, Api, error_in
from gateway.lab.bench.conversations import Message
from gateway.lab.bench.errors import BenchError, OptionError
from gateway.lab.bench.sample import Failure, Sample
from gateway.lab.bench.words import Scale

CONNECT = 10.0
"""Seconds in which there must be a connection."""
_MORE_WORDS = 256
_FEW_WORDS = 8


@dataclass(frozen=True)
class Server:
    """``url`` is where requests are posted to."""

    name: str
    url: str
    api: Api
    model: str = ""
    """Empty: the one that it lists."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    stream: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More of each body."""

    def body(self, messages: Sequence[Message], max_tokens: int | None) -> bytes:
        body = self.api.body(self.model, messages, max_tokens, stream=self.stream)
        return orjson.dumps({**body, **self.extra})

    @property
    def models_url(self) -> str:
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(path=parts.path.removesuffix(self.api.path) + "models"))


def api_of(url: str, named: str | None) -> tuple[str, Api]:
    """The URL to post to, and its API, from a base URL or a whole one."""
    try:
        parts = urlsplit(url if "://" in url else "http://" + url)
    except ValueError as error:
        raise OptionError(f"'{url}' is no URL: {error}") from None
    if parts.username is not None:
        raise OptionError(
            "leave the password out of the URL, as everybody on this machine sees a command's arguments, and put it "
            "into an environment variable that --key-env names"
        )
    path = parts.path.rstrip("/")
    # chat/completions before completions.
    whole = next((api for api in APIS.values() if path.endswith("/" + api.path)), None)
    api = APIS[named] if named is not None else whole or APIS["chat"]
    if whole is not None and whole is not api:
        raise OptionError(f"--api: '{url}' speaks {whole.name}, not {api.name}")
    if whole is None:
        base = path if re.search(r"/v\d[^/]*$", path) else path + "/v1"
        path = f"{base}/{api.path}"
    url = urlunsplit(parts._replace(path=path, fragment=""))
    try:
        Endpoint("POST", url).origin  # noqa: B018  what cannot be reached says so here
    except (ValueError, httpx.HTTPError) as error:
        raise OptionError(f"'{url}' is no URL: {error}") from None
    return url, api


class Asker:
    """Sends requests to one server over kept connections, and measures each. To be made within the loop."""

    def __init__(self, server: Server, *, timeout: float) -> None:
        self.server = server
        self._timeout = timeout
        self._endpoint = Endpoint("POST", server.url)
        self._headers = {"content-type": "application/json", "user-agent": "tollgate-bench", **server.headers}
        # No rest between two requests of a connection: it would show as a new connection for each.
        self._client = Http1Client(authorities=ssl.create_default_context, keepalive=60.0, rest=0.0)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def ask(self, body: bytes, sample: Sample, began: float, *, keep_text: bool = False) -> Answer:
        """``sample`` is filled in, in seconds since ``began``. Only an interruption is raised."""
        answer = Answer(self.server.api, keep_text=keep_text)
        sample.sent = monotonic() - began
        try:
            async with asyncio.timeout(self._timeout):
                await self._exchange(body, answer)
        except TimeoutError:
            answer.failure = Failure("timeout", message=f"no end within {self._timeout:g} s")
        except asyncio.CancelledError:
            answer.failure = Failure("interrupted")
            raise
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            cause = error.__cause__
            full = isinstance(cause, OSError) and cause.errno in (
                errno.EMFILE,
                errno.ENFILE,
                errno.EADDRNOTAVAIL,
            )
            answer.failure = Failure("client" if full else "unreachable", message=str(error))
        except httpx.TransportError as error:
            answer.failure = answer.failure or Failure("broken stream", message=str(error))
        finally:
            self._fill(sample, answer, began)
        return answer

    async def _exchange(self, body: bytes, answer: Answer) -> None:
        response = await self._client.send(self._endpoint, self._headers, body, connect=CONNECT)
        try:
            if response.status != 200:
                answer.take_refusal(response.status, b"".join([part async for part in response]))
            elif response.is_stream:
                response.divert(answer.take)
                async for part in response:
                    answer.take(part)
                answer.end()
            else:
                answer.take_whole(b"".join([part async for part in response]))
        finally:
            await response.aclose()

    def _fill(self, sample: Sample, answer: Answer, began: float) -> None:
        told = answer.told
        sample.end = monotonic() - began
        sample.first = None if answer.first is None else answer.first - began
        sample.last = None if answer.last is None else answer.last - began
        sample.gaps, sample.chunks = answer.gaps, answer.chunks
        sample.prompt_tokens = told.prompt_tokens
        sample.counted_by_server = told.output_tokens is not None
        sample.output_tokens = answer.chunks if told.output_tokens is None else told.output_tokens
        sample.finish, sample.failure = told.finish, answer.failure

    async def model(self) -> str:
        """The one that the server lists. Raises ``BenchError``, also where it lists several: one may cost more."""
        hint = "name one by --model"
        try:
            async with asyncio.timeout(CONNECT):
                response = await self._client.send(
                    Endpoint("GET", self.server.models_url), self.server.headers, connect=CONNECT
                )
                content = b"".join([part async for part in response])
        except (httpx.TransportError, TimeoutError) as error:
            raise BenchError(f"{self.server.models_url}: {error or 'no answer'}; is it running?") from None
        try:
            value = orjson.loads(content)
            if response.status != 200:
                said = error_in(value)[1] or f"status {response.status}"
                raise BenchError(f"{self.server.models_url}: {said}; {_advice(response.status) or hint}")
            names = [str(one["id"]) for one in value["data"]]
        except (ValueError, KeyError, TypeError, IndexError):
            raise BenchError(f"{self.server.models_url}: no list of models; {hint}") from None
        if len(names) != 1:
            some = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
            raise BenchError(
                f"{self.server.models_url} lists {len(names)} models; {hint}: {some or 'its name'}"
            )
        return names[0]

    async def scale(self) -> Scale:
        """How it counts words as tokens, by two short requests. Raises ``BenchError`` where it does not answer."""
        few, more = [await self._prompt_tokens(words) for words in (_FEW_WORDS, _FEW_WORDS + _MORE_WORDS)]
        if few is None or more is None or more <= few:
            return Scale()
        per_word = (more - few) / _MORE_WORDS
        return Scale(per_word, max(0.0, few - per_word * _FEW_WORDS))

    async def check(self) -> None:
        """One short request. Raises ``BenchError`` where it is not answered."""
        await self._prompt_tokens(_FEW_WORDS)

    async def _prompt_tokens(self, words: int) -> int | None:
        sample = Sample(0, 0, 0.0)
        messages = [{"role": "user", "content": " ".join(["time"] * words)}]
        answer = await self.ask(self.server.body(messages, 1), sample, monotonic())
        if (failure := answer.failure) is None:
            return sample.prompt_tokens
        said = f": {failure.message}" if failure.message else ""
        raise BenchError(
            f"{self.server.name} ({self.server.url}) does not answer one request: {failure}{said}"
            + (f"; {advice}" if (advice := _advice(failure.status, failure.kind)) else "")
        )


def _advice(status: int, kind: str = "status") -> str:
    if kind == "unreachable":
        return "is it running, and is that its address?"
    return {
        401: "put the key into an environment variable, and name that by --key-env",
        403: "put a key that may use this model into an environment variable, and name that by --key-env",
        404: "see --model and --api, and the path of the URL",
        429: "its limits refuse this caller already: wait, or take a key without limits",
    }.get(status, "")
