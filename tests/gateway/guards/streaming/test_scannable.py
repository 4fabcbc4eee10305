"""What stands beside an answer, which no guard reads: does it tell what the guard took out?"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.guards.streaming.scannable import Scannable
from gateway.types import Chunk

ADDRESS = "alice@private.example.com"
RATINGS = [{"category": "HARM_CATEGORY_HARASSMENT", "probability": "NEGLIGIBLE", "blocked": False}]
VERDICTS = {
    "finishReason": "STOP",
    "safetyRatings": RATINGS,
    "avgLogprobs": -0.25,
    "content_filter_results": {"hate": {"filtered": False, "severity": "safe"}},
}
TELLING: dict[str, Any] = {
    "finishMessage": ADDRESS,
    "citationMetadata": {"citationSources": [{"uri": "https://example.com", "startIndex": 3}]},
    "groundingMetadata": {"groundingSupports": [{"segment": {"text": ADDRESS}}], "webSearchQueries": ["who"]},
    "token_ids": [17, 4],
    "fieldOfTomorrow": {"of": {"tomorrow": ADDRESS}},
}


@pytest.mark.parametrize("name", TELLING)
def test_what_repeats_the_answer_is_left_out(name: str) -> None:
    choice = {"extra_content": {"google": {**VERDICTS, name: TELLING[name]}}}
    own = {"createTime": "2026-11-24T05:10:00.123456Z", name: TELLING[name]}
    envelope = {"id": "chatcmpl-1", "native": {"response": own, "usage": {"trafficType": "ON_DEMAND"}}}
    scannable = Scannable()
    chunk, _ = scannable.read(Chunk(0, {"content": "Hi"}, choice=choice, envelope=envelope))
    assert chunk.choice is not None
    said = f"{chunk.choice} {chunk.envelope}"
    assert ADDRESS not in said and "example" not in said and "who" not in said and "17" not in said
    assert scannable.left_out
    google = chunk.choice["extra_content"]["google"]
    assert {field: google[field] for field in VERDICTS} == VERDICTS
    native = chunk.envelope["native"]
    assert native["response"]["createTime"] == own["createTime"]
    assert native["usage"] == {"trafficType": "ON_DEMAND"}


def test_verdicts_ids_and_times_stay() -> None:
    choice = {"extra_content": {"google": VERDICTS}}
    message = {
        "container": {"id": "container_011CPR5CNjB747bTd36fQLFk", "expires_at": "2026-05-01T10:00:00Z"}
    }
    envelope = {"native": {"message": message, "usage": {"service_tier": "standard", "inference_geo": "us"}}}
    sent = Chunk(0, {"content": "Hi"}, choice=choice, envelope=envelope)
    scannable = Scannable()
    chunk, _ = scannable.read(sent)
    assert (chunk.choice, chunk.envelope, scannable.left_out) == (choice, envelope, set())
