"""What makes two requests the same, and what keeps them apart."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.caching import key as keys
from gateway.caching.key import LONGEST_QUESTION, Fingerprints, cache_key, partition
from gateway.policy import schema
from gateway.policy.schema import Policy
from gateway.types import Call, ChatRequest, Native, Principal
from tests.fakes import a_call, policy

TEXTS = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": TEXTS}),
    min_size=1,
    max_size=3,
).map(tuple)
PARAMS = st.dictionaries(st.sampled_from(["temperature", "seed", "stop", "tools", "max_tokens", "x"]), JSON)


def key(call: Call, per: Any = "tenant") -> str:
    return cache_key(call, "f", per)


def asked(tenant: str = "acme", key_id: str = "k", **request: Any) -> Call:
    return a_call(principal=Principal(key_id, tenant), **request)


def reversed_(value: Any) -> Any:
    """The same JSON, with the names of its objects in another order."""
    if isinstance(value, dict):
        return {name: reversed_(one) for name, one in reversed(value.items())}
    if isinstance(value, list | tuple):
        return type(value)(reversed_(one) for one in value)
    return value


@given(MESSAGES, PARAMS)
def test_the_order_of_names_does_not_matter(messages: Any, params: Any) -> None:
    assert key(asked(messages=messages, params=params)) == key(
        asked(messages=reversed_(messages), params=reversed_(params))
    )


@given(MESSAGES, PARAMS, MESSAGES, PARAMS)
def test_other_requests_have_other_keys(m: Any, p: Any, n: Any, q: Any) -> None:
    def without_nulls(params: dict[str, Any]) -> str:
        return repr(sorted((k, repr(reversed_(v)), repr(v)) for k, v in params.items() if v is not None))

    if (repr(m), without_nulls(p)) != (repr(n), without_nulls(q)) and (m, p) != (n, q):
        same_but_for_nulls = m == n and {k: v for k, v in p.items() if v is not None} == {
            k: v for k, v in q.items() if v is not None
        }
        if not same_but_for_nulls:
            assert key(asked(messages=m, params=p)) != key(asked(messages=n, params=q))


@given(st.text(max_size=6), st.text(max_size=6), st.text(max_size=6), st.text(max_size=6), MESSAGES)
def test_no_two_tenants_share_a_key_or_a_partition(a: str, k: str, b: str, j: str, messages: Any) -> None:
    """Whatever they are called: no name can be chosen so that it runs into the field beside it."""
    one, other = asked(a, k, messages=messages), asked(b, j, messages=messages)
    assert (key(one) == key(other)) == (a == b)
    assert (key(one, "key") == key(other, "key")) == ((a, k) == (b, j))
    first, second = partition(one, "f"), partition(other, "f")
    if first is not None and second is not None:
        assert (first.name == second.name) == (a == b)
    first, second = partition(one, "f", "key"), partition(other, "f", "key")
    if first is not None and second is not None:
        assert (first.name == second.name) == ((a, k) == (b, j))


@pytest.mark.parametrize(
    "params",
    [
        {"user": "jane"},
        {"metadata": {"a": "b"}},
        {"store": True},
        {"service_tier": "flex"},
        {"safety_identifier": "x"},
        {"prompt_cache_key": "x"},
        {"prompt_cache_retention": "24h"},
        {"stream_options": {"include_usage": True}},
        {"stop": None},
        {"frequency_penalty": 0},
        {"presence_penalty": 0.0},
        {"logit_bias": {}},
        {"logprobs": False},
        {"response_format": {"type": "text"}},
    ],
    ids=str,
)
def test_what_does_not_shape_an_answer(params: dict[str, Any]) -> None:
    assert key(asked(params=params)) == key(asked())


def test_nor_how_it_is_sent() -> None:
    assert key(asked(stream=True, include_usage=True)) == key(asked(stream=False))


@pytest.mark.parametrize(
    "other",
    [
        {"params": {"temperature": 0}},
        {"params": {"temperature": 1}},
        {"params": {"logprobs": 0}},
        {"params": {"logprobs": True}},
        {"params": {"seed": 0}},
        {"params": {"seed": False}},
        {"params": {"max_tokens": 5}},
        {"params": {"max_completion_tokens": 5}},
        {"params": {"tools": [{"type": "function", "function": {"name": "f"}}]}},
        {"params": {"response_format": {"type": "json_object"}}},
        {"n": 2},
        {"continues": True},
        {"embeds": True},
        {"prompt": "Hello"},
        {"prompt": ["Hello"]},
        {"prompt": [1, 2]},
        {"prompt": "Hello", "embeds": True},
        {"messages": ({"role": "user", "content": "hello"},)},
        {"messages": ({"role": "user", "content": "Hello", "name": "x"},)},
        {"messages": ({"role": "system", "content": ""}, {"role": "user", "content": "Hello"})},
        {"messages": ({"role": "user", "content": [{"type": "text", "text": "Hello"}]},)},
    ],
    ids=str,
)
def test_what_does(other: dict[str, Any]) -> None:
    assert key(asked(**other)) != key(asked())


def test_all_of_those_differ_from_each_other() -> None:
    others: list[dict[str, Any]] = [
        {"prompt": "Hello"},
        {"prompt": ["Hello"]},
        {"prompt": "Hello", "embeds": True},
        {"n": 2},
    ]
    assert len({key(asked(**other)) for other in others}) == len(others)


def test_the_model_the_policy_and_where_the_content_may_go() -> None:
    call = asked()
    before = key(call)
    call.local_only = True
    assert key(call) != before
    call.local_only = False
    assert cache_key(call, "g") != before
    call.model = "other"
    assert key(call) != before


def chat(*contents: Any, **more: Any) -> Call:
    return asked(messages=tuple({"role": "user", "content": content} for content in contents), **more)


def test_a_partition_is_the_same_whatever_the_last_question() -> None:
    one, other = partition(chat("a", "b"), "f"), partition(chat("a", "c"), "f")
    assert one is not None and other is not None
    assert one.name == other.name and (one.question, other.question) == ("b", "c")


def test_a_partition_differs_with_all_else() -> None:
    calls = [
        chat("a", "b"),
        chat("x", "b"),
        chat("a", "b", params={"seed": 1}),
        chat("a", "b", params={"tools": [{"type": "function", "function": {"name": "f"}}]}),
        asked(messages=({"role": "system", "content": "a"}, {"role": "user", "content": "b"})),
        asked(messages=({"role": "user", "content": "a"}, {"role": "user", "content": "b", "name": "n"})),
        asked("other", messages=({"role": "user", "content": "a"}, {"role": "user", "content": "b"})),
    ]
    found = [partition(call, "f") for call in calls]
    names = [one.name for one in found if one is not None]
    assert len(set(names)) == len(calls)


def test_a_question_in_parts_is_its_text() -> None:
    parts = [{"type": "text", "text": "b"}]
    one, other = partition(chat("a", parts), "f"), partition(chat("a", "b"), "f")
    assert one == other


@pytest.mark.parametrize(
    "call",
    [
        asked(prompt="Hello"),
        asked(prompt=[1, 2]),
        asked(prompt="Hello", embeds=True),
        chat("a", n=2),
        chat("a", continues=True),
        chat(""),
        chat(" \n"),
        chat("a" * (LONGEST_QUESTION + 1)),
        chat(None),
        chat([{"type": "image_url", "image_url": {"url": "https://x"}}]),
        chat([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "https://x"}}]),
        chat([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]),
        asked(messages=({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})),
        asked(messages=({"role": "tool", "content": "a", "tool_call_id": "1"},)),
    ],
)
def test_what_is_no_single_question(call: Call) -> None:
    assert partition(call, "f") is None


def test_the_longest_question() -> None:
    assert partition(chat("a" * LONGEST_QUESTION), "f") is not None


BACKENDS = {
    "up": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"},
    "big": {"kind": "openai", "base_url": "http://127.0.0.1:10/v1"},
}
MODELS = {
    "m": {"targets": [{"backend": "up", "model": "a"}], "fallbacks": ["n"], "larger_context": "l"},
    "n": {"targets": [{"backend": "big", "model": "b"}]},
    "l": {"targets": [{"backend": "big", "model": "l"}]},
    "c": {"cascade": [{"model": "m"}, {"model": "n"}]},
}


def made(**more: Any) -> Policy:
    return policy(**{"backends": BACKENDS, "models": MODELS, **more})


def fingerprint(policy_: Policy, model: str = "m", tenant: str = "acme") -> str:
    return Fingerprints(policy_).of(model, tenant)


def with_model(name: str, **more: Any) -> Policy:
    models: dict[str, Any] = MODELS
    return made(models={**models, name: {**models[name], **more}})


PII = {"kind": "pii", "tenants": ["ac*"]}


@pytest.mark.parametrize(
    "edited",
    [
        made(keys=[{"id": "k", "sha256": "0" * 64}]),
        made(tenants={"acme": {"quotas": {"requests_per_minute": 1}}}),
        made(prices={"a": {"input": 1.0, "output": 1.0}}),
        made(models={**MODELS, "z": {"targets": [{"backend": "up", "model": "z"}]}}),
        made(backends={**BACKENDS, "z": BACKENDS["up"]}),
        made(guards={"pii": {**PII, "tenants": ["other"]}}),
        made(caches={"exact": {"ttl": "1m"}}),
        with_model("m", timeouts={"total": "1s"}),
        with_model("m", retry={"attempts": 3}),
        with_model("m", targets=[{"backend": "up", "model": "a", "weight": 3.0}]),
        with_model("n", targets=[{"backend": "big", "model": "bb"}]),
    ],
)
def test_edits_that_keep_the_answers(edited: Policy) -> None:
    assert fingerprint(edited) == fingerprint(made())


@pytest.mark.parametrize(
    "edited",
    [
        made(guards={"pii": PII}),
        made(tenants={"acme": {"local_only": True}}),
        made(backends={**BACKENDS, "up": {**BACKENDS["up"], "base_url": "http://127.0.0.1:11/v1"}}),
        made(backends={**BACKENDS, "big": {**BACKENDS["big"], "base_url": "http://127.0.0.1:11/v1"}}),
        with_model("m", targets=[{"backend": "up", "model": "aa"}]),
        with_model("m", targets=[{"backend": "up", "model": "a"}, {"backend": "big", "model": "a"}]),
        with_model("l", targets=[{"backend": "big", "model": "ll"}]),
        with_model("m", larger_context="n"),
    ],
)
def test_edits_that_do_not(edited: Policy) -> None:
    assert fingerprint(edited) != fingerprint(made())


def test_an_edit_of_a_guard_or_of_a_cascades_step() -> None:
    one, other = made(guards={"pii": PII}), made(guards={"pii": {**PII, "threshold": 0.9}})
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one, tenant="x") == fingerprint(other, tenant="x")
    assert fingerprint(made(), "c") != fingerprint(
        with_model("n", targets=[{"backend": "big", "model": "bb"}]), "c"
    )


def test_whose_answers_are_what_a_name_means() -> None:
    known = Fingerprints(made())
    assert known.own_models("m") == {"m", "l"}
    assert known.own_models("c") == {"c", "m", "n", "l"}


# By construction: what a policy or a request says counts, unless it is written down that it does not.

ALL_BACKENDS: dict[str, dict[str, Any]] = {
    "engine": {"kind": "engine", "base_url": "http://127.0.0.1:1"},
    "openai": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"},
    "anthropic": {"kind": "anthropic"},
    "fake": {"kind": "fake", "script": [{"reply": "a"}]},
    "sidecar": {"kind": "sidecar"},
    "azure": {"kind": "azure", "base_url": "http://127.0.0.1:1"},
    "gemini": {"kind": "gemini"},
    "bedrock": {"kind": "bedrock", "aws": {"region": "eu-west-1"}},
}
"""One of each kind."""
OTHER: dict[str, Any] = {
    "aliases": ["z"],
    "max_output": 77,
    "input": ["text"],
    "api_key": "k",
    "args": ["--seed", "1"],
    "backend": "big",
    "base_url": "http://127.0.0.1:2",
    "breaker": {"failures": 9},
    "preset": "groq",
    "budget": {"usd_per_day": 1.0},
    "cascade": [{"model": "n"}],
    "context": 5,
    "continues": None,
    "streams": None,
    "unsupported_fields": "refuse",
    "api_version": "2024-10-21",
    "entra": {},
    "vertex": {"project": "p"},
    "aws": {"region": "us-east-1"},
    "embedder": "other",
    "env": ["X"],
    "fallbacks": [],
    "first_token_delay": "1s",
    "larger_context": "n",
    "launch": True,
    "local": None,
    "local_only": True,
    "matryoshka": True,
    "max_batch": 3,
    "max_concurrency": 3,
    "max_queue": 3,
    "max_tokens": 3,
    "max_tokens_in_flight": 3,
    "model": "other",
    "over_context": "refuse",
    "prefill": ["big"],
    "prefix_sharing": "all",
    "quotas": {"requests_per_minute": 3},
    "region": "eu",
    "replicas": ["http://127.0.0.1:3"],
    "telemetry": "vllm",
    "priority": "lower_first",
    "kv_events": {"port": 7},
    "inference_pool": True,
    "regions": ["eu"],
    "residency": ["eu"],
    "retry": {"attempts": 3},
    "golden": {"set": "golden.jsonl"},
    "rollout": {"to": {"backend": "up", "model": "new"}},
    "script": [{"reply": "b"}],
    "select": "least_loaded",
    "shadow": {"model": "n"},
    "spacy": {"en": "x"},
    "spill_over": True,
    "split_by": "tenant",
    "cold_start": "9s",
    "stop_first": True,
    "targets": [{"backend": "up", "model": "aa"}],
    "threads": 3,
    "tier": "gold",
    "timeouts": {"total": "9s"},
    "token_delay": "1s",
    "weight": 7.0,
}
"""Another value of each setting; None is to turn the default round. A new setting wants one, and to be thought of."""
SPOKEN_FOR = {"kind", "targets", "cascade", "backend"}
"""Of one kind is not of another; these have tests above."""


def parts() -> list[tuple[str, type[Any], str]]:
    kinds = [type(one) for one in made(backends={**BACKENDS, **ALL_BACKENDS}).backends.values()]
    found: list[type[Any]] = [
        *dict.fromkeys(kinds),
        schema.Model,
        schema.Target,
        schema.Tenant,
        schema.SidecarSettings,
    ]
    fixed = (schema.SidecarBackend, "continues")  # it can say nothing else
    return [
        (kind.__name__, kind, name)
        for kind in found
        for name in kind.model_fields
        if name not in SPOKEN_FOR and (kind, name) != fixed
    ]


def with_setting(kind: type[Any], **more: Any) -> Policy:
    """One of ``kind``, among what answers ``m`` for ``acme``, says ``more``."""
    name = next((one for one in ALL_BACKENDS if kind.__name__.lower() == one + "backend"), "fake")
    backend = {**ALL_BACKENDS[name], **(more if issubclass(kind, schema.AnyBackend) else {})}
    target = {"backend": name, "model": "a", **(more if kind is schema.Target else {})}
    m = {
        "targets": [target],
        "fallbacks": ["n"],
        "larger_context": "l",
        **(more if kind is schema.Model else {}),
    }
    return made(
        backends={**BACKENDS, name: backend},
        models={**MODELS, "m": m},
        guards={"pii": PII},
        tenants={"acme": more if kind is schema.Tenant else {}},
        sidecar=more if kind is schema.SidecarSettings else {},
    )


@pytest.mark.parametrize(
    ("kind", "name"), [part[1:] for part in parts()], ids=lambda one: getattr(one, "__name__", one)
)
def test_each_setting_counts_or_is_said_not_to(kind: type[Any], name: str) -> None:
    assert name in OTHER, (
        f"{kind.__name__}.{name} is new: does it shape answers? It counts until BESIDE has it"
    )
    value = OTHER[name]
    if value is None:
        value = not kind.model_fields[name].default
    if name == "base_url" and kind is schema.OpenAIBackend:
        value += "/v1"
    before, after = fingerprint(with_setting(kind)), fingerprint(with_setting(kind, **{name: value}))
    assert (after == before) == (name in keys.BESIDE.get(kind, ()))


def test_each_part_of_a_policy_is_covered_or_said_not_to_be() -> None:
    covered = {"backends", "models", "tenants", "guards", "sidecar"}
    assert covered | keys.BESIDE_POLICY == set(Policy.model_fields)
    for kind, beside in keys.BESIDE.items():
        assert beside <= set(kind.model_fields), "of settings that are gone nothing is said"


def test_who_may_not_be_judged_abroad_shares_nothing_with_who_may() -> None:
    """A webhook guard outside of a key's residency is not asked about what it gets, which is cached all the same."""
    policy = made(residency=["eu", "us"], keys=[])
    calls = [
        a_call(principal=Principal(name, "acme", residency=regions))
        for name, regions in (("anywhere", ()), ("here", ("eu",)), ("here too", ("eu",)))
    ]
    for call in calls:
        call.policy = policy
    anywhere, here, too = (keys.cache_key(call, "same") for call in calls)
    assert anywhere != here == too


