"""What strangers and tenants are told of the others: figures, spending, backends."""

from __future__ import annotations

from benchmarks.attacks.frame import ALICE, MALLORY, Rig, must

POINT = "C.21"
TRIED = "/metrics and /readyz without a key, with a tenant's, and with wrong tokens"
HOLDS = "no figure, no tenant's and no backend's name is told"


async def attack(rig: Rig) -> str:
    policy = rig.policy()
    gateway = await rig.gateway(policy)
    await gateway.chat(ALICE)
    for key in (None, MALLORY, "metrics-token", "x" * 5000):
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        page = await gateway.http.get("/metrics", headers=headers)
        must(page.status_code == 401, f"/metrics answers {page.status_code} to {key and key[:20]}")
        ready = (await gateway.http.get("/readyz", headers=headers)).text
        told = [name for name in ("alice", *policy["backends"]) if f'"{name}"' in ready + page.text]
        must(not told, f"{told} stand in what a stranger is told")
    return "401, and no name"
