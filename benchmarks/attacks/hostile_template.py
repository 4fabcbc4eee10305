"""A checkpoint's chat template that loops, doubles and raises to powers at a word: do others notice?"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from pathlib import Path

from benchmarks.attacks.frame import ALICE, MALLORY, Rig, must
from engine.weights.source import locate

POINT = "A.5"
TRIED = (
    "a chat template that loops over range(99999) twice, doubles a text 40 times or computes 10**(10**9) at a word; "
    "mallory says it three times, alice asks meanwhile"
)
HOLDS = "alice is answered and each of mallory's is a 400 that says why"
SPELLS = {
    "loop": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "double": "{% set n = namespace(t='ab') %}{% for i in range(40) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
    "power": "{{ (10 ** (10 ** (messages | length * 9))) % 2 }}",
}


async def attack(rig: Rig) -> str:
    model = await asyncio.to_thread(_enchanted, rig.folder / "model")
    policy = rig.policy(
        backends={"engine": {**rig.demo_engine(), "model": str(model)}},
        models={"demo": {"targets": [{"backend": "engine", "model": str(model)}]}},
    )
    gateway = await rig.gateway(policy)
    said = [asyncio.create_task(gateway.chat(MALLORY, spell, "demo", max_tokens=8)) for spell in SPELLS]
    waits: list[float] = []
    while not waits or not all(one.done() for one in said):
        began = time.monotonic()
        answer = await gateway.chat(ALICE, "Hello.", "demo", max_tokens=8)
        waits.append(time.monotonic() - began)
        must(answer.status_code == 200, f"alice got {answer.status_code}: {answer.text[:150]}")
    refused = [one.result() for one in said]
    statuses = sorted(one.status_code for one in refused)
    must(statuses == [400] * 3, f"mallory got {statuses}: {refused[0].text[:150]}")
    must(all("chat template" in one.text for one in refused), f"no reason: {refused[0].text[:150]}")
    return f"three times 400; alice was answered {len(waits)} times, after {max(waits):.1f} s at most"


def _enchanted(folder: Path) -> Path:
    """The demo model with these words in its template."""
    shutil.copytree(locate("demo"), folder)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    words = (
        f"{{% if messages[-1].content == '{word}' %}}{spell}{{% endif %}}" for word, spell in SPELLS.items()
    )
    file.write_text(json.dumps({**settings, "chat_template": "".join(words) + settings["chat_template"]}))
    return folder
