from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.findings import Finding
from gateway.guards.guards import Guards
from gateway.guards.requests.mask import Unmasker
from gateway.guards.scanners.scanner import Origin, Verdict
from gateway.observe.metrics import Metrics
from gateway.stages.guard_input import guard_input
from gateway.types import Call, ChatRequest, Chunk, Chunks
from gateway.wire.anthropic import body_to_request
from tests.fakes import a_call, policy
from tests.scanners import (
    BlockScanner,
    KeywordScanner,
    SlowScanner,
    background_scans_of,
    guards_of,
    unavailable,
)

pytestmark = pytest.mark.anyio

ANN, BOB = "ann@example.org", "bob@example.org"
MAIL = {ANN: "EMAIL_ADDRESS", BOB: "EMAIL_ADDRESS"}


class Model:
    """Answers with ``chunks``; keeps what it was asked."""

    def __init__(self, *chunks: Chunk | BaseException) -> None:
        self.chunks = chunks
        self.asked: list[Call] = []
        self.open = 0

    @property
    def request(self) -> ChatRequest:
        return self.asked[-1].request

    async def __call__(self, call: Call) -> Chunks:
        self.asked.append(call)
        self.open += 1
        try:
            for chunk in self.chunks:
                if isinstance(chunk, BaseException):
                    raise chunk
                yield chunk
        finally:
            self.open -= 1


async def ask(guards: Guards, call: Call, *chunks: Chunk | BaseException) -> tuple[Model, list[Chunk]]:
    model = Model(*(chunks or (Chunk(0, {"content": "ok"}, "stop"),)))
    flags = background_scans_of()
    async with aclosing(guard_input(guards, flags, Metrics())(model)(call)) as stream:
        out = [chunk async for chunk in stream]
    await flags.idle()
    assert model.open == 0
    return model, out


def a_guard(scanner: Any = None, **config: Any) -> Guards:
    return guards_of(mail=(scanner or KeywordScanner(MAIL), {"action": "mask", **config}))


def user(*texts: str, **more: Any) -> Call:
    return a_call(messages=tuple({"role": "user", "content": text} for text in texts), **more)


def said(chunks: list[Chunk], index: int = 0) -> str:
    return "".join((c.delta or {}).get("content") or "" for c in chunks if c.index == index)


async def test_without_guards_there_is_no_layer() -> None:
    stage = guard_input(a_guard(tenants=["other"]), background_scans_of(), Metrics())
    assert stage(lambda call: "the very stream")(a_call()) == "the very stream"  # type: ignore[arg-type,return-value,comparison-overlap]


async def test_block_names_guard_and_labels_and_never_the_text() -> None:
    call = user("Write to " + ANN)
    with pytest.raises(errors.Blocked) as caught:
        await ask(a_guard(action="block"), call)
    assert (caught.value.status, caught.value.code) == (400, "content_policy_violation")
    assert "mail" in caught.value.message
    assert "EMAIL_ADDRESS" in caught.value.message
    assert ANN not in str(caught.value.body()) + str(call.receipt.notes)
    assert call.receipt.notes["guard_input"]["guards"]["mail"]["labels"] == {"EMAIL_ADDRESS": 1}
    assert call.receipt.notes["guard_input"]["guards"]["mail"]["action"] == "block"


async def test_redact() -> None:
    call = user(f"From {ANN} to {BOB}.")
    before = call.request
    model, _ = await ask(a_guard(action="redact"), call)
    assert model.request.messages == (
        {"role": "user", "content": "From [EMAIL_ADDRESS] to [EMAIL_ADDRESS]."},
    )
    assert before.messages == ({"role": "user", "content": f"From {ANN} to {BOB}."},)


