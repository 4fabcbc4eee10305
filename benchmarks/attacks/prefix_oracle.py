"""What the engine's prefix cache tells one tenant of another's prompts."""

from __future__ import annotations

from uuid import uuid4

from benchmarks.attacks.frame import ALICE, MALLORY, Rig, must

POINT = "C.18"
TRIED = "alice's prompts of 1,000 characters, each asked again by mallory, with alice's cache_salt where she has one"
HOLDS = "mallory's cached_tokens are 0 always, and alice's own are not"
ROUNDS = 4


async def attack(rig: Rig) -> str:
    policy = rig.policy(
        backends={"engine": rig.demo_engine()},
        models={"demo": {"targets": [{"backend": "engine", "model": "demo"}]}},
    )
    gateway = await rig.gateway(policy)

    async def cached(key: str, prompt: str, **more: str) -> int:
        answer = await gateway.chat(key, prompt, "demo", max_tokens=1, temperature=0, **more)
        must(answer.status_code == 200, f"answered with {answer.status_code}: {answer.text[:200]}")
        return int((answer.json()["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    own = 0
    for number in range(ROUNDS):
        salt = {"cache_salt": "of-alice"} if number % 2 else {}
        secret = f"{uuid4()}: " + "the merger will be announced on Friday. " * 12
        await cached(ALICE, secret, **salt)
        for guess in ({}, {"cache_salt": "of-alice"}, {"cache_salt": "alice"}):
            told = await cached(MALLORY, secret, **guess)
            # Her own guesses may be found by her own later ones, of the same salt only: each has another.
            must(told == 0, f"mallory was told that {told} tokens were cached")
        own += await cached(ALICE, secret, **salt)
    must(own > 0, "alice finds nothing of her own either: nothing was tried")
    return f"0 tokens in {3 * ROUNDS} guesses; alice found {own} of her own"
