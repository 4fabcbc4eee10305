"""An upstream that tells no usage: what do its answers count as?"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from benchmarks.attacks.frame import MALLORY, Gateway, Rig, must
from benchmarks.attacks.frame.provider import PRICE, spent
from tests.fakes import DONE, FakeUpstream, Script, completion, delta, reply, sse, stream

POINT = "B.9"
TRIED = (
    "answers of 1,000 words as text, n: 4, a call's arguments, thoughts; whole and streamed, without usage"
)
HOLDS = "each counts by its text, within a third of what tokenizers would say, and is charged"
WORDS = 1000
TEXT = "abc " * WORDS


def _message(kind: str) -> dict[str, Any]:
    if kind == "arguments":
        call = {"name": "write", "arguments": orjson.dumps({"text": TEXT}).decode()}
        return {
            "content": None,
            "tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": call}],
        }
    if kind == "thoughts":
        return {"content": "So.", "reasoning_content": TEXT}
    return {"content": TEXT}


class Untold(FakeUpstream):
    def next_script(self) -> Script:
        asked = self.requests[-1].json()
        kind, choices = asked["messages"][-1]["content"], range(asked.get("n") or 1)
        finish = "tool_calls" if kind == "arguments" else "stop"
        if asked.get("stream"):
            said = [sse(delta(index=index, role="assistant", **_message(kind))) for index in choices]
            return stream(*said, *(sse(delta(index=index, finish=finish)) for index in choices), DONE)
        answer = completion()
        del answer["usage"]
        message = {"role": "assistant", **_message(kind)}
        answer["choices"] = [
            {"index": index, "message": message, "finish_reason": finish} for index in choices
        ]
        return reply(answer)


async def attack(rig: Rig) -> str:
    async with Untold() as upstream:
        gateway = await rig.gateway(rig.policy(upstream, prices={"upstream-model": PRICE}))
        told: list[str] = []
        for kind, more in (("text", {}), ("text", {"n": 4}), ("arguments", {}), ("thoughts", {})):
            for streams in (False, True):
                answer = await gateway.chat(MALLORY, kind, stream=streams, **more)
                must(answer.status_code == 200, f"{kind}: {answer.status_code}")
                row = await _row(gateway, answer.headers["x-request-id"])
                counted, real = row["completion_tokens"], WORDS * more.get("n", 1)
                many = f" n: {choices}" if (choices := more.get("n", 1)) > 1 else ""
                what = "streamed " * streams + f"{kind}{many}"
                must(real * 2 / 3 <= counted <= real * 4 / 3, f"{what}: {real} tokens counted as {counted}")
                must(row["cost_nanodollars"] > 0, f"{what} was free")
                told.append(f"{what} {counted}")
    return ", ".join(told)


async def _row(gateway: Gateway, id: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            await asyncio.sleep(0.2)
            for row in spent(gateway):
                if row["request_id"] == id:
                    return row
