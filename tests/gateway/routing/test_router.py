from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ContextTooLong, Forbidden, ModelUnavailable
from gateway.policy.schema import Policy
from gateway.routing.affinity import target_name
from gateway.routing.router import Router
from gateway.routing.selector import Caller
from gateway.types import Call, Candidate, Principal, TokenEstimate
from tests.fakes import a_call, policy


class Figures:
    """How full the backends are said to be."""

    def __init__(self) -> None:
        self.loads: Counter[str] = Counter()
        self.full: set[str] = set()
        self.saturations: dict[str, float] = {}
        self.tokens: list[int] = []

    def saturation(self, backend: str, caller: Caller | None = None, /) -> float:
        return self.saturations.get(backend, 0.0)

    def load(self, backend: str, /) -> int:
        return self.loads[backend]

    cold: frozenset[tuple[str, str]] = frozenset()

    def has_capacity(self, backend: str, tokens: int, caller: Caller | None = None, /) -> bool:
        self.tokens.append(tokens)
        return backend not in self.full


def backends(**more: dict[str, Any]) -> dict[str, Any]:
    """``a`` to ``f``; ``more`` adds keys to them."""
    plain = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}
    return {name: {**plain, **more.get(name, {})} for name in (*"abcdef", *more)}


def to(*places: str) -> list[dict[str, Any]]:
    """Targets from ``backend`` or ``backend/model`` or ``backend/model*weight``."""
    targets = []
    for text in places:
        where, _, weight = text.partition("*")
        backend, _, model = where.partition("/")
        targets.append({"backend": backend, "model": model or "x", "weight": float(weight or 1)})
    return targets


def a_policy(models: dict[str, Any], *, of: dict[str, Any] | None = None, **more: Any) -> Policy:
    return policy(backends=of or backends(), models=models, **more)


def a_router(
    rules: Policy, *, figures: Figures | None = None, enabled: set[str] | None = None, seed: int = 7
) -> Router:
    return Router(
        rules, rules.backends if enabled is None else enabled, figures or Figures(), random=Random(seed)
    )


def ask(rules: Policy, model: str = "m", *, estimate: tuple[int, int] | None = None, **more: Any) -> Call:
    """``estimate``: tokens of prompt, and expected of the answer."""
    call = a_call(policy_=rules, **{"params": {}, **more})
    known = TokenEstimate(estimate[0], estimate[1], estimate[1]) if estimate else None
    return replace(call, model=model, estimate=known)


def told(plan: tuple[Candidate, ...]) -> list[str]:
    return [f"{one.model}:{one.target.backend}:{one.why}" for one in plan]


def test_one_target() -> None:
    rules = a_policy({"m": {"targets": to("a"), "timeouts": {"total": "9s"}}})
    (only,) = a_router(rules).plan(ask(rules))
    assert only == Candidate("m", rules.models["m"].targets[0], rules.models["m"].timeouts, "primary")


def test_a_targets_timeouts_come_before_its_models() -> None:
    targets = [{"backend": "a", "model": "x", "timeouts": {"total": "3s"}}, *to("b")]
    rules = a_policy({"m": {"targets": targets, "timeouts": {"total": "9s"}}})
    totals = {one.target.backend: one.timeouts.total for one in a_router(rules).plan(ask(rules))}
    assert totals == {"a": 3.0, "b": 9.0}


def test_the_first_is_drawn_by_weight_and_the_others_follow() -> None:
    rules = a_policy({"m": {"targets": to("a*6", "b*3", "c*1")}})
    router, call = a_router(rules), ask(rules)
    plans = [router.plan(call) for _ in range(4000)]
    assert {len(plan) for plan in plans} == {3}
    first = Counter(plan[0].target.backend for plan in plans)
    assert {name: count / 4000 for name, count in first.items()} == pytest.approx(
        {"a": 0.6, "b": 0.3, "c": 0.1}, abs=0.025
    )
    after_a = Counter(plan[1].target.backend for plan in plans if plan[0].target.backend == "a")
    assert after_a["b"] / after_a.total() == pytest.approx(0.75, abs=0.03)


