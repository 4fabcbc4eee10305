"""Arms of experiments as they were recorded: the same requests are in the same ones again."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

from gateway.experiments.experiments import Assigned, Experiments, KeyOf, Serves
from gateway.lab.replay.replay_backend import World
from gateway.policy.schema import Policy
from gateway.recording.recorded_request import RecordedRequest
from gateway.types import Call


class RecordedExperiments(Experiments):
    """Those of ``policy``. A request that was recorded in none gets the arm that its user would have, or the beginning
    of its prompt where none is known: nobody has kept what the assignment is made of."""

    def __init__(self, policy: Policy, world: World, serves: Serves = lambda call, model: True) -> None:
        super().__init__(policy, serves)
        self._world = world

    def assigned(self, call: Call, key_of: KeyOf) -> Assigned | None:
        record = self._world.asked[call.request_id].record
        name = record.experiment.partition("#")[0]
        arm = self.arms.get(name, {}).get(record.arm)
        if arm is None:
            return super().assigned(call, lambda call, key: _key(record, call, key))
        if arm.run == record.experiment:  # its prompt is among the tokens that were counted
            arm = replace(arm, prompt=None)
        return Assigned(arm, "recorded")


def _key(record: RecordedRequest, call: Call, key: str) -> bytes:
    who = (
        ""
        if key == "tenant"
        else (key == "user" and record.user) or str(record.blocks[:1] or record.request_id)
    )
    return blake2b(f"{call.principal.tenant}\0{who}".encode(), digest_size=8).digest()
