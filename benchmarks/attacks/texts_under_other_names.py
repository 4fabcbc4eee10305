"""A text in a field that should hold none, in three dialects: does it get past a guard that masks?"""

from __future__ import annotations

from typing import Any

from benchmarks.attacks.frame import MALLORY, Rig, must
from tests.fakes import completion, reply

POINT = "30.5"
TRIED = (
    "an address as an id, a role, a signature, a type, a tool that is chosen, what stops an answer: 10 places"
)
HOLDS = "no provider gets the address"

ADDRESS = "alice@private.example.com"
GOOGLE: dict[str, Any] = {
    "candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1},
}
CLAUDE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "stop_reason": "end_turn",
    "content": [{"type": "text", "text": "Hi"}],
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


def google(part: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"contents": [{"parts": [{"text": "Hi", **(part or {})}]}], **more}


def claude(block: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": "Hi", **(block or {})}]
    return {"max_tokens": 9, "messages": [{"role": "user", "content": content}], **more}


TRIES: list[tuple[str, dict[str, Any]]] = [
    ("google", google(generationConfig={"stopSequences": [ADDRESS]})),
    ("google", google({"partMetadata": {"id": ADDRESS}})),
    ("google", google({"thoughtSignature": ADDRESS})),
    ("google", google(systemInstruction={"role": ADDRESS, "parts": [{"text": "Hi"}]})),
    ("google", google(toolConfig={"functionCallingConfig": {"allowedFunctionNames": [ADDRESS]}})),
    ("claude", claude(stop_sequences=[ADDRESS])),
    ("claude", claude({"id": ADDRESS})),
    ("claude", claude({"type": ADDRESS})),
    ("claude", claude({"cache_control": {"type": "ephemeral", "ttl": ADDRESS}})),
    (
        "m",
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "tool_choice": {"type": "function", "function": {"name": ADDRESS}},
        },
    ),
]


async def attack(rig: Rig) -> str:
    openai, gemini, anthropic = [
        await rig.upstream(reply(answer)) for answer in (completion(), GOOGLE, CLAUDE)
    ]
    root = "http://127.0.0.1:{}"
    policy = rig.policy(
        openai,
        backends={
            "google": {"kind": "gemini", "base_url": root.format(gemini.port), "api_key": "k"},
            "claude": {"kind": "anthropic", "base_url": root.format(anthropic.port), "api_key": "k"},
        },
        models={
            "google": {"targets": [{"backend": "google", "model": "gemini-2.5-flash"}]},
            "claude": {"targets": [{"backend": "claude", "model": "claude-sonnet-4-5"}]},
        },
        guards={"pii": {"on": ["input"], "action": "mask", "entities": ["EMAIL_ADDRESS"]}},
    )
    gateway = await rig.gateway(policy)
    told = []
    for dialect, body in TRIES:
        for model in {dialect, "m"}:
            path = {
                "google": f"/v1beta/models/{model}:generateContent",
                "claude": "/v1/messages",
                "m": "/v1/chat/completions",
            }[dialect]
            answer = await gateway.post(
                MALLORY, body if dialect == "google" else {**body, "model": model}, path
            )
            must(answer.status_code < 500, f"{body} got {answer.status_code}")
            for server in (openai, gemini, anthropic):
                if any(ADDRESS.encode() in one.body for one in server.requests):
                    told.append(f"{dialect} to {model}: {body}")
                server.requests.clear()
    must(not told, f"{len(told)} let it through: {'; '.join(told)}")
    return f"{len(TRIES)} places tried, none let it through"
