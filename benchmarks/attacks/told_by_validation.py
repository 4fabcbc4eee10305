"""Who may validate a policy proposes one that quotes variables of the environment: is he told what they hold?"""

from __future__ import annotations

from benchmarks.attacks.frame import Rig, must
from benchmarks.attacks.frame.rig import a_key

POINT = "D.24"
TRIED = "policies proposed to /policy/validate whose names, numbers and addresses quote a variable"
HOLDS = "no six characters of its value are told"

ADMIN = "tg-admin-1"
SECRET = "sk-proj-0aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uV1wX2yZ3"
VALUES = {"OURS": SECRET, "LONG": SECRET * 4, "ODD": "it's \"" + SECRET + '"\n'}
PLACES = (
    "version: %s",
    "prices: {%s: {input: 1, output: 1}}",
    "trusted_proxies: [%s]",
    "tenants: {t: {tier: %s}}",
    "keys: [{id: k, sha256: %s, models: [%s], allow_ips: [%s]}]",
    "guards: {pii: {on: [input], languages: [%s]}}",
    "guards: {g: {kind: %s}}",
    "%s: 1",
)
FORMS = ('"${%s}"', '"x-${%s}-y"', '"xxxxxxxxxxxxxxxxxxxxxxxxx${%s}"', '"\\x24{%s}"')


async def attack(rig: Rig) -> str:
    operator = a_key(ADMIN, "ops", scopes=["admin"])
    gateway = await rig.gateway(rig.policy(keys=[operator], admin={"enabled": True}), **VALUES)
    tried = 0
    for place in PLACES:
        for name in VALUES:
            for form in FORMS:
                files = {"gateway.yaml": place.replace("%s", form % name)}
                answer = await gateway.post(ADMIN, {"files": files}, "/admin/api/policy/validate")
                told = [one["message"] for one in answer.json()["problems"]]
                must(bool(told), f"{files} is accepted")
                found = [
                    one for one in told if any(SECRET[at : at + 6] in one for at in range(len(SECRET) - 5))
                ]
                must(not found, f"it is told: {found[:1]}")
                tried += 1
    return f"{tried} policies, nothing told"
