"""100,000 random steps: whatever happens, blocks add up, nobody is lost, and every answer is as if alone.

``test_so_it_is_with_any_settings`` drives all of them, each other slow one a fifth, and quick ones a thousand.
``TOLLGATE_MACHINE_STEPS`` asks for more.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from engine.core import prefix_cache
from tests.engine.core.world import World

STEPS = int(os.environ.get("TOLLGATE_MACHINE_STEPS", "100000"))
QUICK = 1_000
LENGTH = 250

ACTIONS: dict[str, Callable[[World], None]] = {
    "step": World.step,
    "submit": World.submit,
    "abort": World.abort,
    "abort midway": lambda world: world.step(midway=True),
    "forget": World.forget,
    "park": World.park,
}
CHOICES = ["step"] * 9 + ["submit"] * 5 + ["abort", "abort midway", "forget", "park"]


def anything(rng: Random) -> dict[str, int]:
    """Settings that no list thought of."""
    switches = ("caching", "speculating", "crowd", "ahead", "failing", "windows")
    options: dict[str, int] = {name: rng.random() < 0.5 for name in switches}
    options["tenants"] = rng.choice((1, 1, 2, 3))
    options["tiers"] = options["caching"] and not options["windows"] and rng.random() < 0.5
    options["paging"] = options["crowd"]
    # They allow neither of the two.
    options["states"] = not (options["tiers"] or options["speculating"]) and rng.random() < 0.5
    return options


def machine(tally: Counter[str], **options: int) -> type[RuleBasedStateMachine]:
    class Machine(RuleBasedStateMachine):
        """What happens is Hypothesis's to choose and to shrink; how, a seed says."""

        world: World | None = None

        @initialize(seed=st.integers(0, 2**32 - 1))
        def start(self, seed: int) -> None:
            rng = Random(seed)
            self.world = World(rng, tally, **(options or anything(rng)))

        @rule(action=st.sampled_from(CHOICES))
        def act(self, action: str) -> None:
            assert self.world is not None
            ACTIONS[action](self.world)
            self.world.check()
            tally["steps"] += 1

        def teardown(self) -> None:
            if self.world is not None:
                self.world.drain()

    return Machine


ALWAYS = {"finished", "aborted", "refused", "queue full", "unreachable", "expired", "preempted", "chunks"}
ALWAYS |= {"siblings", "copies", "siblings aborted", "leaders aborted", "parked", "late", "scored"}
HITS = {"hits"}
WINDOWS = {"behind"}
AHEAD = {"ahead", "stalled", "dropped"}
FAILING = {"out of memory", "failed beside another"}
PAGING = {"swaps", "adapters read", "blocked"}
STATES = ALWAYS - {"late"} | {"state copies"}
TIERS = {"loading", "loaded", "read", "written", "corrupt", "unwritten"}
DRAFTS = {"drafts right", "drafts wrong", "stops drafted"}
UNSEEN = {"drafts unseen", "slack"}


