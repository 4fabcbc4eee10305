"""Long answers to one schema: does it wear out, until everybody's request with it is refused?"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from benchmarks.attacks.frame import ALICE, MALLORY, Rig, must

POINT = "A.4"
TRIED = (
    "24 answers of 200 tokens to mallory by a schema with maxLength: 10000, then one of alice's by the same"
)
HOLDS = "each is answered, alice's too"
SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 500, "maxLength": 10000}},
    "required": ["text"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "essay", "schema": SCHEMA}}


async def attack(rig: Rig) -> str:
    policy = rig.policy(
        backends={"engine": rig.demo_engine()},
        models={"demo": {"targets": [{"backend": "engine", "model": "demo"}]}},
    )
    gateway = await rig.gateway(policy)
    more: dict[str, Any] = {"model": "demo", "response_format": FORMAT, "max_tokens": 200, "temperature": 1.5}
    answers = []
    for _ in range(3):
        answers += await asyncio.gather(*(gateway.chat(MALLORY, "Write.", **more) for _ in range(8)))
    answers.append(await gateway.chat(ALICE, "Write.", **more))
    statuses = Counter(answer.status_code for answer in answers)
    bad = next((answer.text[:150] for answer in answers if answer.status_code != 200), "")
    must(statuses == {200: len(answers)}, f"answers were {dict(statuses)}: {bad}")
    tokens = sum(answer.json()["usage"]["completion_tokens"] for answer in answers)
    must(tokens > 1000, f"only {tokens} tokens were written: nothing was tried")
    return f"{len(answers)} of {len(answers)} answered, {tokens} tokens"