async def test_mask_and_back() -> None:
    call = user(f"{ANN} and {BOB}", f"again {BOB} and {ANN}, not <EMAIL_ADDRESS_9>")
    model, out = await ask(
        a_guard(),
        call,
        Chunk(0, {"content": "To <EMAIL_ADDRESS_2>, <EMAIL_ADDRESS_3> and <EMAIL_"}),
        Chunk(0, {"content": "ADDRESS_1> <"}),
        Chunk(0, {}, "stop"),
    )
    assert model.request.messages is not None
    assert [message["content"] for message in model.request.messages] == [
        "<EMAIL_ADDRESS_1> and <EMAIL_ADDRESS_2>",
        "again <EMAIL_ADDRESS_2> and <EMAIL_ADDRESS_1>, not <EMAIL_ADDRESS_9>",
    ]
    assert said(out) == f"To {BOB}, <EMAIL_ADDRESS_3> and {ANN} <"
    assert out[-1].finish_reason == "stop"
    assert call.receipt.notes["guard_input"]["guards"]["mail"]["labels"] == {"EMAIL_ADDRESS": 4}


async def test_placeholders_do_not_collide_with_what_stands_there() -> None:
    model, out = await ask(
        a_guard(),
        user(f"<EMAIL_ADDRESS_1> is no address, {ANN} is"),
        Chunk(0, {"content": "<EMAIL_ADDRESS_1><EMAIL_ADDRESS_2>"}, "stop"),
    )
    assert model.request.messages is not None
    assert model.request.messages[0]["content"] == "<EMAIL_ADDRESS_1> is no address, <EMAIL_ADDRESS_2> is"
    assert said(out) == "<EMAIL_ADDRESS_1>" + ANN


async def test_all_texts_of_a_request() -> None:
    arguments = json.dumps({"to": ANN, "n": 7, "deep": [{BOB: "x\n" + ANN}]})
    call = a_call(
        messages=(
            {"role": "system", "content": f"You serve {ANN}."},
            {
                "role": "user",
                "name": "ann",
                "content": [
                    {"type": "text", "text": ANN},
                    {"type": "image_url", "image_url": {"url": "data:"}},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": ANN,
                "refusal": BOB,
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "send", "arguments": arguments}}
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": BOB},
        ),
        params={"user": ANN, "prediction": {"type": "content", "content": BOB}, "temperature": 1},
    )
    model, _ = await ask(a_guard(), call)
    messages = model.request.messages
    assert messages is not None
    assert not re.search(f"{ANN}|{BOB}", str(messages) + str(model.request.params))
    assert messages[0]["content"] == "You serve <EMAIL_ADDRESS_1>."
    assert messages[1]["content"][1] == {"type": "image_url", "image_url": {"url": "data:"}}
    assert json.loads(messages[2]["tool_calls"][0]["function"]["arguments"]) == {
        "to": "<EMAIL_ADDRESS_1>",
        "n": 7,
        "deep": [{"<EMAIL_ADDRESS_2>": "x\n<EMAIL_ADDRESS_1>"}],
    }
    assert model.request.params == {
        "user": "<EMAIL_ADDRESS_1>",
        "prediction": {"type": "content", "content": "<EMAIL_ADDRESS_2>"},
        "temperature": 1,
    }
    assert call.receipt.notes["guard_input"]["unread"] == ["image_url"]


@pytest.mark.parametrize(
    ("role", "origin"),
    [
        ("system", "system"),
        ("developer", "system"),
        ("user", "user"),
        ("assistant", "assistant"),
        ("tool", "tool"),
        ("function", "tool"),
    ],
)
async def test_whose_words_they_are(role: str, origin: Any) -> None:
    scanner = KeywordScanner(MAIL, origins=frozenset((origin,)))
    for other in ("system", "user", "assistant", "tool"):
        call = a_call(messages=({"role": role, "content": ANN}, {"role": other, "content": "hello"}))
        await ask(a_guard(scanner, action="flag"), call)
        assert call.receipt.notes["guard_input"]["guards"]["mail"]["labels"] == {"EMAIL_ADDRESS": 1}
    assert {seen for _, seen in scanner.seen} == {origin}
    assert (ANN, origin) in scanner.seen


