"""A guard elsewhere: the gateway, the server that judges and the model's server, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.fakes import Action, FakeUpstream, answer_events, completion, reply, stream
from tests.guard_server import GuardServer, judging
from tests.serving import OTHER_KEY, Gateway, a_policy, chat, serving

pytestmark = pytest.mark.anyio

BAD = "Bluebird"
ASK = f"Tell me about {BAD} and ann@example.com."


def guarded(server: GuardServer, upstream: str = "http://127.0.0.1:1/v1", **guard: Any) -> dict[str, Any]:
    more = {name: guard.pop(name) for name in ("caches", "tenants", "guards") if name in guard}
    others = more.pop("guards", {})
    return a_policy(upstream, guards={"webhook": {"url": server.url, **guard}, **others}, **more)


async def asked(gateway: Gateway, content: str, model: str = "fake", **more: Any) -> Any:
    return await gateway.http.post("/v1/chat/completions", json=chat(model, content), **more)


async def receipt(gateway: Gateway, answer: Any) -> dict[str, Any]:
    found = await gateway.http.get(f"/v1/requests/{answer.headers['x-request-id']}")
    return dict(found.json())


@pytest.mark.parametrize(
    ("action", "verdict", "status", "sent"),
    [
        ("block", {}, 400, None),
        ("redact", {}, 200, "Tell me about [WORD] and ann@example.com."),
        ("mask", {}, 200, "Tell me about <WORD_1> and ann@example.com."),
        ("flag", {}, 200, ASK),
        ("block", {"action": "allow"}, 200, ASK),
        ("block", {"action": "flag"}, 200, ASK),
        ("flag", {"action": "block"}, 200, ASK),
        ("redact", {"action": "block"}, 400, None),
        (
            "block",
            {"action": "redact", "findings": [{"label": "it", "start": 0, "end": 4}]},
            200,
            f"[IT] me about {BAD} and ann@example.com.",
        ),
        ("block", {"text": lambda text: text.replace(BAD, "the bird")}, 200, ASK.replace(BAD, "the bird")),
        ("block", {"text": lambda text: f"{text} Be brief."}, 200, f"{ASK} Be brief."),
        ("block", {"text": lambda text: f"Be brief. {text}"}, 200, f"Be brief. {ASK}"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_what_the_server_says_of_a_request_is_done(
    tmp_path: Path, action: str, verdict: dict[str, Any], status: int, sent: str | None
) -> None:
    async with (
        GuardServer(judging(BAD, **verdict)) as server,
        FakeUpstream(reply(completion("fine"))) as model,
        serving(tmp_path / "p", guarded(server, model.base_url, action=action)) as gateway,
    ):
        answer = await asked(gateway, ASK, "up")
        assert answer.status_code == status, answer.text
        if sent is None:
            assert answer.json()["error"]["code"] == "content_policy_violation"
            assert not model.requests
        else:
            (request,) = model.requests
            assert request.json()["messages"][0]["content"] == sent


async def test_it_is_told_who_asks_what_and_the_receipt_has_its_verdict(tmp_path: Path) -> None:
    async with GuardServer(judging(BAD)) as server:
        policy = guarded(
            server,
            api_key="sk-guard",
            headers={"x-team": "red"},
            params={"project": "p1"},
            message="Not here.",
        )
        async with serving(tmp_path / "p", policy) as gateway:
            refused = await asked(gateway, ASK)
            facts = (await receipt(gateway, refused))["stages"]["guard_input"]["guards"]["webhook"]
            metrics = await gateway.metrics()
    assert refused.json()["error"]["message"] == "Not here."
    (request,) = server.requests
    assert request.headers["authorization"] == "Bearer sk-guard"
    assert request.headers["x-team"] == "red"
    assert request.headers["x-request-id"] == f"{refused.headers['x-request-id']}-1"
    assert request.json() == {
        "project": "p1",
        "guard": "webhook",
        "direction": "input",
        "request_id": refused.headers["x-request-id"],
        "tenant": "acme",
        "key_id": "acme-1",
        "model": "fake",
        "route": "/v1/chat/completions",
        "masked": False,
        "texts": [{"text": ASK, "origin": "user"}],
    }
    assert (facts["action"], facts["check"], facts["labels"]) == ("block", "webhook", {"word": 1})
    assert metrics['tollgate_guard_scans_total{check="webhook",guard="webhook",outcome="found"}'] == 1
    assert metrics['tollgate_guard_hits_total{action="block",direction="input",guard="webhook"}'] == 1


@pytest.mark.parametrize(
    "said",
    [
        reply("oops", status=500),
        reply("", status=302, headers={"location": "http://127.0.0.1:1/"}),
        reply("no JSON"),
        reply({"verdicts": []}),
        reply({"verdicts": [{"findings": [{"label": "x", "score": "0.9"}]}]}),
        reply(b" " * (2**20 + 1)),
        (Action.ABORT,),
        (Action.HANG,),
    ],
    ids=["500", "redirect", "no-json", "too-few", "not-the-format", "too-long", "reset", "no-answer"],
)
@pytest.mark.parametrize(("on_error", "status"), [("block", 503), ("allow", 200)])
async def test_without_a_verdict_the_policy_decides(
    tmp_path: Path, said: Any, on_error: str, status: int
) -> None:
    timeout = "100ms" if said == (Action.HANG,) else "60s"
    async with GuardServer(lambda _: said) as server:
        policy = guarded(server, on_error=on_error, timeout=timeout)
        async with serving(tmp_path / "p", policy) as gateway:
            answer = await asked(gateway, ASK)
            facts = (await receipt(gateway, answer))["stages"]["guard_input"]
    assert answer.status_code == status, answer.text
    assert facts["scanned"] is False
    assert facts["guards"]["webhook"]["unscanned"]


async def test_a_server_that_is_away_is_not_asked_for_every_request(tmp_path: Path) -> None:
    async with (
        GuardServer(lambda _: reply("", status=500)) as server,
        serving(tmp_path / "p", guarded(server, on_error="allow")) as gateway,
    ):
        answers = [await asked(gateway, f"{ASK} {number}") for number in range(8)]
    assert {one.status_code for one in answers} == {200}
    assert len(server.requests) in (5, 6)  # a slow machine may have reached the next attempt


@pytest.mark.parametrize("mode", ["hold", "windowed", "optimistic"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_streamed_answer_is_cut_at_what_it_finds(tmp_path: Path, mode: str, streamed: bool) -> None:
    words = [*(f"word{number} " for number in range(40)), f"{BAD} ", *["after "] * 40]
    script = stream(*answer_events(*words)) if streamed else reply(completion("".join(words)))
    async with (
        GuardServer(judging(BAD)) as server,
        FakeUpstream(script) as model,
        serving(
            tmp_path / "p",
            guarded(server, model.base_url, on=["output"], stream=mode, window=32, interval=32),
        ) as gateway,
    ):
        answer = await gateway.http.post(
            "/v1/chat/completions", json={**chat("up", "Hi"), "stream": streamed}
        )
        seen, end = read(answer, streamed)
    assert end == "content_filter"
    assert {request.json()["direction"] for request in server.requests} == {"output"}
    if mode != "optimistic" or not streamed:
        assert BAD not in seen
    if mode == "hold":
        assert len(server.requests) == 1


@pytest.mark.parametrize("mode", ["hold", "windowed"])
@pytest.mark.parametrize(
    ("verdict", "instead"),
    [({}, "[WORD]"), ({"text": lambda text: text.replace(BAD, 'a "bird"')}, 'a "bird"')],
    ids=["by-label", "by-text"],
)
async def test_a_streamed_answer_is_changed(
    tmp_path: Path, mode: str, verdict: dict[str, Any], instead: str
) -> None:
    words = [
        *(f"word{number} " for number in range(20)),
        f"{BAD} ",
        *(f"after{number} " for number in range(20)),
    ]
    async with (
        GuardServer(judging(BAD, **verdict)) as server,
        FakeUpstream(stream(*answer_events(*words))) as model,
        serving(
            tmp_path / "p",
            guarded(
                server, model.base_url, on=["output"], action="redact", stream=mode, window=32, interval=16
            ),
        ) as gateway,
    ):
        answer = await gateway.http.post("/v1/chat/completions", json={**chat("up", "Hi"), "stream": True})
        seen, end = read(answer, True)
    assert (seen, end) == ("".join(words).replace(BAD, instead), "stop")


def read(answer: Any, streamed: bool) -> tuple[str, str]:
    """The text that a client has seen, and how it ended."""
    assert answer.status_code == 200, answer.text
    if not streamed:
        (choice,) = answer.json()["choices"]
        return choice["message"]["content"] or "", choice["finish_reason"]
    events = [orjson.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, next(choice["finish_reason"] for choice in choices if choice["finish_reason"])


async def test_masked_texts_hide_what_is_private_and_findings_stand_where_they_were(tmp_path: Path) -> None:
    text = f"ann@example.com and {BAD} and bob@example.com"
    async with (
        GuardServer(judging(BAD)) as server,
        FakeUpstream(reply(completion("fine"))) as model,
        serving(tmp_path / "p", guarded(server, model.base_url, action="redact", texts="masked")) as gateway,
    ):
        assert (await asked(gateway, text, "up")).status_code == 200
    assert server.texts == [f"[EMAIL_ADDRESS] and {BAD} and [EMAIL_ADDRESS]"]
    assert model.requests[0].json()["messages"][0]["content"] == (
        "ann@example.com and [WORD] and bob@example.com"
    )


@pytest.mark.parametrize(
    ("guard", "token", "status", "questions"),
    [
        ({}, OTHER_KEY, 503, 0),
        ({"local": True}, OTHER_KEY, 400, 1),
        ({"on_error": "allow"}, OTHER_KEY, 200, 0),
        ({}, None, 400, 1),
    ],
    ids=["elsewhere", "local", "elsewhere-open", "anyones"],
)
async def test_texts_that_must_stay_are_shown_to_local_servers_only(
    tmp_path: Path, guard: dict[str, Any], token: str | None, status: int, questions: int
) -> None:
    async with GuardServer(judging(BAD)) as server:
        policy = guarded(server, tenants={"other": {"local_only": True}}, **guard)
        policy["backends"]["scripted"]["local"] = True
        async with serving(tmp_path / "p", policy) as gateway:
            headers = {"authorization": f"Bearer {token}"} if token else {}
            answer = await asked(gateway, ASK, headers=headers)
    assert answer.status_code == status, answer.text
    assert len(server.requests) == questions


async def test_a_cached_answer_is_not_given_to_a_request_that_it_refuses(tmp_path: Path) -> None:
    """The verdict may change: each request is judged, a cached answer or not."""
    server = GuardServer(judging("nothing of the kind"))
    async with server:
        policy = guarded(server, caches={"exact": {}})
        async with serving(tmp_path / "p", policy) as gateway:
            first, second = await asked(gateway, ASK), await asked(gateway, ASK)
            assert [one.headers.get("x-tollgate-cache") for one in (first, second)] == ["miss", "exact"]
            server.answer = judging(BAD)
            assert (await asked(gateway, ASK)).status_code == 400
    assert len(server.requests) == 3


async def test_an_answer_that_it_cuts_is_never_cached(tmp_path: Path) -> None:
    async with (
        GuardServer(judging(BAD)) as server,
        FakeUpstream(reply(completion(f"a {BAD}")), reply(completion("fine"))) as model,
        serving(
            tmp_path / "p", guarded(server, model.base_url, on=["output"], caches={"exact": {}})
        ) as gateway,
    ):
        ends = [(await asked(gateway, "Hi", "up")).json()["choices"][0]["finish_reason"] for _ in range(3)]
    assert ends == ["content_filter", "stop", "stop"]
    assert (len(model.requests), len(server.requests)) == (2, 2)  # the third is the cache's


async def test_long_texts_are_shown_in_pieces(tmp_path: Path) -> None:
    text = "harmless words. " * 800 + BAD
    async with GuardServer(judging(BAD)) as server, serving(tmp_path / "p", guarded(server)) as gateway:
        assert (await asked(gateway, text)).status_code == 400
    assert max(map(len, server.texts)) <= 4000 + 512
    assert sum(map(len, server.texts)) >= len(text)


def moderated(request: Any) -> Any:
    flagged = [BAD in text for text in request.json()["input"]]
    return {
        "id": "modr-1",
        "model": "omni-moderation-latest",
        "results": [
            {
                "flagged": is_flagged,
                "categories": {"violence": is_flagged, "hate": False},
                "category_scores": {"violence": 0.3, "hate": 0.01},
                "category_applied_input_types": {"violence": ["text"]},
            }
            for is_flagged in flagged
        ],
    }


def classified(request: Any) -> Any:
    data = [
        {"index": index, "label": "unsafe" if BAD in text else "safe", "probs": [0.1, 0.9], "num_classes": 2}
        for index, text in enumerate(request.json()["input"])
    ]
    return {"id": "classify-1", "object": "list", "created": 1, "model": "m", "data": data}


def predicted(request: Any) -> Any:
    return [
        [{"label": "JAILBREAK", "score": score}, {"label": "BENIGN", "score": 1 - score}]
        for (text,) in request.json()["inputs"]
        for score in [0.98 if BAD in text else 0.02]
    ]


def analyzed(request: Any) -> Any:
    body = request.json()
    assert body["language"] == "de"
    at = body["text"].find(BAD)
    found = {"entity_type": "PERSON", "start": at, "end": at + len(BAD), "score": 0.85}
    return [{**found, "analysis_explanation": None}] if at >= 0 else []


def screened(request: Any) -> Any:
    (message,) = request.json()["messages"]
    assert message["role"] == "user"
    at = message["content"].find(BAD)
    detected = {"detector_type": "pii/name", "detected": at >= 0, "message_id": 0}
    return {
        "flagged": at >= 0,
        "payload": [
            {"detector_type": "pii/name", "start": at, "end": at + len(BAD), "text": BAD, "labels": []}
        ]
        if at >= 0
        else [],
        "breakdown": [{"detector_type": "prompt_attack", "detected": False}, detected],
        "metadata": {"request_uuid": "x"},
    }


def intervened(request: Any) -> Any:
    body = request.json()
    assert body["input_type"] == "request" and body["additional_provider_specific_params"] == {"level": 2}
    (text,) = body["texts"]
    if BAD not in text:
        return {"action": "NONE"}
    return {"action": "GUARDRAIL_INTERVENED", "texts": [text.replace(BAD, "***")], "blocked_reason": "a bird"}


@pytest.mark.parametrize(
    ("form", "answer", "more", "found"),
    [
        ("moderations", moderated, {"model": "omni-moderation-latest"}, "violence"),
        ("classify", classified, {"model": "m", "labels": ["unsafe"]}, "unsafe"),
        ("predict", predicted, {"labels": ["JAILBREAK"]}, "JAILBREAK"),
        ("presidio", analyzed, {"params": {"language": "de"}}, "PERSON"),
        ("lakera", screened, {"params": {"project_id": "p"}}, "pii/name"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_servers_that_others_have_written_are_understood(
    tmp_path: Path, form: str, answer: Callable[[Any], Any], more: dict[str, Any], found: str
) -> None:
    async with (
        GuardServer(answer) as server,
        serving(tmp_path / "p", guarded(server, format=form, **more)) as gateway,
    ):
        good, bad = await asked(gateway, "Hello there"), await asked(gateway, ASK)
        facts = (await receipt(gateway, bad))["stages"]["guard_input"]["guards"]["webhook"]
    assert (good.status_code, bad.status_code) == (200, 400), bad.text
    assert facts["labels"] == {found: 1}


async def test_a_server_for_litellm_may_rewrite_and_refuse(tmp_path: Path) -> None:
    async with (
        GuardServer(intervened) as server,
        FakeUpstream(reply(completion("fine"))) as model,
        serving(
            tmp_path / "p", guarded(server, model.base_url, format="litellm", params={"level": 2})
        ) as gateway,
    ):
        assert (await asked(gateway, ASK, "up")).status_code == 200
        server.answer = lambda _: {"action": "BLOCKED", "blocked_reason": ASK}
        refused = await asked(gateway, f"{ASK} Now.", "up")
    assert model.requests[0].json()["messages"][0]["content"] == ASK.replace(BAD, "***")
    assert refused.status_code == 400 and ASK not in refused.text


async def test_presidio_masks_what_it_finds_and_the_caller_gets_it_back(tmp_path: Path) -> None:
    async with (
        GuardServer(analyzed) as server,
        FakeUpstream(reply(completion("<PERSON_1> sings"))) as model,
        serving(
            tmp_path / "p",
            guarded(server, model.base_url, format="presidio", action="mask", params={"language": "de"}),
        ) as gateway,
    ):
        answer = await asked(gateway, f"Does {BAD} sing?", "up")
    assert model.requests[0].json()["messages"][0]["content"] == "Does <PERSON_1> sing?"
    assert answer.json()["choices"][0]["message"]["content"] == f"{BAD} sings"


async def test_a_guard_that_flags_asks_after_the_answer_and_stops_nothing(tmp_path: Path) -> None:
    async with GuardServer(lambda _: (Action.ABORT,)) as server:
        policy = guarded(server, action="flag", on=["input", "output"])
        async with serving(tmp_path / "p", policy) as gateway:
            answer = await asked(gateway, ASK)
            await server.arrived(2)
    assert answer.status_code == 200


async def test_connections_are_kept_and_one_that_was_closed_meanwhile_is_no_failure(tmp_path: Path) -> None:
    """A server that echoes the id, as many do."""

    def echoing(request: Any) -> Any:
        return reply({"verdicts": [{}]}, headers={"x-request-id": request.headers["x-request-id"]})

    async with (
        GuardServer(echoing) as server,
        serving(tmp_path / "p", guarded(server, on=["input", "output"], timeout="60s")) as gateway,
    ):
        for number in range(6):
            assert (await asked(gateway, f"Hello {number}")).status_code == 200
            await asyncio.sleep(0.02)  # a connection is left alone for a moment after each answer
        assert len(server.requests) == 12
        assert server.connections <= 6
        for connection in list(server.open):
            await connection.drop()
        assert (await asked(gateway, "Hello again")).status_code == 200
