"""Streams that break off while their client has seen nothing: another candidate gives the whole answer."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.fakes import Action, FakeUpstream, Received, Script, answer_events, delta, reply, sse, stream
from tests.guard_server import GuardServer
from tests.serving import Gateway, a_policy, chat, serving

pytestmark = pytest.mark.anyio

ABANDONED = "The first server speaks of grapes"
GIVEN = "Another one tells of plums, and to its end."
HOLD = {
    "words": {"kind": "topics", "on": ["output"], "action": "block", "words": ["durian"], "stream": "hold"}
}
WINDOW = {"words": {**HOLD["words"], "stream": "windowed", "window": 64, "interval": 16}}
OPTIMISTIC = {"words": {**HOLD["words"], "stream": "optimistic", "interval": 16}}
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "pick", "arguments": '{"a": 1'}}
DIALECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", chat("m")),
    "responses": ("/v1/responses", {"model": "m", "input": "Hi"}),
    "messages": ("/v1/messages", chat("m", max_tokens=100)),
}


def pieces(text: str) -> list[str]:
    return [text[start : start + 4] for start in range(0, len(text), 4)]


def dying(text: str = ABANDONED, *more: Any, pause: float = 0.0, apart: float = 0.0) -> Script:
    """Says ``text``, or part of a call, and dies; ``apart``: seconds between two pieces."""
    said: list[Any] = [sse(delta("", role="assistant"))]
    said += [step for piece in pieces(text) for step in (apart, sse(delta(piece)))]
    return stream(*said, *(sse(one) for one in more), pause, Action.ABORT, whole=False)


def sound(text: str = GIVEN) -> Script:
    return stream(*answer_events(*pieces(text)))


@dataclass
class Told:
    """What a client has of a stream."""

    response: httpx.Response
    text: str
    failed: bool
    receipt: dict[str, Any]

    @property
    def attempts(self) -> list[tuple[str, str, bool]]:
        made = self.receipt["stages"]["fallback"]["attempts"]
        return [(one["backend"], one["outcome"], one.get("discarded", False)) for one in made]


@dataclass
class Two:
    """A gateway before two servers."""

    gateway: Gateway
    first: FakeUpstream
    second: FakeUpstream
    state: Path

    async def ask(self, path: str, body: dict[str, Any]) -> Told:
        response = await self.gateway.http.post(path, json={**body, "stream": True})
        text, failed = "", response.status_code != 200
        for line in response.text.splitlines():
            if not line.startswith("data: {"):
                continue
            event = orjson.loads(line[6:])
            failed = failed or "error" in event or event.get("type") in ("error", "response.failed")
            for choice in event.get("choices", ()):
                text += choice["delta"].get("content") or ""
            if event.get("type") == "response.output_text.delta":
                text += event["delta"]
            if event.get("type") == "content_block_delta":
                text += event["delta"].get("text", "")
        receipt = await self.gateway.http.get(f"/v1/requests/{response.headers['x-request-id']}")
        return Told(response, text, failed, receipt.json())

    async def spent(self) -> list[dict[str, Any]]:
        """The ledger's rows of what was paid for; they are written some tenths of a second late."""
        async with asyncio.timeout(30):
            while True:
                found = []
                with suppress(sqlite3.OperationalError):
                    uri = f"file:{self.state / 'ledger.sqlite'}?mode=ro"
                    with closing(sqlite3.connect(uri, uri=True, timeout=5)) as database:
                        database.row_factory = sqlite3.Row
                        found = [dict(row) for row in database.execute("SELECT * FROM spent")]
                if found:
                    return found
                await asyncio.sleep(0.05)


@asynccontextmanager
async def two(
    tmp_path: Path, first: Script, second: Script | None = None, *, continues: bool = False, **more: Any
) -> AsyncIterator[Two]:
    async with FakeUpstream(first) as one, FakeUpstream(second or sound()) as other:
        policy = a_policy(one.base_url, prices={"x": {"input": 1.0, "output": 10.0}})
        policy["backends"]["other"] = {"kind": "openai", "base_url": other.base_url, "continues": continues}
        policy["models"]["m"] = {
            "targets": [{"backend": "up", "model": "x"}],
            "fallbacks": ["n"],
            "retry": {"attempts": 1},
        }
        policy["models"]["n"] = {"targets": [{"backend": "other", "model": "x"}], "retry": {"attempts": 1}}
        policy["models"] |= more.pop("models", {})
        async with serving(tmp_path / "p", {**policy, **more}) as gateway:
            yield Two(gateway, one, other, tmp_path / "state")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("guards", [HOLD, WINDOW], ids=["hold", "windowed"])