def test_regions_in_their_order_and_weights_within_them() -> None:
    of = backends(
        a={"region": "us"}, b={"region": "eu"}, c={"region": "eu"}, d={"region": "asia"}, e={"region": "us"}
    )
    model = {"targets": to(*"abcdef"), "regions": ["eu", "us"]}
    rules = a_policy({"m": model}, of=of)
    router = a_router(rules)
    plans = {"".join(one.target.backend for one in router.plan(ask(rules))) for _ in range(200)}
    assert {frozenset(plan[:2]) for plan in plans} == {frozenset("bc")}
    assert {frozenset(plan[2:4]) for plan in plans} == {frozenset("ae")}
    assert {frozenset(plan[4:]) for plan in plans} == {frozenset("df")}
    assert len(plans) == 8, "every order within the groups"


def test_the_least_loaded_for_its_weight() -> None:
    rules = a_policy({"m": {"targets": to("a*1", "b*4", "c*1"), "select": "least_loaded"}})
    figures = Figures()
    figures.loads.update(a=2, b=4, c=3)
    plan = a_router(rules, figures=figures).plan(ask(rules))
    assert [one.target.backend for one in plan] == ["b", "a", "c"]


def test_another_target_with_room_comes_first() -> None:
    rules = a_policy({"m": {"targets": to("a", "b", "c"), "select": "least_loaded"}})
    figures = Figures()
    figures.loads.update(a=0, b=1, c=2)
    figures.full = {"a", "b"}
    plan = a_router(rules, figures=figures).plan(ask(rules, estimate=(100, 20)))
    assert told(plan) == ["m:c:spill_over", "m:a:primary", "m:b:primary"]
    assert set(figures.tokens) == {120}


@pytest.mark.parametrize("spill_over", [True, False])
def test_a_fallback_comes_first_where_no_target_has_room_and_the_model_spills(spill_over: bool) -> None:
    models = {
        "m": {
            "targets": to("a", "b"),
            "select": "least_loaded",
            "fallbacks": ["f"],
            "spill_over": spill_over,
        },
        "f": {"targets": to("c", "d"), "select": "least_loaded"},
    }
    rules = a_policy(models)
    figures = Figures()
    figures.loads.update(a=1, b=2, c=3, d=4)
    figures.full = {"a", "b", "c"}
    plan = a_router(rules, figures=figures).plan(ask(rules))
    rest = ["m:a:primary", "m:b:primary", "f:c:fallback"]
    assert told(plan) == (["f:d:spill_over", *rest] if spill_over else [*rest, "f:d:fallback"])


def test_where_nobody_has_room_the_order_stays() -> None:
    rules = a_policy(
        {"m": {"targets": to("a"), "fallbacks": ["f"], "spill_over": True}, "f": {"targets": to("b")}}
    )
    figures = Figures()
    figures.full = {"a", "b"}
    assert told(a_router(rules, figures=figures).plan(ask(rules))) == ["m:a:primary", "f:b:fallback"]


def test_fallbacks_and_theirs_each_once_with_their_own_timeouts() -> None:
    models = {
        "m": {"targets": to("a"), "fallbacks": ["f", "g"]},
        "f": {"targets": to("b"), "fallbacks": ["m", "h"], "timeouts": {"total": "3s"}},
        "g": {"targets": to("c"), "fallbacks": ["f", "h"]},
        "h": {"targets": to("d"), "fallbacks": ["m"]},
    }
    rules = a_policy(models)
    plan = a_router(rules).plan(ask(rules))
    assert told(plan) == ["m:a:primary", "f:b:fallback", "g:c:fallback", "h:d:fallback"]
    assert [one.timeouts.total for one in plan] == [1800.0, 3.0, 1800.0, 1800.0]


def test_a_cascade_asked_for_a_count_of_tokens_is_its_last_step() -> None:
    models = {
        "m": {"cascade": [{"model": "f"}, {"model": "g"}]},
        "f": {"targets": to("b")},
        "g": {"targets": to("c")},
    }
    rules = a_policy(models)
    assert told(a_router(rules).plan(ask(rules))) == ["g:c:primary"]


LONGER = {
    "m": {"targets": to("a"), "context": 1000, "larger_context": "l", "fallbacks": ["f"]},
    "l": {"targets": to("b", "c"), "context": 10_000, "larger_context": "xl", "select": "least_loaded"},
    "xl": {"targets": to("d"), "context": 100_000},
    "f": {"targets": to("e"), "context": 2000},
}


