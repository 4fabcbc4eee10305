"""Who is in which arm of which experiment."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as of_test
from hypothesis import strategies as st

from gateway.experiments.assignment import arm_of as drawn_arm
from gateway.experiments.experiments import Experiments, is_part, run_of
from gateway.policy.schema import Policy
from gateway.routing.split_key import split_key
from gateway.types import Principal
from tests.examples import examples
from tests.fakes import a_call, policy


def compared(**more: Any) -> Policy:
    """Two experiments over all of ``m``, the first over half of the users."""
    arms = {"old": {}, "new": {"prompt": "brief"}}
    experiments = {"one": {"arms": arms, "share": 0.5}, "two": {"arms": arms}}
    target = {"backend": "up", "model": "x"}
    return policy(
        models={"m": {"targets": [target]}, "other": {"targets": [target]}},
        **{"experiments": experiments, "prompts": {"brief": "Be brief."}, **more},
    )


def arm_of(experiments: Experiments, user: str, **more: Any) -> tuple[str, str] | None:
    found = experiments.assigned(a_call(params={"user": user}, **more), split_key)
    return None if found is None else (found.arm.experiment, found.arm.name)


def test_a_request_is_part_of_the_first_experiment_that_is_about_it() -> None:
    experiments = Experiments(compared())
    seen = Counter(arm_of(experiments, f"u{one}") for one in range(2000))
    for where in (("one", "old"), ("one", "new"), ("two", "old"), ("two", "new")):
        assert seen[where] == pytest.approx(500, abs=90)


USERS = st.text(max_size=30)
WEIGHTS = st.floats(0.01, 100)


@of_test(max_examples=examples(200))
@given(USERS, WEIGHTS, WEIGHTS, st.floats(1.1, 10), st.floats(0.01, 1), st.floats(0.01, 1))
def test_an_arm_stays_whatever_else_changes(
    user: str, old: float, new: float, grown: float, share: float, more: float
) -> None:
    """Other processes and contents change nothing; what grows takes, and gives nothing away."""

    def made(weight: float, text: str, share: float) -> Experiments:
        arms = {"old": {"weight": old}, "new": {"weight": weight, "prompt": "brief"}}
        return Experiments(
            compared(experiments={"one": {"arms": arms, "share": share}}, prompts={"brief": text})
        )

    low, high = sorted((share, more))
    before = arm_of(made(new, "Be brief.", low), user)
    assert before == arm_of(made(new, "Be very brief.", low), user)
    wider = arm_of(made(new, "Be brief.", high), user)
    assert before is None or wider == before
    if before == ("one", "new"):
        assert arm_of(made(new * grown, "Be brief.", low), user) == before


@of_test(max_examples=examples(40))
@given(st.text(min_size=1, max_size=10), st.text(min_size=1, max_size=10))
def test_two_experiments_draw_independently(one: str, other: str) -> None:
    if one == other:
        return
    keys = [number.to_bytes(4, "big") for number in range(1000)]
    weights = {"old": 1.0, "new": 1.0}
    drawn = [[drawn_arm(name, key, weights) == "new" for key in keys] for name in (one, other)]
    parts = [is_part(one, key, 0.5) for key in keys]
    for first, second in ((drawn[0], drawn[1]), (drawn[0], parts), (parts, drawn[1])):
        both = sum(a and b for a, b in zip(first, second, strict=True))
        expected = sum(first) * sum(second) / len(keys)
        assert both == pytest.approx(expected, abs=6 * (len(keys) / 16) ** 0.5)


def test_what_cannot_have_every_arm_is_part_of_none() -> None:
    experiments = Experiments(compared())
    assert arm_of(experiments, "u", prompt="Once upon a time") is None, (
        "there is no place for a system prompt"
    )
    assert arm_of(experiments, "u", prompt="x", embeds=True) is None
    only = Experiments(
        compared(experiments={"one": {"arms": {"a": {}, "b": {}}, "where": {"tenants": ["b*"]}}})
    )
    assert arm_of(only, "u") is None
    assert arm_of(only, "u", principal=Principal("k", "boss")) is not None


def test_another_content_is_another_run_and_another_share_is_not() -> None:
    def run(arm: dict[str, Any], text: str = "Be brief.", **more: Any) -> str:
        arms = {"old": {}, "new": {"prompt": "brief", **arm}}
        return run_of(compared(experiments={"one": {"arms": arms, **more}}, prompts={"brief": text}), "one")

    assert run({}).startswith("one#")
    assert run({}) == run({}, share=0.5, metrics=["cost"])
    assert (
        len(
            {
                run({}),
                run({}, "Be kind."),
                run({"weight": 2.0}),
                run({"model": "other"}, where={"models": ["m"]}),
            }
        )
        == 4
    )
