"""A history with a tool call without arguments, read by guards: does the loop go on?"""

from __future__ import annotations

from typing import Any

import httpx

from benchmarks.attacks.frame import ALICE, MALLORY, Rig, must

POINT = "A.1"
TRIED = 'tool calls with the arguments "{}", "[]" and "" (input: {} in /v1/messages), read by pii and secrets guards'
HOLDS = "each is answered, and the gateway goes on serving"


async def attack(rig: Rig) -> str:
    guard = {"on": ["input"], "action": "mask"}
    gateway = await rig.gateway(rig.policy(guards={"pii": guard, "secrets": guard}))
    asked = [("/v1/chat/completions", chat(arguments)) for arguments in ("{}", "[]", "")]
    for path, body in [*asked, ("/v1/messages", MESSAGES)]:
        answer: httpx.Response | httpx.TransportError
        try:
            answer = await gateway.post(MALLORY, body, path, timeout=20)
        except httpx.TransportError as error:
            answer = error
        must(await gateway.is_alive(20), f"{path}: the worker answers nobody any more ({answer})")
        must(getattr(answer, "status_code", 500) < 500, f"{path}: {answer}")
    neighbour = await gateway.chat(ALICE, timeout=20)
    must(neighbour.status_code == 200, f"the neighbour got {neighbour.status_code}")
    return "4 of 4 answered at once"


def chat(arguments: str) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    return {"model": "m", "messages": messages}


MESSAGES = {
    "model": "m",
    "max_tokens": 16,
    "messages": [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "now", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "noon"}]},
    ],
}