@pytest.mark.parametrize(
    ("prompt", "cap", "plan"),
    [
        (
            900,
            100,
            [
                "m:a:primary",
                "f:e:fallback",
                "l:b:larger_context",
                "l:c:larger_context",
                "xl:d:larger_context",
            ],
        ),
        (900, 101, ["l:b:larger_context", "l:c:fallback", "f:e:fallback", "xl:d:larger_context"]),
        (2001, None, ["l:b:larger_context", "l:c:fallback", "xl:d:larger_context"]),
        (10_001, None, ["xl:d:larger_context"]),
    ],
    ids=["fits", "with its answer too long", "too long for the fallback", "too long for the larger"],
)
def test_a_larger_context_for_what_does_not_fit(prompt: int, cap: int | None, plan: list[str]) -> None:
    rules = a_policy(LONGER)
    figures = Figures()
    figures.loads.update(c=1)
    params = {} if cap is None else {"max_completion_tokens": cap}
    call = ask(rules, estimate=(prompt, 10), params=params)
    assert told(a_router(rules, figures=figures).plan(call)) == plan


def test_without_a_demand_everything_fits() -> None:
    rules = a_policy(LONGER)
    assert told(a_router(rules).plan(ask(rules, params={"max_tokens": 10**9})))[0] == "m:a:primary"


def test_several_prompts_have_a_context_each() -> None:
    rules = a_policy(LONGER)
    call = ask(rules, estimate=(3000, 10), prompt=["one", "two", "three"])
    assert told(a_router(rules).plan(call))[0] == "m:a:primary"
    call = ask(rules, estimate=(3000, 10), prompt=[1, 2, 3])
    assert a_router(rules).plan(call)[0].model == "l"


def test_a_full_stand_in_spills_over() -> None:
    rules = a_policy(LONGER)
    figures = Figures()
    figures.loads.update(c=1)
    figures.full = {"b"}
    plan = a_router(rules, figures=figures).plan(ask(rules, estimate=(5000, 10)))
    assert told(plan) == ["l:c:spill_over", "l:b:fallback", "xl:d:larger_context"]


@pytest.mark.parametrize("param", ["messages", "prompt"])
def test_too_long_for_all(param: str) -> None:
    rules = a_policy(LONGER)
    more = {"prompt": "Hello"} if param == "prompt" else {}
    call = ask(rules, estimate=(100_001, 10), params={"max_tokens": 5}, **more)
    with pytest.raises(ContextTooLong) as caught:
        a_router(rules).plan(call)
    error = caught.value
    assert (error.status, error.type, error.param) == (400, "invalid_request_error", param)
    assert error.code == "context_length_exceeded"
    assert error.message.startswith(
        "This model's maximum context length is 100000 tokens. However, you requested"
    )
    assert f"about 100006 tokens (100001 in the {param}, 5 in the completion)" in error.message


@pytest.mark.parametrize(
    ("prompt", "plan"),
    [
        (900, ["xl:d:larger_context", "f:e:fallback"]),
        (2001, ["xl:d:larger_context"]),
        (50_000, ["xl:d:larger_context"]),
    ],
)
def test_an_answer_too_long_for_all_is_clipped_where_most_is_left(prompt: int, plan: list[str]) -> None:
    rules = a_policy(LONGER)
    call = ask(rules, estimate=(prompt, 10), params={"max_tokens": 200_000})
    planned = a_router(rules).plan(call)
    assert told(planned) == plan
    assert replace(call, candidates=planned, candidate=planned[0]).clips


def test_a_cap_alone_sends_nobody_to_a_fallback() -> None:
    models = {"m": {"targets": to("a"), "context": 2000, "fallbacks": ["f"]}, "f": {"targets": to("b")}}
    rules = a_policy(models)
    call = ask(rules, estimate=(100, 10), params={"max_tokens": 32_000})
    assert told(a_router(rules).plan(call)) == ["m:a:primary", "f:b:fallback"]


def test_a_policy_may_refuse_rather_than_clip() -> None:
    rules = a_policy({"m": {"targets": to("a"), "context": 2000, "over_context": "refuse"}})
    with pytest.raises(
        ContextTooLong, match=r"is 2000 tokens.*\(100 in the messages, 1901 in the completion\)"
    ):
        a_router(rules).plan(ask(rules, estimate=(100, 10), params={"max_tokens": 1901}))
    assert a_router(rules).plan(ask(rules, estimate=(100, 10), params={"max_tokens": 1900}))


