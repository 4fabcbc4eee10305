"""A webhook's own rules: what is hidden from it, what it wants changed, and how often it is asked."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson
import pytest

from gateway.backends.poster import Poster
from gateway.findings import Finding, Remedy
from gateway.guards.scanners.covering import Covered, Private
from gateway.guards.scanners.scanner import Unscanned
from gateway.guards.scanners.webhook import FAILURES, FORMATS, PAUSE, Webhook
from gateway.guards.scanners.webhook_formats import difference
from gateway.policy.schema.webhook_guard import WebhookGuard
from tests.fakes import reply
from tests.guard_server import GuardServer, judging

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("one two three", "one 2 three"),
        ("one two three", "one three"),
        ("one three", "one two three"),
        ("one", "one two"),
        ("two", "one two"),
        ("aaa", "aa"),
        ("aa", "aaaa"),
        ("abc", ""),
        ("a😀b", "a😃b"),
        ("x", "y"),
    ],
)
def test_a_rewritten_text_is_one_edit(text: str, other: str) -> None:
    found = difference(text, other, "changed")
    assert found is not None and found.end > found.start
    assert found.remedy is not None and found.remedy.text is not None
    assert text[: found.start] + found.remedy.text + text[found.end :] == other
    assert difference(text, text, "changed") is None


def test_what_is_covered_has_its_place() -> None:
    text = "Ann ann@example.com likes birds, bob@example.com does not"
    covered = Covered(text, Private().find(text))
    assert covered.text == "Ann [EMAIL_ADDRESS] likes birds, [EMAIL_ADDRESS] does not"

    def original(part: str) -> str:
        start = covered.text.index(part)
        (found,) = covered.in_original([Finding("x", start, start + len(part))])
        return text[found.start : found.end]

    assert original("birds") == "birds"
    assert original("MAIL") == "ann@example.com"
    assert original("] likes birds, [") == "ann@example.com likes birds, bob@example.com"
    assert original(covered.text) == text


def test_findings_that_overlap_become_one_that_blocks_if_either_does() -> None:
    block, redact = Remedy("block"), Remedy("redact", "x")
    wide, narrow = Finding("wide", 0, 9, 0.5, redact), Finding("narrow", 5, 12, 0.9, block)
    assert wide.with_other(narrow) == narrow.with_other(wide) == Finding("wide", 0, 12, 0.9, block)
    # What was to stand for a part does not stand for the whole.
    assert wide.with_other(Finding("plain", 5, 12)) == Finding("wide", 0, 12, 1.0, Remedy("redact"))
    assert wide.with_other(Finding("plain", 5, 8)) == Finding("wide", 0, 9, 1.0, redact)


@pytest.mark.parametrize(("start", "end"), [(5, 2), (4, 4), (30, 40), (30, None), (17, 18)])
def test_a_finding_at_a_place_that_the_text_lacks_counts_for_all_of_it(start: int, end: int | None) -> None:
    text = "a text that is 17"
    one: dict[str, Any] = {"start": start, "end": end}
    ours = {"verdicts": [{"findings": [{"label": "x", "score": 0.9, **one}]}]}
    told = {"action": "block"} | ours["verdicts"][0]
    for answer in (ours, {"verdicts": [told]}):
        ((found,),) = FORMATS["verdicts"].read([text], orjson.dumps(answer))
        assert (found.start, found.end) == (0, len(text))
    if end is not None:
        analysed = [{"entity_type": "PERSON", "score": 0.9, **one}]
        ((found,),) = FORMATS["presidio"].read([text], orjson.dumps(analysed))
        assert (found.start, found.end) == (0, len(text))


async def test_after_failures_it_is_asked_once_in_a_while_and_again_when_it_answers() -> None:
    now = 100.0
    poster = Poster()
    async with GuardServer(lambda _: reply("", status=500)) as server:
        config = WebhookGuard.model_validate({"kind": "webhook", "url": server.url})
        guard = Webhook("w", config, poster, clock=lambda: now)

        async def asks() -> bool:
            before = len(server.requests)
            with suppress(Unscanned):
                await guard.thorough(["a text"], "user")
            return len(server.requests) > before

        try:
            assert [await asks() for _ in range(FAILURES + 2)] == [True] * FAILURES + [False] * 2
            now += PAUSE
            assert [await asks() for _ in range(3)] == [True, False, False]
            server.answer = judging("nothing")
            now += PAUSE
            assert [await asks() for _ in range(3)] == [True, True, True]
        finally:
            await poster.aclose()


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        ({"url": "ftp://x.test"}, "URL"),
        ({"format": "classify"}, "labels"),
        ({"model": "m"}, "no place"),
        ({"format": "presidio", "texts": "masked"}, "presidio"),
        ({"headers": {"Host": "x"}}, "cannot set host"),
        ({"headers": {"x-a": "one\r\ntwo: 2"}}, "one line"),
        ({"headers": {"not a name": "x"}}, "name of a header"),
        ({"headers": {"Authorization": "x"}, "api_key": "k"}, "either"),
        ({"params": {"x": "a" * 9000}}, "8 KiB"),
    ],
)
def test_what_cannot_work_is_said(guard: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        WebhookGuard.model_validate({"kind": "webhook", "url": "http://guard.test/check", **guard})
