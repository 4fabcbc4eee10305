"""Streams that break off before their client has seen anything: does it get an answer all the same?"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from benchmarks.attacks.frame import ALICE, Rig, must
from tests.fakes import Action, FakeUpstream, Script, answer_events, delta, sse, stream

POINT = "30.8"
TRIED = (
    "90 streams (held, windowed, a cascade's step; text, calls, two choices) whose first server dies halfway, "
    "and 30 whose client has seen text"
)
HOLDS = "whoever has seen nothing gets the second server's whole answer and nothing else; others an error"
SAID, GIVEN = "the first server's grapes ", "plums of the second"
ROUNDS = 10
GUARD = {"kind": "topics", "on": ["output"], "action": "block", "words": ["durian"]}
CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "pick", "arguments": '{"a": "grapes'}}


class Sound(FakeUpstream):
    """Says something else, in as many choices as are asked for, to its end."""

    def next_script(self) -> Script:
        opening, said, *end = answer_events(GIVEN)
        if self.requests[-1].json().get("n") == 2:
            said += sse(delta(GIVEN, index=1)) + sse(delta(index=1, finish="stop"))
        return stream(opening, said, *end)


class Dying(FakeUpstream):
    """Says something of what is asked for, and dies."""

    def next_script(self) -> Script:
        asked = str(self.requests[-1].json()["messages"])
        said = [sse(delta("", role="assistant"))]
        if "calls" in asked:
            said.append(sse(delta(tool_calls=[CALL])))
        else:
            said += [sse(delta(SAID))] * (20 if "long" in asked else 2)
        if "choices" in asked:
            said.append(sse(delta(SAID, index=1)))
        return stream(*said, 0.3 if "long" in asked else 0.0, Action.ABORT, whole=False)


async def attack(rig: Rig) -> str:
    async with Dying() as first, Sound() as sound:
        gateway = await rig.gateway(policy(rig, first, sound))
        lost: Counter[str] = Counter()
        for model in ("held", "windowed", "steps"):
            for kind in ("text", "calls", "choices"):
                more: dict[str, Any] = {"n": 2} if kind == "choices" else {}
                answers = await asyncio.gather(
                    *(gateway.chat(ALICE, kind, model=model, stream=True, **more) for _ in range(ROUNDS))
                )
                for answer in answers:
                    said = answer.text
                    whole = answer.status_code == 200 and GIVEN in said and '"error"' not in said
                    whole = whole and "grapes" not in said
                    lost[f"{model}, {kind}"] += not whole
        must(
            not lost.total(),
            f"{lost.total()} of 90 clients got no whole answer, or two: {dict(+lost)}",
        )
        for model in ("windowed", "optimistic", "plain"):
            shown = await asyncio.gather(
                *(gateway.chat(ALICE, "long", model=model, stream=True) for _ in range(ROUNDS))
            )
            mixed = sum("grapes" in one.text and "plums" in one.text for one in shown)
            must(not mixed, f"{model}: {mixed} of {ROUNDS} got two answers in one")
            must(all("grapes" in one.text for one in shown), f"{model}: what was clear was kept back")
    must(len(first.requests) >= 120, f"only {len(first.requests)} of 120 came to the server that dies")
    return "90 of 90 got the second server's answer; of 30 that had seen text none got a mixture"


def policy(rig: Rig, first: Dying, second: Sound) -> dict[str, Any]:
    target = {"targets": [{"backend": "up", "model": "a"}], "fallbacks": ["n"], "retry": {"attempts": 1}}
    models = dict.fromkeys(("held", "windowed", "optimistic", "plain", "step"), target)
    guards = {
        "held": {**GUARD, "stream": "hold", "models": ["held"]},
        "windowed": {**GUARD, "stream": "windowed", "window": 64, "interval": 16, "models": ["windowed"]},
        "optimistic": {**GUARD, "stream": "optimistic", "interval": 16, "models": ["optimistic"]},
    }
    return rig.policy(
        backends={
            "up": {"kind": "openai", "base_url": first.base_url, "breaker": {"failures": 10_000}},
            "other": {"kind": "openai", "base_url": second.base_url},
        },
        models={
            **models,
            "n": {"targets": [{"backend": "other", "model": "b"}]},
            "steps": {"cascade": [{"model": "step"}, {"model": "step"}]},
        },
        guards=guards,
    )