def test_who_stands_in_for_a_model_that_refuses_does_not_clip_either() -> None:
    models = {
        "m": {"targets": to("a"), "context": 200, "larger_context": "l", "over_context": "refuse"},
        "l": {"targets": to("b"), "context": 1000},
    }
    rules = a_policy(models)
    with pytest.raises(ContextTooLong):
        a_router(rules).plan(ask(rules, estimate=(10, 10), params={"max_tokens": 5000}))
    call = ask(rules, estimate=(10, 10), params={"max_tokens": 500})
    planned = a_router(rules).plan(call)
    assert told(planned) == ["l:b:larger_context"]
    assert not replace(call, candidates=planned, candidate=planned[0]).clips
    own = ask(rules, model="l", estimate=(10, 10), params={"max_tokens": 5000})
    assert replace(own, candidates=(planned := a_router(rules).plan(own)), candidate=planned[0]).clips


def test_nothing_is_clipped_while_a_larger_context_is_left() -> None:
    rules = a_policy(LONGER)
    call = ask(rules, estimate=(900, 10))
    planned = a_router(rules).plan(call)
    clips = [replace(call, candidates=planned, candidate=one).clips for one in planned]
    assert [one.model for one in planned] == ["m", "f", "l", "l", "xl"]
    assert clips == [False, False, False, False, True]


def test_larger_contexts_in_a_circle() -> None:
    models = {
        "m": {"targets": to("a"), "context": 10, "larger_context": "l"},
        "l": {"targets": to("b"), "context": 20, "larger_context": "m"},
    }
    rules = a_policy(models)
    assert told(a_router(rules).plan(ask(rules, estimate=(1, 1)))) == ["m:a:primary", "l:b:larger_context"]
    with pytest.raises(ContextTooLong, match="is 20 tokens"):
        a_router(rules).plan(ask(rules, estimate=(21, 1)))


@pytest.mark.parametrize("by", ["call", "tenant"])
def test_local_only(by: str) -> None:
    models = {
        "m": {"targets": to("a", "b"), "fallbacks": ["f"]},
        "f": {"targets": to("c", "d")},
        "cloud": {"targets": to("a")},
    }
    rules = a_policy(
        models, of=backends(b={"local": True}, d={"local": True}), tenants={"clinic": {"local_only": True}}
    )
    caller = Principal("k", "clinic" if by == "tenant" else "acme")
    router = a_router(rules)
    call = replace(ask(rules, principal=caller), local_only=by == "call")
    assert told(router.plan(call)) == ["m:b:primary", "f:d:fallback"]
    with pytest.raises(Forbidden, match=r"'cloud' has none.*local: true") as caught:
        router.plan(replace(call, model="cloud"))
    assert (caught.value.code, caught.value.status) == ("local_only", 403)
    assert len(router.plan(ask(rules))) == 4, "nothing of it stays for others"


DOWNGRADING = {
    "models": {
        "m": {"targets": to("a", "b"), "fallbacks": ["f"]},
        "f": {"targets": to("c")},
        "small": {"targets": to("d"), "fallbacks": ["f"]},
    },
    "tiers": {
        "free": {"on_saturation": {"action": "downgrade", "at": 0.8, "to": "small"}},
        "pro": {"on_saturation": {"action": "shed", "at": 0.8}},
    },
}


@pytest.mark.parametrize(
    ("tier", "saturations", "expected"),
    [
        ("free", {"a": 0.8, "b": 0.9}, "small:d:downgrade"),
        ("free", {"a": 1.0, "b": 0.79}, "m:"),
        ("pro", {"a": 1.0, "b": 1.0}, "m:"),
        ("other", {"a": 1.0, "b": 1.0}, "m:"),
    ],
)
def test_downgrade(tier: str, saturations: dict[str, float], expected: str) -> None:
    rules = a_policy(**DOWNGRADING)
    figures = Figures()
    figures.saturations = saturations
    call = ask(rules, principal=Principal("k", "acme", tier=tier, models=("m",)))
    plan = told(a_router(rules, figures=figures).plan(call))
    assert plan[0].startswith(expected)
    assert plan[-1] == "f:c:fallback"


