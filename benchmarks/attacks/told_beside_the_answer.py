"""What Gemini tells beside its text (sources, citations, messages) repeats it: does it get past a guard?"""

from __future__ import annotations

from typing import Any

from benchmarks.attacks.frame import MALLORY, Rig, must
from tests.fakes import reply, sse, stream

POINT = "30.5"
TRIED = "an answer whose address a guard masks stands in its grounding, citations and 3 other places, whole or streamed"
HOLDS = "the caller gets the address in neither dialect"

ADDRESS = "alice@private.example.com"
PLACES: list[dict[str, Any]] = [
    {"groundingMetadata": {"groundingSupports": [{"segment": {"text": ADDRESS}}]}},
    {"groundingMetadata": {"searchEntryPoint": {"renderedContent": f"<b>{ADDRESS}</b>"}}},
    {"citationMetadata": {"citationSources": [{"uri": f"https://example.com/{ADDRESS}"}]}},
    {"finishMessage": f"Stopped after {ADDRESS}"},
    {"fieldOfTomorrow": [ADDRESS]},
]


async def attack(rig: Rig) -> str:
    upstream = await rig.upstream()
    google = {"kind": "gemini", "base_url": f"http://127.0.0.1:{upstream.port}", "api_key": "k"}
    policy = rig.policy(
        backends={"google": google},
        models={"g": {"targets": [{"backend": "google", "model": "gemini-2.5-flash"}]}},
        guards={"pii": {"on": ["output"], "action": "mask", "entities": ["EMAIL_ADDRESS"]}},
    )
    gateway = await rig.gateway(policy)
    chat = {"model": "g", "messages": [{"role": "user", "content": "Hi"}]}
    native = {"contents": [{"parts": [{"text": "Hi"}]}]}
    asks = [
        ("/v1/chat/completions", chat, False),
        ("/v1/chat/completions", {**chat, "stream": True}, True),
        ("/v1beta/models/g:generateContent", native, False),
        ("/v1beta/models/g:streamGenerateContent?alt=sse", native, True),
    ]
    told = []
    for number, place in enumerate(PLACES):
        said = {"content": {"parts": [{"text": f"Write to {ADDRESS}."}]}, "finishReason": "STOP", **place}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 5}
        for kind, (path, body, streams) in enumerate(asks):
            answer = {
                "candidates": [said],
                "usageMetadata": usage,
                "responseId": f"r{number}{kind}",
            }
            upstream.scripts = [stream(sse(answer)) if streams else reply(answer)]
            got = await gateway.post(MALLORY, body, path)
            must(got.status_code == 200, f"{path} got {got.status_code}: {got.text[:150]}")
            if ADDRESS in got.text:
                told.append(f"{next(iter(place))} by {path}")
    must(not told, f"{len(told)} of {len(PLACES) * len(asks)} told it: {', '.join(told)}")
    return f"{len(PLACES) * len(asks)} answers, none told it"