@pytest.mark.parametrize("prompt", [f"to {ANN}", ["a", f"to {ANN}"]])
async def test_prompts(prompt: Any) -> None:
    model, _ = await ask(a_guard(action="redact"), a_call(prompt=prompt))
    assert model.request.prompt == (
        "to [EMAIL_ADDRESS]" if isinstance(prompt, str) else ["a", "to [EMAIL_ADDRESS]"]
    )


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1], [2, 3]]])
async def test_token_ids_cannot_be_read(prompt: Any) -> None:
    with pytest.raises(errors.BadRequest, match="token ids") as caught:
        await ask(a_guard(action="block"), a_call(prompt=prompt))
    assert caught.value.param == "prompt"
    with pytest.raises(errors.BadRequest, match="Send 'input' as text") as caught:
        await ask(a_guard(action="block"), a_call(prompt=prompt, embeds=True))
    assert caught.value.param == "input"
    call = a_call(prompt=prompt)
    await ask(a_guard(action="block", on_error="allow"), call)
    assert call.receipt.notes["guard_input"]["scanned"] is False
    call = a_call(prompt=prompt)
    await ask(a_guard(action="flag"), call)
    assert call.receipt.notes["guard_input"]["guards"]["mail"]["unscanned"] == "token_ids"


async def test_local_and_flag() -> None:
    call = user(ANN)
    model, _ = await ask(a_guard(action="local"), call)
    assert model.asked[0].local_only
    assert said([]) == ""
    call = user(ANN)
    model, _ = await ask(a_guard(action="flag"), call)
    assert not model.asked[0].local_only
    assert model.request is call.request
    assert call.receipt.notes["guard_input"]["guards"]["mail"]["action"] == "flag"


async def test_edits_of_several_guards_fit_together() -> None:
    guards = guards_of(
        mail=(KeywordScanner(MAIL), {"action": "mask"}),
        hosts=(KeywordScanner({"example.org is": "host", "then": "word"}), {"action": "redact"}),
    )
    model, out = await ask(
        guards, user(f"then {ANN} is here, then {BOB}"), Chunk(0, {"content": "<EMAIL_ADDRESS_1>"}, "stop")
    )
    assert model.request.messages is not None
    assert model.request.messages[0]["content"] == "[WORD] <EMAIL_ADDRESS_1> here, [WORD] <EMAIL_ADDRESS_2>"
    assert said(out) == ANN + " is"  # what overlaps becomes one, named by the longest


async def test_block_wins_and_spares_the_slower_tier() -> None:
    slow = SlowScanner({"x": "x"})
    guards = guards_of(slow=(slow, {"action": "mask"}), mail=(KeywordScanner(MAIL), {"action": "block"}))
    with pytest.raises(errors.Blocked):
        await ask(guards, user(ANN))
    assert slow.asked == []


async def test_the_slower_tier_is_asked_once_for_all_texts_and_guards_wait_side_by_side() -> None:
    one, two = SlowScanner(MAIL), SlowScanner(MAIL)
    one.gate.clear()
    two.gate.clear()
    guards = guards_of(one=(one, {"action": "mask"}), two=(two, {"action": "local"}))
    task = asyncio.create_task(ask(guards, user(ANN, "and", BOB)))
    while not (one.running and two.running):  # noqa: ASYNC110
        await asyncio.sleep(0)
    one.gate.set()
    two.gate.set()
    model, _ = await task
    assert one.asked == [[ANN, "and", BOB]]
    assert model.request.messages is not None
    assert model.request.messages[2]["content"] == "<EMAIL_ADDRESS_2>"


class Asking(SlowScanner):
    """Notes whether the request was to stay when a judge was asked."""

    def __init__(self) -> None:
        super().__init__({"nothing": "x"})
        self.stayed: list[bool] = []

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        assert call is not None
        self.stayed.append(call.local_only)
        return await super().thorough(texts, origin, call)