def test_a_downgrade_that_leads_nowhere_is_none() -> None:
    rules = a_policy(**DOWNGRADING)
    figures = Figures()
    figures.saturations = {"a": 1.0, "b": 1.0}
    call = ask(rules, principal=Principal("k", "acme", tier="free"))
    plan = a_router(rules, figures=figures, enabled={"a", "b"}).plan(call)
    assert {one.why for one in plan} == {"primary"}


def test_disabled_backends_get_nothing() -> None:
    rules = a_policy(
        {"m": {"targets": to("a*1000", "b"), "fallbacks": ["f"]}, "f": {"targets": to("c", "d")}}
    )
    router = a_router(rules, enabled={"b", "d"})
    for _ in range(20):
        assert told(router.plan(ask(rules))) == ["m:b:primary", "f:d:fallback"]
    assert told(a_router(rules, enabled={"d"}).plan(ask(rules))) == ["f:d:fallback"]


def test_none_enabled() -> None:
    rules = a_policy({"m": {"targets": to("a")}, "f": {"targets": to("b")}})
    with pytest.raises(ModelUnavailable, match="none of its backends is in use") as caught:
        a_router(rules, enabled={"b"}).plan(ask(rules))
    assert (caught.value.status, caught.value.param, caught.value.retry_after) == (503, "model", 1.0)


@pytest.mark.parametrize(("ago", "wait"), [(0.1, 1.0), (12.0, 12.0), (500.0, 30.0)])
def test_the_longer_it_has_been_out_of_use_the_longer_the_wait(ago: float, wait: float) -> None:
    rules = a_policy({"m": {"targets": to("a")}, "f": {"targets": to("b")}})
    since = {"a": time.monotonic() - ago}
    with pytest.raises(ModelUnavailable) as caught:
        Router(rules, {"b"}, Figures(), disabled_since=since).plan(ask(rules))
    assert caught.value.retry_after == pytest.approx(wait, abs=1)


@pytest.mark.parametrize(
    ("asked", "models", "of"),
    [
        ({"estimate": (50, 1)}, {"m": {"context": 10, "larger_context": "l"}, "l": {"context": 100}}, {}),
        ({"estimate": (50, 1)}, {"m": {"context": 100, "fallbacks": ["l"]}, "l": {"context": 10}}, {}),
        ({"local_only": True}, {"m": {"fallbacks": ["l"]}, "l": {}}, {"local": True}),
    ],
    ids=["too long for what is left", "too long for the fallback", "what is left is not local"],
)
def test_what_would_be_served_is_not_refused_for_good(
    asked: dict[str, Any], models: dict[str, Any], of: dict[str, Any]
) -> None:
    """Only the backend that is out of use could: what the others cannot do is not the caller's fault."""
    out = "b" if "larger_context" in models["m"] else "a"
    rules = a_policy(
        {name: {"targets": to(place), **models[name]} for name, place in (("m", "a"), ("l", "b"))},
        of=backends(**{out: of}),
    )
    local = {"local_only": asked.pop("local_only", False)}
    with pytest.raises(ModelUnavailable):
        a_router(rules, enabled={"a", "b"} - {out}).plan(replace(ask(rules, **asked), **local))


def test_a_place_in_several_models_is_listed_once() -> None:
    models = {
        "m": {"targets": to("a/x", "a/x", "a/y"), "fallbacks": ["f"], "larger_context": "l"},
        "f": {"targets": to("a/y", "b")},
        "l": {"targets": to("b", "a/x")},
    }
    rules = a_policy(models)
    plan = a_router(rules).plan(ask(rules))
    assert sorted(map(target_name, plan)) == ["a/x", "a/y", "b/x"]


def test_a_prefix_is_remembered_where_it_was_served() -> None:
    rules = a_policy({"m": {"targets": to(*"abcd"), "select": "prefix_affinity"}})
    router = a_router(rules)
    call = ask(rules)
    plan = router.plan(call)
    assert {router.plan(call)[0] for _ in range(20)} == {plan[0]}
    # The first was down, and the third answered: it is the one to ask from now on.
    call.candidate = plan[2]
    router.record_served(call)
    assert router.plan(call)[0] == plan[2]