@pytest.mark.parametrize("apart", [0.0, 0.02], ids=["together", "one by one"])
async def test_the_next_candidate_gives_the_whole_answer(
    tmp_path: Path, guards: dict[str, Any], dialect: str, apart: float
) -> None:
    async with two(tmp_path, dying(apart=apart), guards=guards) as servers:
        told = await servers.ask(*DIALECTS[dialect])
        assert (told.text, told.failed) == (GIVEN, False), told.response.text
        assert "grapes" not in told.response.text
        assert told.response.headers["x-tollgate-model"] == "n"
        assert told.response.headers["x-tollgate-attempts"] == "2"
        assert told.attempts == [("up", "upstream_cut", True), ("other", "ok", False)]
        assert told.receipt["stages"]["fallback"]["continued"] == 0
        assert told.receipt["stages"]["guard_output"]["scanned"] is True
        roles = told.response.text.count('"role":"assistant"')
        assert roles == (1 if dialect == "chat" else roles)
        # The second server was asked what the first was asked, not to go on with its answer.
        asked = [server.requests[-1].json()["messages"] for server in (servers.first, servers.second)]
        assert asked[0] == asked[1]
        rows = {row["purpose"]: row for row in await servers.spent()}
        assert set(rows) == {"attempt", "answer"}
        assert rows["answer"]["completion_tokens"] == 3, "as the second server reported, and once"
        assert rows["attempt"]["completion_tokens"] > 0, "what the first computed is paid for"
        quota = told.receipt["stages"]["quota"]
        assert [one["purpose"] for one in quota["spent"]] == ["attempt", "answer"]
        costs = [round(one["prompt_tokens"] + 10 * one["completion_tokens"]) for one in quota["spent"]]
        assert [round(one["cost_usd"] * 1e6) for one in quota["spent"]] == costs
        assert round(quota["cost_usd"] * 1e6) == sum(costs), "settled once, with both"
        tokens = sum(one["prompt_tokens"] + one["completion_tokens"] for one in quota["spent"])
        assert quota["used_tokens"] == tokens


async def test_one_that_could_be_continued_is_asked_for_anew(tmp_path: Path) -> None:
    async with two(tmp_path, dying(), guards=HOLD, continues=True) as servers:
        told = await servers.ask(*DIALECTS["chat"])
        assert (told.text, told.failed) == (GIVEN, False)
        assert servers.second.requests[-1].json()["messages"] == DIALECTS["chat"][1]["messages"]


@pytest.mark.parametrize("n", [1, 2])
async def test_more_than_text_and_several_choices_fail_over_as_well(tmp_path: Path, n: int) -> None:
    async with two(tmp_path, dying(ABANDONED, delta(tool_calls=[CALL])), guards=HOLD) as servers:
        if n == 2:
            role, said = (sse(delta("", index=1, role="assistant")), sse(delta("Two", index=1)))
            end = sse(delta(index=1, finish="stop"))
            servers.second.scripts = [stream(role, said, end, *answer_events(*pieces(GIVEN)))]
        path, body = DIALECTS["chat"]
        told = await servers.ask(path, {**body, "n": n})
        assert not told.failed
        assert "tool_calls" not in told.response.text
        assert GIVEN in told.text and "grapes" not in told.text


@pytest.mark.parametrize("guards", [WINDOW, OPTIMISTIC], ids=["windowed", "optimistic"])
async def test_what_the_client_has_seen_stays(tmp_path: Path, guards: dict[str, Any]) -> None:
    long = "All this was said before it died, and was shown. " * 6
    async with two(tmp_path, dying(long, pause=0.5, apart=0.002), guards=guards) as servers:
        told = await servers.ask(*DIALECTS["chat"])
        assert told.failed, "another answer does not go on with what was shown"
        assert long.startswith(told.text) and told.text
        assert "plums" not in told.response.text
        assert not any(discarded for _, _, discarded in told.attempts)


async def test_nothing_seen_and_nobody_left_is_an_error_with_a_status(tmp_path: Path) -> None:
    async with two(tmp_path, dying(), dying("It dies too"), guards=WINDOW) as servers:
        told = await servers.ask(*DIALECTS["chat"])
        assert told.response.status_code == 502
        assert [discarded for _, _, discarded in told.attempts] == [True, True]


