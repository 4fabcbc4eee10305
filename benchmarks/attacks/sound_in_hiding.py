"""Files in which a decoder finds sound that no head tells of: MP3 in a WAV, a movie in a movie's tags, and the like."""

from __future__ import annotations

from benchmarks.attacks.frame import Rig, must
from benchmarks.attacks.frame.rig import a_key
from tests.fakes import reply
from tests.gateway.metering.hidden_sound import LONG, UNKNOWN

POINT = "30.3"
TRIED = "20 transcriptions of each of 18 forms that decoders play for a minute and more, on $0.05 a day"
HOLDS = "a budget lets in the 8 that it pays for, or none of a kind that cannot be measured"
SECONDS, MINUTE, BUDGET = 62, 0.006, 0.05


async def attack(rig: Rig) -> str:
    files = {**UNKNOWN, **LONG}
    names = {name: f"tg-mallory-{number}" for number, name in enumerate(files)}
    policy = rig.policy(
        await rig.upstream(reply({"text": "Hello"})),
        prices={"upstream-model": {"minute": MINUTE}},
        tenants={key: {"budget": {"usd_per_day": BUDGET}} for key in names.values()},
        keys=[a_key(key, key, tenant=key) for key in names.values()],
    )
    gateway = await rig.gateway(policy)
    found = []
    for name, data in files.items():
        let_in = 0
        for _ in range(20):
            answer = await gateway.http.post(
                "/v1/audio/transcriptions",
                data={"model": "m"},
                files={"file": (name, data)},
                headers={"authorization": f"Bearer {names[name]}"},
            )
            must(
                answer.status_code in (200, 400, 429), f"{name} got {answer.status_code}: {answer.text[:150]}"
            )
            let_in += answer.status_code == 200
        cost = let_in * SECONDS * MINUTE / 60
        must(cost <= BUDGET, f"{name}: {let_in} of 20 were let in, of ${cost:.3f}")
        found.append(f"{name} {let_in}")
    return "let in of 20: " + ", ".join(found)
