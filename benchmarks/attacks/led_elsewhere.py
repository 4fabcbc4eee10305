"""Servers that the policy names send the gateway on, callers name addresses: does it go there?"""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.attacks.frame import MALLORY, Rig, must
from tests.fakes import completion, reply
from tests.gateway.identity import issuer

POINT = "30.14"
TRIED = (
    "redirects by a backend, a JWKS server, a webhook guard and a callback's receiver; addresses in a token's head "
    "(jku, x5u, iss) and in a request's parts"
)
HOLDS = "nothing arrives at the address that they name"
STATUSES = (301, 302, 303, 307, 308)


async def attack(rig: Rig) -> str:
    trap = await rig.upstream(reply(completion("from the trap")))
    trap.health = reply(issuer.jwks(one=issuer.RSA))
    inside = trap.base_url + "/inside"
    led: dict[str, Any] = {"headers": {"location": inside, "refresh": f"0; url={inside}"}}
    backend = await rig.upstream(*(reply("", status=status, **led) for status in STATUSES))
    others = await rig.upstream(reply("", status=307, **led))
    others.health = reply("", status=302, **led)
    policy = rig.policy(
        backend,
        jwt=[issuer.entry(others.base_url + "/jwks.json")],
        guards={
            "away": {"kind": "webhook", "url": others.base_url + "/judge", "on": ["input"], "action": "flag"}
        },
        callbacks=[
            {
                "url": others.base_url + "/told",
                "secret": "whsec_" + "YWJj" * 11,
                "events": ["guard", "breaker"],
            }
        ],
    )
    gateway = await rig.gateway(policy)
    tried = 0
    for _ in STATUSES:
        answer = await gateway.chat(MALLORY)
        must("trap" not in answer.text, "a redirect of a backend was followed, and its answer passed on")
        tried += 1
    for header in ({"jku": inside}, {"x5u": inside}, {"jku": inside, "jwk": {"kty": "oct", "k": "AA"}}):
        for more in ({}, {"iss": inside}):
            token = issuer.token(key=issuer.OTHER_RSA, kid="one", header=header, **more)
            answer = await gateway.chat(token)
            must(answer.status_code in (401, 503), f"a forged token got {answer.status_code}")
            tried += 1
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": inside}},
        {"type": "input_audio", "input_audio": {"data": inside, "format": "wav"}},
        {"type": "file", "file": {"file_data": inside, "filename": "a.pdf"}},
        {"type": "file", "file": {"file_id": inside}},
    ]
    for part in parts:
        body = {"model": "m", "messages": [{"role": "user", "content": [part]}]}
        await gateway.post(MALLORY, body)
        tried += 1
    for item in ({"type": "input_image", "image_url": inside}, {"type": "input_file", "file_url": inside}):
        body = {"model": "m", "input": [{"role": "user", "content": [item]}]}
        await gateway.post(MALLORY, body, "/v1/responses")
        tried += 1
    await asyncio.sleep(2)  # for what is sent beside a request
    must(
        not trap.requests, f"{len(trap.requests)} requests arrived: {[one.path for one in trap.requests][:3]}"
    )
    return f"{tried} ways, none led there"