def keeping(keeper: Any, asking: Any) -> Guards:
    rules = {"asking": {"kind": "toxicity", "judge": "m"}, "keeper": {"kind": "secrets", "action": "local"}}
    return Guards(policy(guards=rules), {"asking": asking, "keeper": keeper})


@pytest.mark.parametrize(("text", "stays"), [(ANN, True), ("nobody", False)])
async def test_a_judge_is_asked_when_it_is_known_whether_the_request_must_stay(
    text: str, stays: bool
) -> None:
    keeper, asking = SlowScanner(MAIL), Asking()
    keeper.gate.clear()
    call = user(text)
    task = asyncio.create_task(ask(keeping(keeper, asking), call))
    while not keeper.running:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert (asking.asked, call.local_only) == ([], True)
    keeper.gate.set()
    model, _ = await task
    assert asking.stayed == [stays]
    assert model.asked[0].local_only is stays


async def test_what_must_stay_for_other_reasons_goes_on_doing_so() -> None:
    asking, call = Asking(), user("nobody")
    call.local_only = True
    model, _ = await ask(keeping(SlowScanner(MAIL), asking), call)
    assert asking.stayed == [True]
    assert model.asked[0].local_only


async def test_until_that_is_known_it_stays_even_where_it_is_refused() -> None:
    """Guards that only flag look at it all the same, and may ask a judge."""
    rules = {"keeper": {"kind": "secrets", "action": "local"}, "mail": {"kind": "secrets", "action": "block"}}
    call = user(ANN)
    with pytest.raises(errors.Blocked):
        await ask(
            Guards(policy(guards=rules), {"keeper": SlowScanner(MAIL), "mail": KeywordScanner(MAIL)}), call
        )
    assert call.local_only


@pytest.mark.parametrize("late", [False, True])
async def test_what_cannot_be_judged(late: bool) -> None:
    scanner = SlowScanner(MAIL, failure=None if late else unavailable())
    if late:
        scanner.gate.clear()
    call = user(ANN)
    with pytest.raises(errors.GuardUnavailable, match="mail") as caught:
        await ask(a_guard(scanner, timeout="20ms"), call)
    assert caught.value.status == 503
    assert caught.value.retry_after
    facts = call.receipt.notes["guard_input"]["guards"]["mail"]
    assert facts["unscanned"] and facts["action"] == "block", "it refused, and the receipt says so"
    call = user(ANN)
    model, _ = await ask(a_guard(scanner, timeout="20ms", on_error="allow"), call)
    assert model.request.messages == ({"role": "user", "content": ANN},)
    assert call.receipt.notes["guard_input"]["scanned"] is False
    assert call.receipt.notes["guard_input"]["guards"]["mail"]["action"] == "pass"
    assert scanner.running == 0


async def test_long_texts_are_scanned_in_pieces_that_overlap() -> None:
    scanner = KeywordScanner(MAIL)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0)
            beats += 1

    other = asyncio.create_task(beat())
    text = "".join(f"{'x' * (i % 97)}{ANN}" for i in range(700))
    model, _ = await ask(a_guard(scanner, action="redact"), user(text))
    other.cancel()
    assert model.request.messages is not None
    assert model.request.messages[0]["content"] == text.replace(ANN, "[EMAIL_ADDRESS]")
    assert max(len(piece) for piece, _ in scanner.seen) <= 4000
    assert beats > 8


async def test_the_ends_of_pieces_are_no_ends_of_words() -> None:
    class Exact(KeywordScanner):
        def find(self, text: str) -> tuple[Finding, ...]:
            return tuple(Finding("word", *match.span()) for match in re.finditer(r"\bcats\b", text))

    for shift in range(6):
        call = user("-" * shift + "catscats" * 2000)
        await ask(a_guard(Exact({"cats": "word"}), action="block"), call)


async def test_a_thing_longer_than_a_piece() -> None:
    text = "a" * 3000 + "BEGIN" + "k" * 3000 + "END" + "z" * 5000 + "BEGIN" + "k" * 500 + "END."
    model, _ = await ask(a_guard(BlockScanner(), action="redact"), user(text))
    assert model.request.messages is not None
    assert "k" not in model.request.messages[0]["content"].replace("[BLOCK]", "")


