"""What people get to see of what guards flag: a sample, masked; and what the log is told."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.findings import Finding
from gateway.guards.guards import Guard
from gateway.guards.scans import review as module
from gateway.guards.scans.inspection import Inspection
from gateway.guards.scans.review import LONGEST, MOST_OF_ONE, Excerpts, Review
from gateway.observe.events import FACTS
from gateway.observe.metrics import Metrics
from gateway.policy.schema import PiiGuard, ReviewSettings, TopicsGuard
from gateway.types import Json
from tests.fakes import a_call
from tests.scanners import KeywordScanner
from tests.serving import KEY, a_policy, chat, serving

pytestmark = pytest.mark.anyio

CAT = KeywordScanner({"cat": "animal"})
SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"


class Kept:
    def __init__(self) -> None:
        self.lines: list[Mapping[str, Json]] = []

    def add(self, line: Mapping[str, Json]) -> bool:
        self.lines.append(line)
        return True


def inspecting(metrics: Metrics, *, pii: bool = False) -> Inspection:
    config = (
        PiiGuard(kind="pii", action="flag")
        if pii
        else TopicsGuard(kind="topics", words=("cat",), action="flag")
    )
    return Inspection(Guard("it", config, CAT), "input", metrics, a_call())


def sampled(text: str, *spans: tuple[int, int], requests: int = 1, **config: Any) -> list[Mapping[str, Json]]:
    kept, metrics = Kept(), Metrics()
    review = Review(metrics, ReviewSettings(enabled=True, **config), kept)
    for number in range(requests):
        findings = [Finding("animal", *span, 0.9) for span in spans]
        review.sample(
            a_call(request_id=f"req_{number}"),
            inspecting(metrics),
            [("other", "tool"), (text, "user")],
            [(), findings],
        )
    return kept.lines


def test_a_line_says_who_what_and_where() -> None:
    (line,) = sampled("the cat sat", (4, 7))
    assert {**line, "time": ""} == {
        "time": "",
        "request_id": "req_0",
        "tenant": "acme",
        "key_id": "k",
        "model": "m",
        "guard": "it",
        "direction": "input",
        "check": "none",
        "origin": "user",
        "label": "animal",
        "score": 0.9,
        "start": 4,
        "end": 7,
        "excerpt": "the cat sat",
    }


def test_what_surrounds_a_finding_is_masked_whole() -> None:
    """Also where the excerpt's edge cuts it."""
    mail = "ann.longfellow@example.com"
    text = f"{'far ' * 200}{mail} the cat {SECRET} {'off ' * 200}"
    at = text.index("cat")
    for context in range(0, 100, 7):
        excerpt = Excerpts(context).of(text, Finding("animal", at, at + 3), hides=False)
        assert "cat" in excerpt and excerpt.startswith("…") and excerpt.endswith("…")
        for part in ("ample.com", "ann", "longf", "sk-", "abcdef"):
            assert part not in excerpt, (context, excerpt)
    assert "[EMAIL_ADDRESS] the cat [" in Excerpts(80).of(text, Finding("animal", at, at + 3), hides=False)


def test_personal_data_is_masked_whatever_found_it() -> None:
    """A model finds names that no pattern knows."""
    excerpt = Excerpts(20).of("call Ann Lee now", Finding("PERSON", 5, 12), hides=True)
    assert excerpt == "call [PERSON] now"


def test_a_long_finding_is_cut() -> None:
    excerpt = Excerpts(10).of("a b " * 5000, Finding("hate", 100, 19_000), hides=False)
    assert len(excerpt) <= LONGEST + 22


def test_only_so_much_of_one_request_is_written() -> None:
    spans = [(start, start + 3) for start in range(0, 400, 4)]
    assert len(sampled("cat " * 100, *spans)) == MOST_OF_ONE


def test_a_share_of_the_requests_is_sampled_each_whole() -> None:
    lines = sampled("cat cat", (0, 3), (4, 7), requests=400, share=0.25, per_minute=10_000)
    asked = {line["request_id"] for line in lines}
    assert 60 < len(asked) < 140 and len(lines) == 2 * len(asked)


def test_a_flood_of_findings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    kept, metrics = Kept(), Metrics()
    review = Review(metrics, ReviewSettings(enabled=True, per_minute=3), kept)

    def ask(times: int) -> None:
        for _ in range(times):
            review.sample(a_call(), inspecting(metrics), [("cat", "user")], [[Finding("animal", 0, 3)]])

    ask(10)
    assert len(kept.lines) == 3
    assert b'tollgate_guard_reviews_total{guard="it",outcome="skipped"} 7.0' in metrics.render()
    now[0] = 61.0
    ask(10)
    assert len(kept.lines) == 6


async def flagged(tmp_path: Path, **more: Any) -> list[dict[str, Any]]:
    policy = a_policy("http://127.0.0.1:1/v1", **more)
    policy["guards"] = {
        "words": {"kind": "topics", "on": ["input", "output"], "action": "flag", "words": ["falcon", "two"]},
        "mail": {"kind": "pii", "action": "flag"},
    }
    async with serving(tmp_path / "p", policy) as gateway:
        for stream in (False, True):
            answer = await gateway.http.post(
                "/v1/chat/completions",
                json={**chat("fake", "The falcon is at ann@example.com"), "stream": stream},
                headers={"authorization": f"Bearer {KEY}"},
            )
            assert answer.status_code == 200
    path = tmp_path / "state" / "findings.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_findings_come_out_as_a_file_and_as_events(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        lines = await flagged(tmp_path, review={"enabled": True})
    seen = {(line["guard"], line["direction"], line["label"], line["excerpt"]) for line in lines}
    assert seen == {
        ("words", "input", "word:0", "The falcon is at [EMAIL_ADDRESS]"),
        ("words", "output", "word:1", "one two three"),
        ("mail", "input", "EMAIL_ADDRESS", "The falcon is at [EMAIL_ADDRESS]"),
    }
    events = [getattr(record, FACTS) for record in caplog.records if hasattr(record, FACTS)]
    found = [event for event in events if event["event"] == "guard_finding"]
    assert {(event["guard"], event["direction"], event["labels"]) for event in found} == {
        ("words", "input", "word:0"),
        ("words", "output", "word:1"),
        ("mail", "input", "EMAIL_ADDRESS"),
    }
    assert "falcon" not in caplog.text and "ann@" not in caplog.text


async def test_no_text_is_written_unless_it_is_asked_for(tmp_path: Path) -> None:
    assert await flagged(tmp_path) == []