@pytest.mark.parametrize("mode", ["hold", "windowed"])
async def test_a_scan_in_flight_decides_nothing_about_the_next_answer(tmp_path: Path, mode: str) -> None:
    """The first server dies while the guard's verdict on its text is out, which then comes and would block it."""

    def judge(request: Received) -> Script:
        texts = [one["text"] for one in request.json()["texts"]]
        bad = any("grapes" in text for text in texts)
        return (0.4 if bad else 0.0, *reply({"verdicts": [{"score": float(bad)} for _ in texts]}))

    async with GuardServer(judge) as server:
        hook = {"kind": "webhook", "url": server.url, "on": ["output"], "action": "block", "stream": mode}
        guards = {"hook": {**hook, "interval": 16, "window": 64, "timeout": "5s"}}
        async with two(tmp_path, dying(pause=0.1), guards=guards) as servers:
            told = await servers.ask(*DIALECTS["chat"])
            assert (told.text, told.failed) == (GIVEN, False), told.response.text
            assert told.receipt["stages"]["guard_output"]["scanned"] is True
            assert "cut" not in told.receipt["stages"]["guard_output"]
            assert ("grapes" in str(server.texts)) == (mode == "windowed")


async def test_findings_in_what_was_abandoned_are_forgotten(tmp_path: Path) -> None:
    """Edits, windows and the text for guards that only flag are the second answer's alone."""
    guards = {
        "pii": {"on": ["output"], "action": "redact", "entities": ["EMAIL_ADDRESS"], "stream": "hold"},
        "fruit": {"kind": "topics", "on": ["output"], "action": "flag", "words": ["grapes"]},
        "plum": {"kind": "topics", "on": ["output"], "action": "flag", "words": ["plums"]},
    }
    second = "Of plums: write to jo@example.com."
    async with two(
        tmp_path, dying(ABANDONED + " at ann@example.com"), sound(second), guards=guards
    ) as servers:
        told = await servers.ask(*DIALECTS["chat"])
        assert told.text == "Of plums: write to [EMAIL_ADDRESS]."
        async with asyncio.timeout(30):
            while True:
                path = f"/v1/requests/{told.response.headers['x-request-id']}"
                found = (await servers.gateway.http.get(path)).json()["stages"]["guard_output"]["guards"]
                if "pending" not in found["plum"] and "pending" not in found["fruit"]:
                    break
                await asyncio.sleep(0.02)
        assert found["pii"]["labels"] == {"EMAIL_ADDRESS": 1}
        assert found["plum"]["labels"] and not found["fruit"]["labels"]


@pytest.mark.parametrize("guards", [HOLD, WINDOW], ids=["hold", "windowed"])
async def test_masked_values_come_back_once(tmp_path: Path, guards: dict[str, Any]) -> None:
    mask = {"pii": {"on": ["input"], "action": "mask", "entities": ["EMAIL_ADDRESS"]}}
    first = dying("Dear <EMAIL_ADDRESS_1>, it is <EMAIL_ADD")
    async with two(tmp_path, first, sound("To <EMAIL_ADDRESS_1>."), guards={**guards, **mask}) as servers:
        told = await servers.ask("/v1/chat/completions", chat("m", "Write to ann@example.com"))
        assert (told.text, told.failed) == ("To ann@example.com.", False)
        assert "ann@example.com" not in str(servers.second.requests[-1].json())


async def test_the_cache_has_the_second_answer_alone(tmp_path: Path) -> None:
    """Of two targets of one model: a fallback's answer is not kept."""
    targets = [{"backend": "up", "model": "x"}, {"backend": "other", "model": "x", "weight": 1e-9}]
    models = {"m": {"targets": targets, "retry": {"attempts": 1}}}
    async with two(tmp_path, dying(), guards=HOLD, caches={"exact": {}}, models=models) as servers:
        told = await servers.ask(*DIALECTS["chat"])
        assert told.attempts[0] == ("up", "upstream_cut", True)
        assert told.receipt["stages"]["cache"]["outcome"] == "kept"
        again = await servers.ask(*DIALECTS["chat"])
        assert again.response.headers["x-tollgate-cache"] == "exact"
        assert told.text == again.text == GIVEN
        assert (len(servers.first.requests), len(servers.second.requests)) == (1, 1)


