"""Which server a request for an adapter goes to first, and the policy in which it is a model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from gateway.adapters.adapter import Adapter
from gateway.adapters.derived import policy_of, targets_of
from gateway.routing.affinity import Affinity
from gateway.runtime.adapter_views import AdapterRouter, rank_of
from tests.fakes import a_call, policy

SUPPORT = Adapter(
    f"adapter-{7:032x}", "acme", "support", "base", 2, (), 10, "0" * 64, "file", "0" * 64, 10, 0, "key"
)
NAMES = ("one", "two", "three")


def of_three(**more: Any) -> Any:
    engines = {name: {"kind": "engine", "base_url": f"http://{name}:1"} for name in NAMES}
    model = {"targets": [{"backend": name, "model": "x"} for name in (*NAMES, "bought")], **more}
    return policy(
        backends={**engines, "bought": {"kind": "openai", "base_url": "http://p:1/v1"}, "up": engines["one"]},
        models={"base": model, "other": {"targets": [{"backend": "up", "model": "y"}]}},
        adapters={"servers": {name: {} for name in NAMES}},
        guards={"length": {"models": ["ba*"], "max_characters": 10}, "secrets": {"models": ["other"]}},
        prices={"x": {"input": 1.0, "output": 2.0}, "two/x": {"input": 3.0, "output": 4.0}},
        tiers={
            "free": {"on_saturation": {"action": "downgrade", "to": "other", "at": 0.5}},
            "trial": {"on_saturation": {"action": "shed", "at": 0.5}},
        },
        experiments={"e": {"arms": {"a": {"model": "base"}, "b": {"model": "other"}}}},
    )


@dataclass
class Known:
    """What is known of one server, in place of ``Residents``."""

    has_it: bool = False
    has_room: bool = True

    def holds(self, id: str) -> bool:
        return self.has_it and id == SUPPORT.id


@dataclass
class Loads:
    full: Collection[str] = ()
    cold: Collection[tuple[str, str]] = ()

    def saturation(self, backend: str, caller: object = None) -> float:
        return 1.0 if backend in self.full else 0.0

    def load(self, backend: str) -> int:
        return NAMES.index(backend)

    def has_capacity(self, backend: str, tokens: int, caller: object = None) -> bool:
        return backend not in self.full


@dataclass
class Rotation:
    ejected: Collection[str] = ()
    zone: str | None = None

    def share(self, name: str) -> float:
        return 0.0 if name in self.ejected else 1.0


@dataclass
class Case:
    known: dict[str, Known] = field(default_factory=dict)
    full: Collection[str] = ()
    ejected: Collection[str] = ()


@pytest.mark.parametrize(
    ("case", "order"),
    [
        (Case(), ["one", "two", "three"]),
        (Case({"three": Known(has_it=True)}), ["three", "one", "two"]),
        (Case({"one": Known(has_room=False)}), ["two", "three", "one"]),
        (Case({"three": Known(has_it=True)}, full=["three"]), ["one", "two", "three"]),
        (Case({"two": Known(has_it=True)}, ejected=["two"]), ["one", "three", "two"]),
    ],
    ids=["none has it", "one has it", "one has no room", "who has it is full", "who has it is ejected"],
)
def test_who_has_it_comes_first(case: Case, order: list[str]) -> None:
    found = policy_of(of_three(select="least_loaded"), SUPPORT)
    assert found is not None
    known = {name: case.known.get(name, Known()) for name in NAMES}
    router = AdapterRouter(
        found,
        found.backends.keys(),
        Affinity(),
        Random(1),
        rank=rank_of(SUPPORT, known.__getitem__),  # type: ignore[arg-type]
        loads=Loads(case.full),
        rotation=Rotation(case.ejected),
    )
    plan = router.plan(a_call(model="base:support", policy_=found))
    assert [one.target.backend for one in plan] == order
    assert {one.target.model for one in plan} == {SUPPORT.id}


def test_its_policy_has_what_holds_of_its_base_and_nothing_that_stands_in() -> None:
    base = of_three(
        fallbacks=["other"], spill_over=True, aliases=["b"], context=4096, shadow={"model": "other"}
    )
    found = policy_of(base, SUPPORT)
    assert found is not None
    own = found.models["base:support"]
    assert [target.backend for target in own.targets] == [*NAMES]  # the bought one loads none
    assert (own.fallbacks, own.spill_over, own.shadow, own.context) == ((), False, None, 4096)
    for name in ("base:support", "b:support", f"base:{SUPPORT.id}", f"b:{SUPPORT.id}"):
        assert found.resolve(name) == "base:support"
    assert found.resolve("base") is None
    assert found.prices[f"one/{SUPPORT.id}"].input == 1.0 and found.prices[f"two/{SUPPORT.id}"].input == 3.0
    who = {"key_id": "k", "model": "base:support", "route": "/v1/chat/completions"}
    assert [name for name, guard in found.guards.items() if guard.looks_after("acme", **who)] == ["length"]
    assert not found.experiments and found.tier("free").on_saturation is None
    assert found.tier("trial") == base.tier("trial")  # it leaves its places, whatever it asks
    assert base.resolve("base:support") is None and base.tier("free").on_saturation is not None


def test_there_is_none_of_a_model_that_is_not_served_where_adapters_are() -> None:
    found = of_three()
    assert not targets_of(found, "other") and not targets_of(found, "nothing")
    assert policy_of(found.model_copy(update={"adapters": None}), SUPPORT) is None
