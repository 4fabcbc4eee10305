"""A server whose answers hold a hundred thousand of everything: does anybody else wait?"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import orjson

from benchmarks.attacks.frame import MALLORY, Gateway, Rig, must
from tests.fakes import DONE, FakeUpstream, Script, completion, delta, reply, sse, stream

POINT = "A.2"
TRIED = (
    "answers of 100,000 choices, tool calls, parts, logprobs, vectors or blocks, whole and streamed, by both dialects; "
    "900,000 events without content; an event of 7 MB in pieces of 1 kB; 2,048 vectors of 1,536 numbers, as asked for"
)
HOLDS = "each ends soon, and nobody else waits for more than a second"
MANY = 100_000
LONGEST, SOON = 1.0, 20.0
"""Seconds that others may wait, and that an answer may take."""
_TOGETHER = 2**18
"""Bytes written at once."""


async def attack(rig: Rig) -> str:
    longest: dict[str, float] = {}
    async with FakeUpstream() as server:
        gateway = await rig.gateway(_policy(rig, server))
        for name, (path, body, script) in _scripts().items():
            server.scripts = [script]
            longest[name] = await _longest(gateway, path, {"model": "m", **body})
    worst = max(longest, key=longest.__getitem__)
    told = f"others waited for {longest[worst] * 1000:.0f} ms at most ({worst})"
    must(longest[worst] < LONGEST, told)
    return told


def _policy(rig: Rig, server: FakeUpstream) -> dict[str, Any]:
    url, breaker = server.base_url, {"failures": 1000}
    return rig.policy(
        backends={
            "up": {"kind": "openai", "base_url": url, "breaker": breaker},
            "claude": {"kind": "anthropic", "base_url": url.removesuffix("/v1"), "breaker": breaker},
        },
        models={"c": {"targets": [{"backend": "claude", "model": "claude"}]}},
    )


def _scripts() -> dict[str, tuple[str, dict[str, Any], Script]]:
    """Path, body and the server's answer, by name."""
    chat, said = "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}
    streamed = {**said, "stream": True}
    claude = {**said, "model": "c", "max_tokens": 10}
    choice = completion()["choices"][0]
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calls = [{**call, "index": number} for number in range(MANY)]
    part = {"type": "text", "text": "a"}
    logprob = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}
    block = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [block] * MANY,
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    start = {"type": "content_block_start", "content_block": block}

    def whole(message: dict[str, Any], **more: Any) -> Script:
        return reply(completion(choices=[{**choice, "message": message, **more}]))

    return {
        "choices": (
            chat,
            said,
            reply(completion(choices=[{**choice, "index": number} for number in range(MANY)])),
        ),
        "tool calls": (chat, said, whole({"role": "assistant", "tool_calls": calls})),
        "parts": (chat, said, whole({"role": "assistant", "content": [part] * MANY})),
        "logprobs": (chat, said, whole(choice["message"], logprobs={"content": [logprob] * 9 * MANY})),
        "unknown fields": (chat, said, whole({**choice["message"], "unknown": [[]] * 90 * MANY})),
        "vectors": (
            "/v1/embeddings",
            {"input": "Hi"},
            reply({"data": [{"index": number, "embedding": [0.5]} for number in range(MANY)]}),
        ),
        "vectors that were asked for": (
            "/v1/embeddings",
            {"input": ["Hi"] * 2048},
            reply({"data": [{"index": number, "embedding": [0.123456789] * 1536} for number in range(2048)]}),
        ),
        "streamed choices": (
            chat,
            streamed,
            _flood(sse(delta("a", index=number)) for number in range(MANY)),
        ),
        "streamed choices of one event": (
            chat,
            streamed,
            _flood([sse({**delta(), "choices": delta("a")["choices"] * (MANY // 2)}), DONE]),
        ),
        "streamed tool calls": (chat, streamed, _flood(sse(delta(tool_calls=[one])) for one in calls)),
        "streamed tool calls of one event": (
            chat,
            streamed,
            _flood([sse(delta(tool_calls=calls[: MANY // 2])), sse(delta(finish="tool_calls")), DONE]),
        ),
        "empty events": (chat, streamed, _flood([b"data: {}\n\n"] * 9 * MANY)),
        "empty deltas": (chat, streamed, _flood([sse(delta(""))] * 3 * MANY)),
        "comments": (chat, streamed, _flood([b":\n\n"] * 9 * MANY)),
        "a long event in pieces": (
            chat,
            streamed,
            stream(*[b"data: "], *[b"x" * 1000] * 7000, b"\n\n", DONE),
        ),
        "blocks": (chat, claude, reply(message)),
        "streamed blocks": (
            chat,
            {**claude, "stream": True},
            _flood(
                b"data: " + orjson.dumps(event) + b"\n\n"
                for event in (
                    {"type": "message_start", "message": {**message, "content": []}},
                    *({**start, "index": number} for number in range(MANY)),
                )
            ),
        ),
        "pings": (chat, {**claude, "stream": True}, _flood([sse({"type": "ping"})] * 9 * MANY)),
    }


def _flood(events: Any) -> Script:
    """A stream of them, as fast as it goes."""
    data = b"".join(events)
    pieces = (data[start : start + _TOGETHER] for start in itertools.count(0, _TOGETHER))
    return stream(*itertools.takewhile(bool, pieces))


async def _longest(gateway: Gateway, path: str, body: dict[str, Any]) -> float:
    """The longest that somebody else waited (seconds) while this was answered."""
    # From another process: to read the answer takes time of this one's loop.
    asking = await asyncio.create_subprocess_exec(
        *("curl", "-s", "-o", "/dev/null", "-X", "POST", "--data-binary", "@-", "--max-time", str(SOON)),
        *("-H", f"authorization: Bearer {MALLORY}", gateway.url + path),
        stdin=asyncio.subprocess.PIPE,
    )
    answered = asyncio.create_task(asking.communicate(orjson.dumps(body)))
    longest = 0.0
    while not answered.done():
        began = time.monotonic()
        must(await gateway.is_alive(60), "the worker answers nobody any more")
        longest = max(longest, time.monotonic() - began)
        await asyncio.sleep(0.01)
    must(asking.returncode == 0, f"{body} was not answered within {SOON:.0f} s")
    return longest
