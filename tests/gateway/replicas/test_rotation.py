"""How much of its share each replica gets, on a clock that is given."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.policy.loader import Loaded
from gateway.policy.members import Found, Members, is_replica, member_name, parent_of, with_members
from gateway.policy.schema import Target, Timeouts
from gateway.replicas.rotation import LEAST, Rotation
from gateway.routing.affinity import Affinity
from gateway.routing.replica_selector import MANY, SOME, ReplicaSelector
from gateway.routing.router import Router
from gateway.routing.selector import ModelTargets
from gateway.types import Candidate
from tests.examples import examples
from tests.fakes import a_call, policy


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Idle:
    """Loads, by backend; those that are not named are idle."""

    cold: frozenset[tuple[str, str]] = frozenset()

    def __init__(self, loads: Mapping[str, int] = {}, full: frozenset[str] = frozenset()) -> None:
        self.loads, self.full = loads, full

    def saturation(self, backend: str, caller: object = None, /) -> float:
        return 1.0 if backend in self.full else 0.0

    def load(self, backend: str, /) -> int:
        return self.loads.get(backend, 0)

    def has_capacity(self, backend: str, tokens: int, caller: object = None, /) -> bool:
        return backend not in self.full


def loaded(**backend: Any) -> Loaded:
    how = {"kind": "openai", "base_url": "http://pool/v1", "replicas": {"dns": "pool"}, **backend}
    models = {"m": {"targets": [{"backend": "pool", "model": "x", "weight": 6}]}}
    prices = {"pool/x": {"input": 1.0, "output": 2.0}}
    return Loaded(policy(backends={"pool": how}, models=models, prices=prices), {}, "", ())


def of(*hosts: str, **zones: str) -> dict[str, list[Found]]:
    return {"pool": [Found(f"http://{host}/v1", 1.0, zones.get(host)) for host in hosts]}


def rotation(found: Mapping[str, list[Found]], clock: Clock, **how: Any) -> tuple[Rotation, Members]:
    rotation = Rotation(how.pop("zone", None), clock=clock)
    expanded, members = with_members(loaded(**how), found)
    rotation.update(expanded.policy, members)
    return rotation, members


def join(rotation: Rotation, found: Mapping[str, list[Found]], **how: Any) -> None:
    expanded, members = with_members(loaded(**how), found)
    rotation.update(expanded.policy, members)


@given(steps=st.lists(st.floats(0, 5), max_size=20))
@settings(max_examples=examples(50))
def test_a_replica_that_comes_gets_ever_more_of_its_share(steps: list[float]) -> None:
    clock = Clock()
    one, _ = rotation(of("a"), clock)
    assert one.share("pool@a") == 1.0, "the first have nobody to spare them"
    join(one, of("a", "b"))
    shares = [one.share("pool@b")]
    for step in steps:
        clock.now += step
        shares.append(one.share("pool@b"))
    assert shares[0] == LEAST and shares == sorted(shares) and shares[-1] <= 1.0
    assert one.share("pool@a") == 1.0
    clock.now += 10.0
    assert one.share("pool@b") == 1.0


def test_one_that_comes_back_starts_slowly_again() -> None:
    clock = Clock()
    one, _ = rotation(of("a", "b"), clock, replicas={"dns": "pool", "outliers": {}})
    watcher = one.watcher("pool@a")
    assert watcher is not None and one.watcher("other") is None
    for _ in range(5):
        watcher.failed()
    assert one.share("pool@a") == 0.0
    clock.now += 30.0
    assert one.share("pool@a") == LEAST
    clock.now += 5.0
    assert one.share("pool@a") == 0.5
    watcher.returned()  # its breaker closed
    assert one.share("pool@a") == LEAST
    watcher.failed()
    join(one, of("b"))
    watcher.succeeded()  # of a request that outlived it
    assert one.share("pool@a") == 1.0


@given(
    fails=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=200),
    percent=st.integers(1, 100),
)
@settings(max_examples=examples(50))
def test_never_more_are_ejected_than_may_be(fails: list[tuple[int, bool]], percent: int) -> None:
    clock = Clock()
    names = [f"h{number}" for number in range(6)]
    rules = {"consecutive_5xx": 2, "max_ejection_percent": float(percent)}
    one, _ = rotation(of(*names), clock, replicas={"dns": "pool", "outliers": rules})
    for number, well in fails:
        clock.now += 0.5
        watcher = one.watcher(f"pool@h{number}")
        assert watcher is not None
        (watcher.succeeded if well else watcher.failed)()
        out = sum(one.share(f"pool@{name}") == 0.0 for name in names)
        assert out <= min(5, max(1, 6 * percent // 100))


def order(one: Rotation, members: Members, loads: Idle, select: str = "least_loaded") -> list[str]:
    group = tuple(
        Candidate("m", Target(backend=member.name, model="x"), Timeouts()) for member in members["pool"]
    )
    selector = ReplicaSelector(loads, Affinity(), Random(1), members, one)
    return [
        found.target.backend.removeprefix("pool@")
        for found in selector.order(ModelTargets("m", select, (group,)), None)  # type: ignore[arg-type]
    ]


def test_those_of_the_own_zone_are_asked_first_until_they_are_full() -> None:
    found = of("a", "b", "c", a="east", b="east", c="west")
    one, members = rotation(found, Clock(), zone="east")
    assert order(one, members, Idle({"pool@a": 9, "pool@b": 5})) == ["b", "a", "c"]
    assert order(one, members, Idle({"pool@a": 9, "pool@b": 5}, frozenset({"pool@a"}))) == ["b", "a", "c"]
    assert order(one, members, Idle({"pool@a": 9, "pool@b": 5}, frozenset({"pool@a", "pool@b"})))[0] == "c"
    nowhere, members = rotation(found, Clock())
    assert order(nowhere, members, Idle({"pool@a": 9, "pool@b": 5}))[0] == "c"


def test_an_ejected_one_is_asked_last_and_all_are_asked_where_all_are() -> None:
    one, members = rotation(of("a", "b", "c"), Clock(), replicas={"dns": "pool", "outliers": {}})
    watcher = one.watcher("pool@a")
    assert watcher is not None
    for _ in range(5):
        watcher.failed()
    assert {tuple(order(one, members, Idle()))[-1] for _ in range(5)} == {"a"}
    for name in ("b", "c"):
        group = one.group_of("pool@b")
        assert group is not None
        group.standings[f"pool@{name}"].ejected_until = float("inf")
    assert sorted(order(one, members, Idle({"pool@b": 1}))) == ["a", "b", "c"]


def test_of_very_many_some_are_looked_at_and_all_may_be_asked() -> None:
    names = [f"h{number}" for number in range(200)]
    one, members = rotation(of(*names), Clock())
    full = Idle({f"pool@{name}": 9 for name in names[:100]})
    found = order(one, members, full)
    assert sorted(found) == sorted(names)
    # Of so many that are drawn some are idle but for one time in billions, and those are asked first.
    assert full.loads.get(f"pool@{found[0]}", 0) == 0
    looked_at = [full.loads.get(f"pool@{name}", 0) for name in found[:SOME]]
    assert looked_at == sorted(looked_at) and len(set(looked_at)) == 2
    exact = order(*rotation(of(*names[:MANY]), Clock()), Idle({f"pool@{name}": 9 for name in names[1:]}))
    assert exact[0] == names[0]


def test_of_very_many_those_of_the_own_zone_are_asked_first() -> None:
    names = [f"h{number}" for number in range(200)]
    here = set(names[:10])
    zones = {name: "east" if name in here else "west" for name in names}
    one, members = rotation(of(*names, **zones), Clock(), zone="east")
    assert set(order(one, members, Idle({f"pool@{name}": 5 for name in here}))[:10]) == here
    full = frozenset(f"pool@{name}" for name in here)
    assert order(one, members, Idle({f"pool@{name}": 5 for name in here}, full))[0] not in here


def test_one_that_starts_slowly_gets_as_much_less_of_the_load() -> None:
    clock = Clock()
    one, _ = rotation(of("a"), clock)
    expanded, members = with_members(loaded(), of("a", "b"))
    one.update(expanded.policy, members)
    assert order(one, members, Idle({"pool@a": 9, "pool@b": 1}))[0] == "a"
    assert order(one, members, Idle({"pool@a": 11, "pool@b": 1}))[0] == "b"


def test_a_weight_is_shared_where_requests_are_drawn_and_each_ones_where_loads_are_compared() -> None:
    expanded, members = with_members(loaded(), of("a", "b", "c"))
    one = Rotation()
    one.update(expanded.policy, members)
    weights = {}
    for select in ("weighted", "least_loaded"):
        model = expanded.policy.models["m"].model_copy(update={"select": select})
        drawn = expanded.policy.model_copy(update={"models": {"m": model}})
        router = Router(drawn, expanded.policy.backends, Idle(), members=members, rotation=one)
        plan = router.plan(a_call(policy_=drawn))
        assert {candidate.target.backend for candidate in plan} == {"pool@a", "pool@b", "pool@c"}
        weights[select] = {candidate.target.weight for candidate in plan}
    assert weights == {"weighted": {2.0}, "least_loaded": {6.0}}


def test_what_is_said_of_the_backend_holds_for_each_replica() -> None:
    expanded, members = with_members(
        loaded(region="eu"), of("a:8000", "[fd00::1]:8000"), frozenset({"pool@a:8000"})
    )
    (member,) = members["pool"]
    assert member.name == "pool@fd00::1:8000" and is_replica(member.name, expanded.policy)
    assert parent_of(member.name, expanded.policy) == "pool" and parent_of("pool", expanded.policy) is None
    assert expanded.policy.backends[member.name].region == "eu"
    assert expanded.policy.prices[f"{member.name}/x"] == expanded.policy.prices["pool/x"]
    assert "pool@a:8000" in expanded.policy.drained
    assert member_name("pool", "https://lb/a/v1") == "pool@lb/a"
    gone, members = with_members(loaded(), {"pool": []})
    assert members == {"pool": ()} and gone.disabled == {"pool": "it has no replica now"}
    plain = Loaded(policy(), {}, "", ())
    assert with_members(plain, {})[0] is plain
