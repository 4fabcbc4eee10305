"""An issuer's key server goes away, or says nothing: who is let in, and who is held up?"""

from __future__ import annotations

import asyncio
import time

from benchmarks.attacks.frame import ALICE, Rig, must
from tests.fakes import Action, reply
from tests.gateway.identity import issuer

POINT = "D.25"
TRIED = "the JWKS server silent, then gone: tokens of a known key, 50 forged ones of unknown keys, an API key"
HOLDS = "known keys go on; unknown ones get 503 with Retry-After; the API key does not notice"


async def attack(rig: Rig) -> str:
    server = await rig.upstream()
    server.health = reply(issuer.jwks(one=issuer.RSA))
    gateway = await rig.gateway(rig.policy(jwt=[issuer.entry(server.base_url + "/jwks.json")]))
    must((await gateway.chat(issuer.token(kid="one"))).status_code == 200, "a good token was refused")
    server.health = (Action.HANG,)
    forged = [issuer.token(key=issuer.OTHER_RSA, kid=f"made-up-{number}") for number in range(50)]
    waiting = [asyncio.create_task(gateway.chat(text)) for text in forged]
    began = time.monotonic()
    neighbour = await gateway.chat(ALICE)
    held_up = time.monotonic() - began
    must(neighbour.status_code == 200, f"the API key got {neighbour.status_code}")
    silent = await asyncio.gather(*waiting)
    await server.stop()
    gone = [await gateway.chat(text) for text in forged[:5]]
    for answer in (*silent, *gone):
        must(answer.status_code in (401, 503), f"a forged token got {answer.status_code}")
        must(answer.status_code == 503, "an unknown key got 401 though nobody could look it up")
        must(int(answer.headers.get("retry-after", 0)) > 0, "503 without Retry-After")
    known = await gateway.chat(issuer.token(kid="one", sub="bob"))
    must(known.status_code == 200, f"a token of a known key got {known.status_code}")
    return (
        f"55 unknown: 503; known keys: 200; API key: 200, beside 50 forged tokens in {held_up * 1000:.0f} ms"
    )