async def test_the_length_of_all_texts_together() -> None:
    guards = Guards(
        policy(guards={"length": {"max_characters": 10}}), {"length": KeywordScanner({"-": "unused"})}
    )
    await ask(guards, user("12345", "67890"))
    with pytest.raises(errors.Blocked, match="11 characters"):
        await ask(guards, user("12345", "678901"))


async def test_a_client_that_leaves_during_a_scan() -> None:
    scanner = SlowScanner(MAIL)
    scanner.gate.clear()
    before = asyncio.all_tasks()
    task = asyncio.create_task(ask(a_guard(scanner), user(ANN)))
    while not scanner.running:  # noqa: ASYNC110
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert scanner.running == 0
    assert asyncio.all_tasks() == before


ORIGINALS = {"<A_1>": 'a"b\n', "<A_12>": "twelve", "<BB_1>": "<", "<BB_2>": "<A"}
ANSWERS = st.lists(
    st.sampled_from([*ORIGINALS, "<", "<A", "<A_1", "<A_1<", ">", "x", " ", "<A_3>", "é", "<<BB_1>"])
).map("".join)


def filled(text: str, *, escaped: bool = False) -> str:
    return re.sub(
        "|".join(ORIGINALS), lambda m: json.dumps(ORIGINALS[m[0]])[1:-1] if escaped else ORIGINALS[m[0]], text
    )


@given(text=ANSWERS, cuts=st.lists(st.integers(0, 60), max_size=40), other=ANSWERS)
def test_cut_anywhere_it_is_filled_as_if_it_were_whole(text: str, cuts: list[int], other: str) -> None:
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    unmasker = Unmasker(ORIGINALS, a_call().request)
    out: list[Chunk] = []
    for start, end in zip(places, [*places[1:], len(text)], strict=True):
        piece = text[start:end]
        for chunk in (
            Chunk(0, {"content": piece}),
            Chunk(1, {"content": other}),
            Chunk(0, {"tool_calls": [{"index": 3, "function": {"arguments": piece}}]}),
        ):
            out += unmasker.feed(chunk)
    out += unmasker.feed(Chunk(0, {}, "stop"))
    finished = len(out)
    out += unmasker.end()
    assert all(chunk.index == 1 for chunk in out[finished:])
    assert said(out) == filled(text)
    assert said(out, 1) == filled(other * len(places))
    calls = [call for chunk in out for call in (chunk.delta or {}).get("tool_calls", ())]
    assert {call["index"] for call in calls} == {3}
    assert "".join(call["function"]["arguments"] for call in calls) == filled(text, escaped=True)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
async def test_one_character_a_chunk(size: int) -> None:
    text = "To <EMAIL_ADDRESS_1>, and <EMAIL_ADDRESS_2>. <EMAIL_ADDRESS_1"
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    last = Chunk(0, {"content": pieces.pop()}, "length")
    _, out = await ask(a_guard(), user(ANN + BOB), *(Chunk(0, {"content": piece}) for piece in pieces), last)
    assert said(out) == f"To {ANN}, and {BOB}. <EMAIL_ADDRESS_1"
    assert out[-1].finish_reason == "length"


async def test_log_probabilities_go_where_the_text_is_another() -> None:
    chunks = [
        Chunk(0, {"content": piece}, logprobs={"content": []})
        for piece in ("a", "<EMAIL_ADDRESS_1>", "<E", "b")
    ]
    _, out = await ask(a_guard(), user(ANN), *chunks)
    assert [chunk.logprobs is None for chunk in out] == [False, True, True, True]
    assert said(out) == f"a{ANN}<Eb"


async def test_a_json_answer_stays_json() -> None:
    quoted = 'ann "the boss"'
    guards = guards_of(names=(KeywordScanner({quoted: "PERSON"}), {"action": "mask"}))
    call = user(quoted, params={"response_format": {"type": "json_object"}})
    _, out = await ask(guards, call, Chunk(0, {"content": '{"who": "<PERSON_1>"}'}, "stop"))
    assert json.loads(said(out)) == {"who": quoted}