NAMES = ("m", "f", "g", "h")


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    def names(most: int) -> list[str]:
        return draw(st.lists(st.sampled_from(NAMES), max_size=most, unique=True))

    models: dict[str, Any] = {}
    for name in NAMES:
        places = draw(
            st.lists(st.sampled_from([f"{b}/{m}" for b in "abcdef" for m in "xy"]), min_size=1, max_size=5)
        )
        models[name] = {
            "targets": to(*places),
            "select": draw(st.sampled_from(["weighted", "least_loaded", "prefix_affinity"])),
            "regions": draw(st.lists(st.sampled_from(["eu", "us"]), max_size=2, unique=True)),
            "fallbacks": names(3),
            "spill_over": draw(st.booleans()),
            "context": draw(st.sampled_from([None, 10, 100, 1000])),
            "larger_context": draw(st.sampled_from([None, *NAMES])),
        }
    of = {
        name: {"region": draw(st.sampled_from(["eu", "us", "asia", None])), "local": draw(st.booleans())}
        for name in "abcdef"
    }
    return a_policy(models, of=backends(**of))


@given(
    rules=policies(),
    full=st.sets(st.sampled_from("abcdef")),
    enabled=st.sets(st.sampled_from("abcdef"), min_size=1),
    local=st.booleans(),
    prompt=st.sampled_from([None, 5, 50, 500, 5000]),
    seed=st.integers(0, 99),
)
def test_whatever_the_policy(
    rules: Policy, full: set[str], enabled: set[str], local: bool, prompt: int | None, seed: int
) -> None:
    figures = Figures()
    figures.full = full
    router = a_router(rules, figures=figures, enabled=enabled, seed=seed)
    call = replace(ask(rules, estimate=prompt and (prompt, 1)), local_only=local)
    try:
        plan = router.plan(call)
    except (ContextTooLong, Forbidden) as refused:
        with pytest.raises(type(refused)):
            a_router(rules, figures=figures).plan(call)
        return
    except ModelUnavailable:
        assert a_router(rules, figures=figures).plan(call)
        usable = {name for name in enabled if not local or rules.backends[name].local}
        model = rules.models["m"]
        fits = prompt is None or model.context is None or prompt <= model.context
        assert not fits or not any(target.backend in usable for target in model.targets)
        return
    places = [target_name(one) for one in plan]
    assert len(places) == len(set(places))
    for one in plan:
        assert one.target.backend in enabled
        assert not local or rules.backends[one.target.backend].local
        context = rules.models[one.model].context
        assert prompt is None or context is None or prompt <= context
    tail = [one.why == "larger_context" for one in plan[1:]]
    assert tail == sorted(tail), "for longer prompts comes last"
    assert {target_name(one) for one in router.plan(call)} == set(places)
    # Each model's targets stand together, its regions in their order, but for the one that was moved to the front.
    settled = plan[1:] if plan[0].why == "spill_over" else plan
    models = [one.model for one in settled]
    assert len([1 for before, after in pairwise(models) if before != after]) == max(0, len(set(models)) - 1)
    for name in set(models):
        regions = rules.models[name].regions
        ranks = [
            regions.index(region) if region in regions else len(regions)
            for one in settled
            if one.model == name
            for region in [rules.backends[one.target.backend].region or ""]
        ]
        assert ranks == sorted(ranks)
    # Where somebody who may be asked at once has room, the first has.
    if plan[0].target.backend in full:
        own = [one for one in plan if one.model == plan[0].model]
        assert all(one.target.backend in full for one in own)
        if rules.models[plan[0].model].spill_over and plan[0].why in ("primary", "larger_context"):
            assert all(one.target.backend in full for one in plan if one.why == "fallback")


class Share:
    """How far every roll-out has come."""

    def __init__(self, share: float) -> None:
        self.share = share

    def is_new(self, experiment: str, key: bytes, /) -> bool:
        assert experiment == "m to c/new"
        return int.from_bytes(key, "big") / 2**64 < self.share


ROLLED = {"m": {"targets": to("a", "b"), "rollout": {"to": {"backend": "c", "model": "new"}}}}


def rolling(rules: Policy, share: float) -> Router:
    return Router(rules, rules.backends, Figures(), random=Random(7), rollouts=Share(share))


