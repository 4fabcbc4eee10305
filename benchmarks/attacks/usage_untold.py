"""An upstream that tells no usage: what do its answers count as?"""

from __future__ import annotations

from typing import Any

import orjson

from benchmarks.attacks.frame import ALICE, MALLORY, Gateway, Rig, must
from benchmarks.attacks.frame.provider import PRICE, spent_by
from tests.fakes import DONE, FakeUpstream, Script, completion, delta, reply, sse, stream

POINT = "B.9"
TRIED = (
    "answers of 1,000 words as text, n: 4, a call's arguments, thoughts; of 1,000 letters, figures, Chinese words; "
    "whole and streamed, without usage; the same, and one of a word, under a budget and under strict"
)
HOLDS = (
    "each counts by its text, within a third of what tokenizers would say, and is charged; under limits no less than "
    "they would say, and no more than its bytes"
)
WORDS = 1000
TEXT = "abc " * WORDS
DENSE = {"letters": "w " * WORDS, "figures": "7 " * WORDS, "chinese": "\u8a9e" * WORDS}
MOST = 4 * WORDS
LIMITS: dict[str, dict[str, Any]] = {
    "budget": {"budget": {"usd_per_day": 100.0}},
    "strict": {"quotas": {"tokens_per_day": 10**8, "strict": True}},
}


def _message(kind: str) -> dict[str, Any]:
    if kind == "arguments":
        call = {"name": "write", "arguments": orjson.dumps({"text": TEXT}).decode()}
        return {
            "content": None,
            "tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": call}],
        }
    if kind == "thoughts":
        return {"content": "So.", "reasoning_content": TEXT}
    return {"content": "Yes" if kind == "word" else DENSE.get(kind, TEXT)}


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
        asked: list[tuple[str, dict[str, Any]]] = [
            *(("text", {}), ("text", {"n": 4}), ("arguments", {}), ("thoughts", {})),
            *((kind, {}) for kind in DENSE),
        ]
        for kind, more in asked:
            for streams in (False, True):
                many = f" n: {choices}" if (choices := more.get("n", 1)) > 1 else ""
                what = "streamed " * streams + f"{kind}{many}"
                counted, real = (
                    await _counted(gateway, MALLORY, kind, stream=streams, **more),
                    WORDS * choices,
                )
                must(real * 2 / 3 <= counted <= real * 4 / 3, f"{what}: {real} tokens counted as {counted}")
                told.append(f"{what} {counted}")
        for name, limits in LIMITS.items():
            policy = rig.policy(upstream, prices={"upstream-model": PRICE}, tenants={"alice": limits})
            gateway = await rig.gateway(policy)
            for kind in (*DENSE, "text", "word"):
                for streams in (False, True):
                    what = f"{'streamed ' * streams}{kind} under {name}"
                    counted = await _counted(gateway, ALICE, kind, stream=streams, max_tokens=MOST)
                    real = 1 if kind == "word" else WORDS
                    least, most = real, min(MOST, 4 * real + 20)
                    must(least <= counted <= most, f"{what}: {real} tokens counted as {counted}")
                    told.append(f"{what} {counted}")
    return ", ".join(told)


async def _counted(gateway: Gateway, key: str, kind: str, **more: Any) -> int:
    """Tokens of an answer in the ledger, where it must have cost something."""
    answer = await gateway.chat(key, kind, **more)
    must(answer.status_code == 200, f"{kind}: {answer.status_code}")
    row = await spent_by(gateway, answer.headers["x-request-id"])
    must(row["cost_nanodollars"] > 0, f"{kind} was free")
    return int(row["completion_tokens"])
