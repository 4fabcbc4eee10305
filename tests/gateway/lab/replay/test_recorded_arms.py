"""A replay gives recorded requests the arms that they had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from gateway.lab.replay.recorded_arms import RecordedExperiments
from gateway.lab.replay.replay_backend import World
from gateway.recording.recorded_request import RecordedRequest
from gateway.stages.experiment import assign
from gateway.types import Call
from tests.fakes import a_call, policy

POLICY = policy(
    models={"m": {"targets": [{"backend": "up", "model": "x"}]}},
    prompts={"brief": "Be brief."},
    experiments={"tone": {"arms": {"old": {}, "new": {"prompt": "brief"}, "other": {}}}},
)


def replayed(**recorded: Any) -> Call:
    record = RecordedRequest(0.0, "req_test", **recorded)
    world = cast(World, SimpleNamespace(asked={"req_test": SimpleNamespace(record=record)}))
    call = a_call()
    assign(RecordedExperiments(POLICY, world), call)
    return call


def arm(call: Call) -> str:
    return str(call.receipt.notes["experiment"]["arm"])


def test_the_same_arm_again_and_its_prompt_only_where_it_was_not_counted() -> None:
    run = RecordedExperiments(POLICY, cast(World, None)).arms["tone"]["new"].run
    same, edited = replayed(experiment=run, arm="new"), replayed(experiment="tone#00000000", arm="new")
    assert arm(same) == arm(edited) == "new"
    assert len(same.request.messages or ()) == 1, "its tokens are among those of the record"
    assert len(edited.request.messages or ()) == 2


def test_who_was_in_none_has_one_by_his_user() -> None:
    arms = {user: arm(replayed(user=user)) for user in map(str, range(60))}
    assert {*arms.values()} == {"old", "new", "other"}
    assert arms == {user: arm(replayed(user=user, experiment="m to up/y", arm="new")) for user in arms}, (
        "a roll-out"
    )
    assert len({arm(replayed(blocks=(7, one))) for one in range(20)}) == 1, "one conversation"
