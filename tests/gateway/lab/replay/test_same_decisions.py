"""A replay decides as the live gateway does, on the same arrivals: the real application over scripted backends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples

Scenario = Mapping[str, Any]
POLICY = """\
version: 1
backends:
  one: {{kind: openai, base_url: http://one/v1, api_key: secret{one}, breaker: {breaker}}}
  two: {{kind: openai, base_url: http://two/v1, api_key: secret, max_concurrency: {two}}}
models:
  chat:
    targets: [{targets}]
    fallbacks: [big]
    spill_over: {spill_over}
    retry: {{attempts: {attempts}, backoff: 100ms}}
  big: {{targets: [{{backend: two, model: big}}]}}
  small: {{targets: [{{backend: two, model: small}}]}}
prices:
  one/*: {{input: 1.0, output: 2.0}}
  two/*: {{input: 10.0, output: 20.0}}
tiers:
  gold: {{priority: 2, weight: 4, max_wait: 3s}}
  free: {{priority: 0, weight: 1, max_wait: {max_wait}s, max_queue: {max_queue}, on_saturation: {saturation}}}
tenants:
  acme: {{tier: gold, {acme}}}
  hobby: {{tier: free, {hobby}}}
keys:
  - {{id: acme, sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", tenant: acme}}
  - {{id: hobby, sha256: "cb8379ac2098aa165029e3938a51da0bcecfc008fd6795f401178647f96c5b34", tenant: hobby,
     models: [chat, big]}}
{more}
"""
LIMITS = (
    "quotas: {}",
    "quotas: {requests_per_minute: 4}",
    "quotas: {tokens_per_minute: 3000}",
    "quotas: {tokens_per_minute: 3000, strict: true}",
    "quotas: {tokens_per_day: 5000, concurrent_requests: 2}",
    "budget: {usd_per_day: 0.02}",
)
SATURATION = (
    "{action: wait, at: 0.6}",
    "{action: shed, at: 0.5}",
    "{action: downgrade, to: small, at: 0.5}",
)
ONE, BOTH = "{backend: one, model: m}", "{backend: one, model: m}, {backend: two, model: m}"
MORE = (
    "",
    "caches: {exact: {ttl: 10s}}",
    "guards: {banned: {kind: topics, patterns: ['\\[\\[banned\\]\\]'], action: block}}",
)

policies = st.builds(
    POLICY.format,
    one=st.sampled_from(["", ", max_concurrency: 1", ", max_concurrency: 2", ", max_tokens_in_flight: 900"]),
    two=st.integers(1, 3),
    breaker=st.sampled_from(["{failures: 2, cooldown: 2s}", "{}"]),
    targets=st.sampled_from([ONE, BOTH]),
    spill_over=st.sampled_from(["true", "false"]),
    attempts=st.integers(1, 3),
    max_wait=st.integers(1, 4),
    max_queue=st.integers(1, 4),
    saturation=st.sampled_from(SATURATION),
    acme=st.sampled_from(LIMITS),
    hobby=st.sampled_from(LIMITS),
    more=st.sampled_from(MORE),
)


@st.composite
def requests(draw: st.DrawFn) -> list[dict[str, Any]]:
    """As recorded."""
    at, found = 1_764_590_400.0, []
    for number in range(draw(st.integers(4, 24))):
        at += draw(st.integers(0, 1500)) / 1000 + 0.000123
        tenant = draw(st.sampled_from(["acme", "hobby"]))
        one: dict[str, Any] = {
            "at": at,
            "tenant": tenant,
            "key": tenant,
            "model": draw(st.sampled_from(["chat", "chat", "big", "small"])),
        }
        one["stream"] = draw(st.booleans())
        one["prompt_tokens"] = 8 + 32 * draw(st.integers(0, 25)) + number  # no two take equally long
        one["completion_tokens"] = draw(st.integers(1, 300))
        one["prompt_key"] = draw(st.sampled_from(["", "p1", "p2"]))
        if draw(st.booleans()):
            one["max_tokens"] = draw(st.integers(1, 600))
        match draw(st.integers(0, 9)):
            case 0:
                one |= {
                    "outcome": "failed",
                    "status": 500,
                    "code": "upstream_error",
                    "backend": "one",
                    "duration": 0.3 + 0.00171 * number,
                }
            case 1:
                one |= {"outcome": "failed", "status": 502, "code": "upstream_unavailable", "backend": "one"}
            case 2:
                one["findings"] = [["banned", "block"]]
        found.append(one)
    return found


@pytest.fixture(scope="module")
def both_ways() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.gateway.lab.replay.both_ways"]
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def decided(process: subprocess.Popen[str], scenario: Scenario) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(scenario) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    assert line, "the process that decides both ways has ended: its error is above"
    return dict(json.loads(line))


@settings(max_examples=examples(80))
@given(policy=policies, asked=requests())
def test_a_replay_decides_as_the_live_gateway(
    both_ways: subprocess.Popen[str], policy: str, asked: list[dict[str, Any]]
) -> None:
    found = decided(both_ways, {"policy": policy, "requests": asked})
    for number, (replayed, live) in enumerate(zip(found["replayed"], found["live"], strict=True)):
        times = {name: (replayed.pop(name), live.pop(name)) for name in ("waited", "took")}
        assert replayed == live, f"request {number}"
        for name, (one, other) in times.items():
            assert one == pytest.approx(other, abs=1e-3), f"request {number}: {name}"