@pytest.mark.parametrize("guards", [{}, HOLD, WINDOW], ids=["unguarded", "hold", "windowed"])
async def test_a_step_of_a_cascade_fails_over_before_it_is_judged(
    tmp_path: Path, guards: dict[str, Any]
) -> None:
    models = {
        "large": {"targets": [{"backend": "up", "model": "large"}]},
        "auto": {"cascade": [{"model": "m", "escalate": {"mean_logprob_below": -5.0}}, {"model": "large"}]},
    }
    async with two(tmp_path, dying(), guards=guards, models=models) as servers:
        told = await servers.ask("/v1/chat/completions", chat("auto"))
        assert (told.text, told.failed) == (GIVEN, False)
        stages = told.receipt["stages"]
        assert [step["verdict"] for step in stages["cascade"]["steps"]] == ["good"]
        assert stages["cascade"]["answered"] == "n"
        assert [one["purpose"] for one in stages["quota"]["spent"]] == ["attempt", "answer"]
        assert len(servers.first.requests) == 1, "the larger model was not needed"


async def test_the_last_step_of_a_cascade_fails_over(tmp_path: Path) -> None:
    """Its candidates first; where none is left, an earlier answer of low confidence is given after all."""
    models = {"auto": {"cascade": [{"model": "down"}, {"model": "m"}]}}
    async with two(tmp_path, dying(), guards=HOLD, models=models) as servers:
        told = await servers.ask("/v1/chat/completions", chat("auto"))
        assert (told.text, told.failed) == (GIVEN, False)
        stages = told.receipt["stages"]
        assert [step["verdict"] for step in stages["cascade"]["steps"]] == ["failed", "last"]
        assert stages["cascade"]["answered"] == "n"


@pytest.mark.parametrize("guards", [{}, HOLD], ids=["unguarded", "hold"])
async def test_an_earlier_answer_is_given_where_the_last_step_died_unseen(
    tmp_path: Path, guards: dict[str, Any]
) -> None:
    unsure = {"content": [{"token": "Well", "logprob": -9.0, "bytes": None, "top_logprobs": []}]}
    piece = delta("Well, plums.")
    piece["choices"][0]["logprobs"] = unsure
    first = stream(sse(delta("", role="assistant")), sse(piece), *answer_events()[1:])
    models = {
        "large": {"targets": [{"backend": "other", "model": "x"}], "retry": {"attempts": 1}},
        "small": {"targets": [{"backend": "up", "model": "x"}], "retry": {"attempts": 1}},
        "auto": {
            "cascade": [{"model": "small", "escalate": {"mean_logprob_below": -1.0}}, {"model": "large"}]
        },
    }
    async with two(tmp_path, first, dying(), guards=guards, models=models) as servers:
        told = await servers.ask("/v1/chat/completions", chat("auto"))
        steps = [step["verdict"] for step in told.receipt["stages"]["cascade"]["steps"]]
        if guards:
            assert (told.text, told.failed) == ("Well, plums.", False)
            assert steps == ["low_logprob", "failed"]
        else:
            assert told.failed and told.text and ABANDONED.startswith(told.text), "it was shown"


@pytest.mark.parametrize("guards", [HOLD, WINDOW], ids=["hold", "windowed"])
async def test_a_conversation_can_still_be_shortened(tmp_path: Path, guards: dict[str, Any]) -> None:
    too_long = {"message": "too long", "code": "context_length_exceeded", "param": "messages"}
    second = reply({"error": too_long}, status=400)
    retried = {
        "targets": [{"backend": "up", "model": "x"}],
        "retry": {"attempts": 2, "backoff": "1ms"},
    }
    async with two(tmp_path, dying(), guards=guards, models={"m": retried}) as servers:
        servers.first.scripts = [dying(), second, sound()]
        said = [{"role": role, "content": "word " * 50} for role in ("user", "assistant") * 3]
        body = {"model": "m", "input": [*said, {"role": "user", "content": "Hi"}], "truncation": "auto"}
        told = await servers.ask("/v1/responses", body)
        assert (told.text, told.failed) == (GIVEN, False), told.response.text
        assert int(told.response.headers["x-tollgate-truncated"]) > 0
        assert [outcome for _, outcome, _ in told.attempts] == [
            "upstream_cut",
            "context_length_exceeded",
            "ok",
        ]
