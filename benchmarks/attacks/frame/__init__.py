"""What attacks stand on.

An attack is a file beside this package::

    \"\"\"A client hangs up before the answer: is what the provider bills charged?\"\"\"

    from benchmarks.attacks.frame import Rig, must

    POINT = "B.8"
    TRIED = "20 non-streamed requests, each left after 100 ms"
    HOLDS = "every one is charged"

    async def attack(rig: Rig) -> str:
        upstream = await rig.upstream(reply(completion()))
        gateway = await rig.gateway(rig.policy(upstream))
        …
        must(charged == 20, f"{20 - charged} of 20 were free")
        return f"{charged} of 20 charged"

``attack`` returns in a few words what happened. ``must`` ends it as one that succeeded; ``skip`` as one that cannot be
tried here. What the rig starts, it ends. Tenants are ``mallory`` (``rig.MALLORY`` is a key of hers) and ``alice``.
"""

from benchmarks.attacks.frame.attack import Attack, Outcome, found
from benchmarks.attacks.frame.gateway import Gateway
from benchmarks.attacks.frame.rig import ALICE, MALLORY, Rig
from benchmarks.attacks.frame.verdict import Skipped, Succeeded, must, skip

__all__ = [
    "ALICE",
    "MALLORY",
    "Attack",
    "Gateway",
    "Outcome",
    "Rig",
    "Skipped",
    "Succeeded",
    "found",
    "must",
    "skip",
]
