"""Whom a decode engine's prompts are computed by."""

from __future__ import annotations

from gateway.admission.gate import engine_headers
from gateway.admission.phases import Phases, headers_for
from gateway.admission.pools import Pools
from gateway.engine_load import EngineLoad
from gateway.policy.schema import Policy


def load(requests: int, address: str = "tcp://here:1") -> EngineLoad:
    return EngineLoad(running=requests, handover=address)


def test_the_one_with_the_fewest_requests_is_named_those_sent_since_counted() -> None:
    pools = Pools()
    phases = Phases(pools, {})
    pools.update_engine("a", load(2, "tcp://a:1"))
    pools.update_engine("b", load(0, "unix:///b"))
    chosen = [phases.choose(("a", "b")) for _ in range(5)]
    assert chosen[:3] == [("b", "unix:///b"), ("b", "unix:///b"), ("a", "tcp://a:1")]
    assert {name for name, _ in filter(None, chosen[3:])} == {"a", "b"}
    # It has told its load again, with what it was sent.
    pools.update_engine("b", load(1, "unix:///b"))
    assert phases.choose(("a", "b")) == ("b", "unix:///b")


def test_an_engine_that_tells_nothing_or_hands_nothing_over_is_not_named() -> None:
    pools = Pools()
    phases = Phases(pools, {})
    assert phases.choose(()) is phases.choose(("a",)) is None
    pools.update_engine("a", EngineLoad(running=0))
    assert phases.choose(("a",)) is None
    pools.update_engine("b", load(9))
    assert phases.choose(("a", "b")) == ("b", "tcp://here:1")
    pools.update_engine("b", None)
    assert phases.choose(("a", "b")) is None


def test_a_policy_without_phases_has_nothing_of_it() -> None:
    engines = {"e": {"kind": "engine"}, "p": {"kind": "engine", "base_url": "http://127.0.0.1:8101"}}
    models = {"m": {"targets": [{"backend": "e", "model": "m"}]}}
    plain = Policy.model_validate({"version": 1, "backends": engines, "models": models})
    assert headers_for(plain, Pools()) is engine_headers
    engines["e"]["prefill"] = ("p",)  # type: ignore[assignment]
    phased = Policy.model_validate({"version": 1, "backends": engines, "models": models})
    assert headers_for(phased, Pools()) is not engine_headers