def test_a_roll_out_puts_its_target_before_the_others_for_its_share_of_users() -> None:
    rules = a_policy(ROLLED)
    router = rolling(rules, 0.5)
    calls = [ask(rules, params={"user": f"u{number}"}) for number in range(200)]
    plans = [router.plan(call) for call in calls]
    new = [plan for plan in plans if plan[0].target.backend == "c"]
    assert 60 < len(new) < 140
    assert {told(plan[:1])[0] for plan in new} == {"m:c:rollout"}
    assert {one.why for plan in new for one in plan[1:]} == {"fallback"}
    assert {len(plan) for plan in plans} == {2, 3}
    assert {one.arm and one.arm.name for plan in plans for one in plan} == {"new", "control"}
    noted = [call.receipt.notes["experiment"] for call in calls]
    assert {one["name"] for one in noted} == {"m to c/new"}
    assert [one["arm"] == "new" for one in noted] == [plan[0].target.backend == "c" for plan in plans]
    again = [router.plan(call)[0].target.backend == "c" for call in calls]
    assert again == [plan[0].target.backend == "c" for plan in plans]


def test_a_roll_out_leaves_the_arm_of_an_experiment_as_it_is() -> None:
    rules = a_policy(ROLLED)
    call = ask(rules)
    call.arm = "tone#12345678/new/"
    call.receipt.note("experiment", name="tone#12345678", arm="old")
    rolling(rules, 1.0).plan(call)
    assert call.receipt.notes["experiment"] == {"name": "tone#12345678", "arm": "old"}
    assert call.receipt.notes["rollout"] == {"name": "m to c/new", "arm": "new"}


def test_a_roll_out_that_has_not_begun_leaves_the_targets_as_they_are() -> None:
    rules = a_policy({"m": {"targets": to("a"), "rollout": {"to": {"backend": "c", "model": "new"}}}})
    assert told(a_router(rules).plan(ask(rules))) == ["m:a:primary"]
    assert told(rolling(rules, 0.0).plan(ask(rules))) == ["m:a:primary"]


@pytest.mark.parametrize(("place", "arms"), [("us", {None}), ("eu", {"new"})])
def test_who_may_not_have_the_new_target_is_in_no_arm(place: str, arms: set[str | None]) -> None:
    of = backends(a={"region": "eu"}, b={"region": "eu"}, c={"region": place})
    rules = a_policy(ROLLED, of=of, residency=["eu"])
    plan = rolling(rules, 1.0).plan(ask(rules))
    assert {one.arm and one.arm.name for one in plan} == arms


def split(rules: Policy, *askers: dict[str, Any]) -> list[set[str]]:
    """The first targets of each asker's many requests."""
    router = a_router(rules)
    return [{router.plan(ask(rules, **one))[0].target.backend for _ in range(40)} for one in askers]


def test_targets_of_different_models_keep_their_users_and_replicas_do_not() -> None:
    users: list[dict[str, Any]] = [{"params": {"user": f"u{number}"}} for number in range(30)]
    canary = split(a_policy({"m": {"targets": to("a/old", "b/new")}}), *users)
    assert {len(firsts) for firsts in canary} == {1}
    assert set().union(*canary) == {"a", "b"}
    replicas = split(a_policy({"m": {"targets": to("a", "b")}}), *users[:3])
    assert replicas == [{"a", "b"}] * 3
    drawn = split(a_policy({"m": {"targets": to("a/old", "b/new"), "split_by": "request"}}), *users[:3])
    assert drawn == [{"a", "b"}] * 3


def test_split_by_tenant_keeps_all_of_its_users_together() -> None:
    rules = a_policy({"m": {"targets": to("a", "b"), "split_by": "tenant"}})
    users: list[dict[str, Any]] = [{"params": {"user": f"u{number}"}} for number in range(10)]
    assert len(set().union(*split(rules, *users))) == 1


def test_a_conversation_keeps_its_target_as_it_grows() -> None:
    rules = a_policy({"m": {"targets": to("a/old", "b/new"), "split_by": "conversation"}})
    router = a_router(rules)
    for number in range(20):
        first = {"role": "user", "content": f"question {number}"}
        talk: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, first]
        firsts = set()
        for _ in range(4):
            firsts.add(router.plan(ask(rules, messages=tuple(talk)))[0].target.backend)
            talk += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "and?"}]
        assert len(firsts) == 1