def drive(options: dict[str, int], expected: set[str], steps: int) -> None:
    tally: Counter[str] = Counter()
    run_state_machine_as_test(
        machine(tally, **options),
        settings=settings(
            # Some end early.
            max_examples=-(-steps * 51 // (LENGTH * 50)) + 2,
            stateful_step_count=LENGTH,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert tally["steps"] >= steps
    assert all(tally[name] >= (steps > QUICK if name in TIERS else steps / 1000) for name in expected), tally


@pytest.mark.timeout(900)
@pytest.mark.parametrize("steps", [QUICK, pytest.param(STEPS // 5, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"caching": False, "speculating": False, "crowd": True}, ALWAYS),
        ({"caching": True, "speculating": False, "crowd": True}, ALWAYS | HITS),
        ({"caching": False, "speculating": True, "crowd": True}, ALWAYS | DRAFTS),
        ({"caching": True, "speculating": True, "crowd": True}, ALWAYS | HITS | DRAFTS),
        ({"caching": True, "speculating": True, "crowd": False}, ALWAYS | HITS | DRAFTS),
        ({"caching": True, "speculating": False, "crowd": True, "tenants": 2}, ALWAYS | HITS),
        ({"caching": True, "speculating": True, "crowd": False, "tenants": 3}, ALWAYS | HITS | DRAFTS),
        ({"caching": False, "speculating": True, "crowd": True, "windows": True}, ALWAYS | DRAFTS | WINDOWS),
        ({"caching": True, "speculating": False, "crowd": True, "windows": True}, ALWAYS | HITS | WINDOWS),
        (
            {"caching": True, "speculating": True, "crowd": False, "tenants": 2, "windows": True},
            ALWAYS | HITS | DRAFTS | WINDOWS,
        ),
        (
            {"caching": True, "speculating": False, "crowd": True, "ahead": True, "windows": True},
            ALWAYS | HITS | {"ahead"} | WINDOWS,
        ),
        ({"caching": False, "speculating": False, "crowd": True, "ahead": True}, ALWAYS | AHEAD),
        ({"caching": True, "speculating": False, "crowd": True, "ahead": True}, ALWAYS | AHEAD | HITS),
        (
            {"caching": True, "speculating": True, "crowd": True, "ahead": True},
            ALWAYS | AHEAD | HITS | DRAFTS | UNSEEN,
        ),
        (
            {
                "caching": True,
                "speculating": True,
                "crowd": False,
                "tenants": 2,
                "ahead": True,
                "failing": True,
                "windows": True,
            },
            ALWAYS | AHEAD | DRAFTS | UNSEEN | FAILING | WINDOWS,
        ),
        (
            {"caching": True, "speculating": False, "crowd": False, "tenants": 3, "ahead": True},
            ALWAYS | AHEAD,
        ),
        (
            {"caching": True, "speculating": False, "crowd": True, "ahead": True, "failing": True},
            ALWAYS | AHEAD | FAILING,
        ),
        ({"caching": True, "speculating": False, "crowd": True, "tiers": True}, ALWAYS | HITS | TIERS),
        (
            {"caching": True, "speculating": True, "crowd": True, "tenants": 2, "tiers": True},
            ALWAYS | HITS | DRAFTS | TIERS,
        ),
        (
            {
                "caching": True,
                "speculating": False,
                "crowd": True,
                "ahead": True,
                "failing": True,
                "tiers": True,
            },
            ALWAYS | AHEAD | HITS | FAILING | TIERS,
        ),
        (
            {"caching": True, "speculating": True, "crowd": True, "paging": True},
            ALWAYS | HITS | DRAFTS | PAGING,
        ),
        (
            {"caching": True, "speculating": False, "crowd": False, "tenants": 3, "paging": True},
            ALWAYS - {"preempted"} | HITS | PAGING,
        ),
        (
            {
                "caching": True,
                "speculating": False,
                "crowd": True,
                "ahead": True,
                "failing": True,
                "paging": True,
            },
            ALWAYS | AHEAD | HITS | FAILING | PAGING,
        ),
        ({"caching": False, "speculating": False, "crowd": True, "states": True}, STATES),
        (
            {"caching": False, "speculating": False, "crowd": True, "states": True, "windows": True},
            STATES | WINDOWS,
        ),
        (
            {"caching": False, "speculating": False, "crowd": False, "states": True, "tenants": 3},
            STATES - {"preempted"},
        ),
        (
            {"caching": False, "speculating": False, "crowd": True, "states": True, "ahead": True},
            STATES | AHEAD,
        ),
        (
            {
                "caching": False,
                "speculating": False,
                "crowd": True,
                "states": True,
                "ahead": True,
                "failing": True,
            },
            STATES | AHEAD | FAILING,
        ),
        (
            {"caching": False, "speculating": False, "crowd": True, "states": True, "failing": True},
            STATES | {"out of memory"},
        ),
        ({"caching": True, "speculating": False, "crowd": True, "states": True}, STATES | HITS),
        (
            {
                "caching": True,
                "speculating": False,
                "crowd": False,
                "states": True,
                "windows": True,
                "tenants": 2,
            },
            STATES - {"preempted"} | HITS,
        ),
        (
            {
                "caching": True,
                "speculating": False,
                "crowd": True,
                "states": True,
                "ahead": True,
                "failing": True,
            },
            STATES | AHEAD | HITS | FAILING,
        ),
    ],
)
def test_every_answer_is_as_if_alone(options: dict[str, int], expected: set[str], steps: int) -> None:
    drive(options, expected, steps)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("steps", [QUICK, pytest.param(STEPS, marks=pytest.mark.slow)])
def test_so_it_is_with_any_settings(steps: int) -> None:
    rare = HITS | WINDOWS | AHEAD | DRAFTS | FAILING if steps > QUICK else set()
    drive({}, ALWAYS | rare, steps)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("steps", [QUICK, pytest.param(5_000, marks=pytest.mark.slow)])
def test_blocks_whose_keys_collide_are_told_apart_by_their_tokens(
    monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """With keys of three bits."""
    monkeypatch.setattr(
        prefix_cache,
        "block_key",
        lambda parent, tokens: bytes([blake2b(parent + tokens, digest_size=1).digest()[0] & 7]),
    )
    drive({"caching": True, "speculating": True, "crowd": False}, ALWAYS | HITS, steps)