async def test_a_revocation_points_into_the_text_as_the_caller_has_it() -> None:
    told = {"revoked": True, "from": 25, "guard": "g"}
    _, out = await ask(
        a_guard(),
        user(ANN),
        Chunk(0, {"content": "<EMAIL_ADDRESS_1> and then"}),
        Chunk(0, {}, "content_filter", revocation=told),
    )
    assert told["from"] == 25  # other callers may read the same chunks
    assert out[-1].revocation is not None
    assert said(out)[: out[-1].revocation["from"]] == f"{ANN} and the"


async def test_names_stay_names() -> None:
    call = a_call(messages=({"role": "user", "name": "anna-smith", "content": "hi"},))
    model, _ = await ask(guards_of(n=(KeywordScanner({"anna": "person"}), {"action": "mask"})), call)
    assert model.request.messages is not None
    assert model.request.messages[0]["name"] == "PERSON-smith"


async def test_figures() -> None:
    metrics = Metrics()
    stage = guard_input(a_guard(), background_scans_of(), metrics)
    async with aclosing(stage(Model(Chunk(0, {}, "stop")))(user(ANN, BOB))) as chunks:
        assert len([chunk async for chunk in chunks]) == 1
    page = metrics.render().decode()
    assert 'tollgate_guard_hits_total{action="mask",direction="input",guard="mail"} 2.0' in page
    assert 'tollgate_guard_scans_total{check="fast",guard="mail",outcome="found"} 2.0' in page


@pytest.mark.deadlines
async def test_a_long_text_is_judged_share_by_share_each_within_the_timeout() -> None:
    class Patient(SlowScanner):
        async def thorough(
            self, texts: Sequence[str], origin: Origin, call: Call | None = None
        ) -> list[Verdict]:
            await asyncio.sleep(0.06)
            return await super().thorough(texts, origin)

    scanner = Patient({"unsafe": "x"})
    guards = guards_of(slow=(scanner, {"action": "block", "timeout": "600ms"}))
    await ask(guards, a_call(prompt="words " * 12_000))
    assert len(scanner.asked) > 600 / 60, "together they took less than one may"
    assert max(sum(map(len, asked)) for asked in scanner.asked) <= 4_000
    with pytest.raises(errors.Blocked):
        await ask(guards, a_call(prompt="words " * 12_000 + "unsafe"))


async def test_many_short_texts_are_judged_at_once() -> None:
    scanner = SlowScanner({"unsafe": "x"})
    messages = tuple({"role": "user", "content": f"message {n}"} for n in range(50))
    await ask(guards_of(slow=(scanner, {"action": "block"})), a_call(messages=messages))
    assert [len(asked) for asked in scanner.asked] == [50]


async def test_what_is_refused_for_its_beginning_is_not_judged_to_its_end() -> None:
    scanner = SlowScanner({"unsafe": "x"})
    with pytest.raises(errors.Blocked):
        guards = guards_of(slow=(scanner, {"action": "block"}))
        await ask(guards, a_call(prompt="unsafe " + "words " * 12_000))
    assert len(scanner.asked) == 1


@pytest.mark.parametrize(
    "part",
    [
        {
            "type": "document",
            "title": ANN,
            "source": {"type": "text", "media_type": "text/plain", "data": ANN},
        },
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": ANN}]}},
        {"type": "tool_result", "content": [{"type": "text", "text": ANN}]},
        {"type": "search_result", "title": ANN, "content": [{"type": "text", "text": ANN}]},
    ],
    ids=["text", "content", "tool result", "search result"],
)
async def test_documents_and_results_within_a_message_are_read(part: Any) -> None:
    """As Anthropic's Messages API has them."""
    model, _ = await ask(a_guard(), a_call(messages=({"role": "user", "content": [part]},)))
    assert ANN not in json.dumps(model.request.messages)
    assert "<EMAIL_ADDRESS_1>" in json.dumps(model.request.messages)


