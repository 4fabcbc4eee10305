"""Puts a request into an arm of an experiment: before limits, guards and caches, which see what the arm makes of it."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.experiments.experiments import Experiments
from gateway.experiments.system_prompt import with_prompt
from gateway.routing.split_key import split_key
from gateway.types import Call, Chunk, Chunks, Handler, Stage, WholeHandler


def experiment(experiments: Experiments) -> Stage:
    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            assign(experiments, call)
            return following(call)

        return handle

    return stage


def experiment_whole(experiments: Experiments, following: WholeHandler) -> WholeHandler:
    """``experiment`` of calls whose answers come whole."""

    async def handle(call: Call) -> Sequence[Chunk]:
        assign(experiments, call)
        return await following(call)

    return handle


def assign(experiments: Experiments, call: Call) -> None:
    """Change ``call`` to what its arm says, once."""
    if call.arm:
        return
    found = experiments.assigned(call, split_key)
    if found is None:
        return
    arm = found.arm
    call.arm = arm.id
    call.receipt.note("experiment", name=arm.run, arm=arm.name, assignee=found.assignee)
    if arm.model is not None:
        call.model = arm.model
    if arm.prompt is not None:
        call.receipt.note("experiment", prompt=arm.prompt, digest=arm.digest)
        call.request = with_prompt(call.request, arm.text, arm.place)