NATIVE = Native("x", {"messages": []}, lambda body: ChatRequest("m"))
OTHER_REQUEST: dict[str, Any] = {
    "messages": ({"role": "user", "content": "?"},),
    "prompt": "other",
    "n": 2,
    "params": {"seed": 1},
    "continues": True,
    "embeds": True,
    "native": NATIVE,
    "truncates": True,
    "api": "rerank",
    "form": object(),
    "model": "z",
    "stream": False,
    "include_usage": True,
}
OTHER_CALL: dict[str, Any] = {
    "model": "z",
    "query": "beta=true",
    "local_only": True,
    "provider_headers": {"anthropic-beta": "b"},
}


@pytest.mark.parametrize("name", [one.name for one in fields(ChatRequest)])
def test_each_field_of_a_request_counts_or_is_said_not_to(name: str) -> None:
    call = asked(stream=True)
    before = key(call)
    call.request = replace(call.request, **{name: OTHER_REQUEST[name]})
    assert (key(call) == before) == (name in keys.BESIDE_REQUEST)


@pytest.mark.parametrize("name", [one.name for one in fields(Call)])
def test_each_field_of_a_call_counts_or_is_said_not_to(name: str) -> None:
    if name in keys.BESIDE_CALL:
        return
    call = asked()
    before = key(call)
    setattr(call, name, OTHER_CALL[name])
    assert key(call) != before


@given(PARAMS, st.text(min_size=1, max_size=12), st.integers(1, 9))
def test_a_parameter_that_nobody_knows_counts(params: Any, name: str, value: int) -> None:
    if name not in keys.IGNORED and name not in params and (name, value) != ("best_of", 1):
        assert key(asked(params={**params, name: value})) != key(asked(params=params))
