"""Who speaks of self-harm gets a supportive reply, and no model is asked."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from gateway import errors
from gateway.guards.guards import Guards
from gateway.guards.requests.support import HEADER, MESSAGE
from gateway.guards.scanners.scanner import Scanner
from gateway.observe.metrics import Metrics
from gateway.stages.guard_input import guard_input
from gateway.types import Call, Chunk, Chunks
from tests.fakes import a_call, policy
from tests.scanners import KeywordScanner, SlowScanner, background_scans_of

pytestmark = pytest.mark.anyio

LABELS = {"end my life": "self_harm", "vermin": "hate"}
DESPAIR, HATE = "I want to end my life.", "They are vermin."


def guards(scanner: Scanner | None = None, **config: Any) -> Guards:
    rules = policy(guards={"toxicity": config, "keys": {"kind": "secrets", "action": "block"}})
    return Guards(
        rules, {"toxicity": scanner or KeywordScanner(LABELS), "keys": KeywordScanner({"sk-1": "key"})}
    )


def user(*texts: str, **more: Any) -> Call:
    return a_call(messages=tuple({"role": "user", "content": text} for text in texts), **more)


async def ask(call: Call, mine: Guards, *, replies: bool = True) -> tuple[int, list[Chunk], Metrics]:
    """How often the model was asked, what came, and the metrics."""
    asked = 0
    metrics = Metrics()

    async def model(call: Call) -> Chunks:
        nonlocal asked
        asked += 1
        yield Chunk(0, {"content": "ok"}, "stop")

    stage = guard_input(mine, background_scans_of(metrics), metrics, replies=replies)
    async with aclosing(stage(model)(call)) as chunks:
        came = [chunk async for chunk in chunks]
    return asked, came, metrics


def facts(call: Call) -> dict[str, Any]:
    return dict(call.receipt.notes["guard_input"]["guards"]["toxicity"])


@pytest.mark.parametrize("scanner", [KeywordScanner(LABELS), SlowScanner(LABELS)], ids=["fast", "model"])
async def test_the_reply_is_an_ordinary_answer(scanner: Scanner) -> None:
    call = user(DESPAIR)
    asked, chunks, metrics = await ask(call, guards(scanner))
    assert asked == 0
    assert [chunk.delta for chunk in chunks] == [{"role": "assistant", "content": MESSAGE}, {}]
    assert chunks[-1].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt, chunks[-1].usage.completion) == (0, 0)
    assert call.reply_headers[HEADER] == "toxicity; action=support; category=self_harm"
    assert facts(call)["action"] == "support"
    assert facts(call)["labels"] == {"self_harm": 1}
    assert DESPAIR not in str(call.receipt.notes)
    assert 'action="support"' in metrics.render().decode()


async def test_every_choice_has_it_and_the_last_the_usage() -> None:
    call = user(DESPAIR)
    call.request = replace(call.request, n=3)
    _, chunks, _ = await ask(call, guards())
    assert {chunk.index for chunk in chunks} == {0, 1, 2}
    assert [chunk.index for chunk in chunks if chunk.usage is not None] == [2]
    assert [chunk.finish_reason for chunk in chunks].count("stop") == 3


async def test_a_client_that_wants_json_finds_it_in_the_refusal() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    call = user(DESPAIR, params={"response_format": wanted})
    _, chunks, _ = await ask(call, guards())
    assert chunks[0].delta == {"role": "assistant", "refusal": MESSAGE}


async def test_the_operators_own_words() -> None:
    _, chunks, _ = await ask(user(DESPAIR), guards(self_harm={"message": "Talk to us."}))
    assert chunks[0].delta == {"role": "assistant", "content": "Talk to us."}


@pytest.mark.parametrize("scanner", [KeywordScanner(LABELS), SlowScanner(LABELS)], ids=["fast", "model"])
async def test_flag_lets_the_model_answer_and_refuses_the_rest(scanner: Scanner) -> None:
    mine, call = guards(scanner, self_harm={"action": "flag"}), user(DESPAIR)
    asked, _, _ = await ask(call, mine)
    assert asked == 1
    assert HEADER not in call.reply_headers
    assert facts(call)["action"] == "flag"
    with pytest.raises(errors.Blocked, match="for hate"):
        await ask(user(DESPAIR, HATE), mine)


async def test_block_refuses_it_like_the_rest() -> None:
    with pytest.raises(errors.Blocked, match="for self_harm"):
        await ask(user(DESPAIR), guards(self_harm={"action": "block"}))


@pytest.mark.parametrize("texts", [(HATE, DESPAIR), (DESPAIR, HATE)])
@pytest.mark.parametrize("scanner", [KeywordScanner(LABELS), SlowScanner(LABELS)], ids=["fast", "model"])
async def test_it_takes_precedence_over_other_categories(scanner: Scanner, texts: tuple[str, str]) -> None:
    call = user(*texts)
    asked, chunks, _ = await ask(call, guards(scanner))
    assert asked == 0
    assert chunks[0].delta == {"role": "assistant", "content": MESSAGE}


async def test_other_guards_refuse_as_ever() -> None:
    with pytest.raises(errors.Blocked, match="keys"):
        await ask(user("my key is sk-1", DESPAIR), guards(SlowScanner(LABELS)))


def conversation(*turns: tuple[str, str]) -> Call:
    return a_call(messages=tuple({"role": role, "content": text} for role, text in turns))


async def test_the_conversation_goes_on_after_it() -> None:
    call = conversation(("user", DESPAIR), ("assistant", f"{MESSAGE}\n"), ("user", "Thank you. Talk to me."))
    asked, _, _ = await ask(call, guards())
    assert asked == 1
    assert facts(call)["action"] == "flag"
    again = conversation(("user", DESPAIR), ("assistant", MESSAGE), ("user", f"No, {DESPAIR}"))
    assert (await ask(again, guards()))[0] == 0


async def test_another_answer_is_none_to_it() -> None:
    call = conversation(("user", DESPAIR), ("assistant", "Sure, here is how."), ("user", "Go on."))
    assert (await ask(call, guards()))[0] == 0


async def test_documents_and_tool_results_pass() -> None:
    call = conversation(("user", "What does it say?"), ("tool", f"The hero cries: {DESPAIR}"))
    asked, _, _ = await ask(call, guards())
    assert asked == 1
    assert facts(call)["action"] == "flag"


async def test_embeddings_and_token_counts_are_not_answered_in_words() -> None:
    call = a_call()
    call.request = replace(call.request, messages=None, prompt=[DESPAIR], embeds=True)
    assert (await ask(call, guards()))[0] == 1
    assert (await ask(user(DESPAIR), guards(), replies=False))[0] == 1


async def test_a_guard_that_keeps_requests_local_does_so() -> None:
    call = user(DESPAIR)
    asked, _, _ = await ask(call, guards(action="local"))
    assert asked == 1
    assert call.local_only