async def test_what_is_nested_without_end_is_refused() -> None:
    deep: Any = ANN
    for _ in range(900):
        deep = {"a": deep}
    with pytest.raises(errors.BadRequest, match="levels"):
        await ask(a_guard(), a_call(params={"metadata": deep}))
    part: Any = {"type": "text", "text": ANN}
    for _ in range(900):
        part = {"type": "tool_result", "content": [part]}
    with pytest.raises(errors.BadRequest, match="levels"):
        await ask(a_guard(), a_call(messages=({"role": "user", "content": [part]},)))


class Picky(KeywordScanner):
    """Fails over an empty text, which ends what would otherwise look at it for ever."""

    def quick(self, text: str, origin: Origin) -> Verdict | None:
        assert text
        return super().quick(text, origin)


@pytest.mark.parametrize("action", ["mask", "block", "flag"])
@pytest.mark.parametrize("arguments", ["{}", "[]", '""', '{"": ""}'])
async def test_calls_without_arguments(arguments: str, action: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    asked = a_call(
        messages=(
            {"role": "user", "content": f"The time for {ANN}?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": ""},
        )
    )
    words = {"noon": "TIME"} if action == "block" else MAIL
    answer = Chunk(0, {"tool_calls": [{"index": 0, **call}]}, "tool_calls")
    model, _ = await ask(a_guard(Picky(words), action=action), asked, answer)
    assert model.request.messages is not None
    assert model.request.messages[1]["tool_calls"] == [call]
    assert (ANN in str(model.request.messages)) is (action != "mask")
    assert asked.receipt.notes["guard_input"]["guards"]["mail"].get("unscanned") is None


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a":' * 700 + f'"{ANN}"' + "}" * 700,
        "[" * 50_000 + f'"{ANN}"' + "]" * 50_000,
        f'{{"a": "\\ud800 {ANN}", "\\udfff": 1}}',
        f'{{"a": 1e999, "b": NaN, "c": "{ANN}"}}',
        f'{{"a": "{ANN}", "a": "b"}}',
        r'{"a": "ann\u0040example.org", "a": "b"}',
    ],
    ids=["deep", "deeper", "half a character", "no numbers", "twice", "twice, in escapes"],
)
async def test_arguments_that_are_odd_json_are_read_as_text(arguments: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    asked = a_call(messages=({"role": "assistant", "content": None, "tool_calls": [call]},))
    model, out = await ask(a_guard(), asked, Chunk(0, {"content": "<EMAIL_ADDRESS_1>"}, "stop"))
    assert model.request.messages is not None
    sent = model.request.messages[0]["tool_calls"][0]["function"]["arguments"]
    sent.encode()
    assert ANN not in sent
    assert "\\u0040" not in sent
    assert said(out) == ANN


async def test_the_input_of_a_call_that_is_nested_without_end_is_refused() -> None:
    deep: Any = ANN
    for _ in range(200):
        deep = {"a": deep}
    block = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": deep}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}
    turns = [{"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    body = {"model": "m", "max_tokens": 9, "messages": turns}
    own = body_to_request.read_request(json.dumps(body).encode())
    with pytest.raises(errors.BadRequest, match="levels"):
        await ask(a_guard(), a_call(messages=own.messages, native=own.native))


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": ANN, "tool_calls": [5, None, "x", {"function": 5}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"to": [ANN]}}}]},
        {"role": "user", "content": [{"type": "tool_result", "content": {"to": ANN}}]},
    ],
    ids=["calls that are none", "arguments as they are", "a result as it is"],
)
async def test_what_is_shaped_otherwise_is_read(message: Any) -> None:
    model, _ = await ask(a_guard(), a_call(messages=(message,)))
    sent = json.dumps(model.request.messages)
    assert ANN not in sent
    assert "<EMAIL_ADDRESS_1>" in sent
