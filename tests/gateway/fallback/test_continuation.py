"""However an answer is cut and however its pieces fall, what the caller reads is the whole answer, once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fallback.continuation import (
    AnswerDiverged,
    AnswerFilter,
    ContinuationFilter,
    OpeningFilter,
    ReplayFilter,
    SentAnswer,
    continuation_request,
    whole_usage,
)
from gateway.policy.schema import AnyBackend, Policy
from gateway.types import ChatRequest, Chunk, Usage

TEXT = st.text(alphabet="ab \n\té🙂", max_size=40)
ASKED = ({"role": "user", "content": "Hi"},)


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[str]:
    """``text`` in pieces, some of them empty."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def answer(parts: list[str], *, opening: int, with_finish: bool = True) -> Iterator[Chunk]:
    """The ways in which servers open: the role apart, with an empty text, with the first word, or not at all."""
    if opening == 0:
        yield Chunk(delta={"role": "assistant"})
    elif opening == 1:
        yield Chunk(delta={"role": "assistant", "content": ""})
    for i, part in enumerate(parts):
        last = with_finish and opening == 3 and i == len(parts) - 1
        role = {"role": "assistant"} if opening >= 2 and i == 0 else {}
        yield Chunk(delta={**role, "content": part}, finish_reason="stop" if last else None)
    if with_finish and opening != 3:
        yield Chunk(delta={}, finish_reason="stop")
    if with_finish:
        yield Chunk(usage=Usage(1, 2))


def through(filter: AnswerFilter, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """As the stage does it."""
    for chunk in chunks:
        yield from filter.feed(chunk)
        if filter.passthrough:
            break
    yield from chunks
    yield from filter.end()


def text(chunks: list[Chunk]) -> str:
    return "".join((chunk.delta or {}).get("content") or "" for chunk in chunks)


def backend(kind: str, *, continues: bool = True) -> AnyBackend:
    base = {"kind": kind, "base_url": "http://127.0.0.1:9", "continues": continues}
    targets = [{"backend": "x", "model": "m"}]
    rules = Policy.model_validate(
        {"version": 1, "backends": {"x": base}, "models": {"m": {"targets": targets}}}
    )
    return rules.backends["x"]


BACKENDS = {kind: backend(kind) for kind in ("engine", "openai", "anthropic")}


def begin(begun: str, data: st.DataObject) -> tuple[SentAnswer, list[Chunk]]:
    """What was sent of an answer that broke off after ``begun``."""
    sent = SentAnswer()
    first = answer(data.draw(pieces(begun)), opening=data.draw(st.integers(0, 3)), with_finish=False)
    heard = list(through(OpeningFilter(), first))
    for chunk in heard:
        sent.add(chunk)
    return sent, heard


@given(TEXT, st.data(), st.sampled_from(sorted(BACKENDS)))
def test_a_continuation_makes_the_answer_whole(whole: str, data: st.DataObject, kind: str) -> None:
    at = data.draw(st.integers(0, len(whole)))
    sent, heard = begin(whole[:at], data)
    assert sent.text == whole[:at]
    asked = continuation_request(ChatRequest("m", messages=ASKED), sent, BACKENDS[kind])
    if asked is None:
        assert not (whole[:at].rstrip() if kind == "anthropic" else whole[:at])
        return
    request, space = asked
    assert request.continues
    assert request.messages is not None
    shown = request.messages[-1]["content"]
    assert shown + space == whole[:at]
    if kind == "anthropic":
        assert shown == shown.rstrip()
    rest = answer(data.draw(pieces(whole[len(shown) :])), opening=data.draw(st.integers(0, 3)))
    more = list(through(ContinuationFilter(space), rest))
    assert text(heard) + text(more) == whole
    check_the_end(more)


@given(TEXT, st.data())
def test_a_fresh_answer_makes_the_answer_whole(whole: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(whole)))
    sent, heard = begin(whole[:at], data)
    restart = answer(data.draw(pieces(whole)), opening=data.draw(st.integers(0, 3)))
    more = list(through(ReplayFilter(sent.text), restart))
    assert text(heard) + text(more) == whole
    check_the_end(more)


def check_the_end(chunks: list[Chunk]) -> None:
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
    assert [chunk.usage for chunk in chunks if chunk.usage] == [Usage(1, 2)]
    assert not any("role" in (chunk.delta or {}) for chunk in chunks)


@given(TEXT, TEXT, st.data())
def test_another_answer_is_never_spliced(begun: str, other: str, data: st.DataObject) -> None:
    restart = answer(data.draw(pieces(other)), opening=data.draw(st.integers(0, 3)))
    heard: list[Chunk] = []
    try:
        heard.extend(through(ReplayFilter(begun), restart))
    except AnswerDiverged:
        assert not other.startswith(begun)
        assert text(heard) == ""
        assert not any(chunk.finish_reason for chunk in heard)
    else:
        assert other == begun + text(heard)


@given(TEXT, TEXT, st.data())
def test_after_the_end_only_the_same_answer_will_do(ended: str, other: str, data: st.DataObject) -> None:
    other = data.draw(st.sampled_from([ended, other]))
    restart = answer(data.draw(pieces(other)), opening=data.draw(st.integers(0, 3)))
    try:
        heard = list(through(ReplayFilter(ended, finished=True), restart))
    except AnswerDiverged:
        assert other != ended
    else:
        assert other == ended
        assert [(chunk.delta, chunk.finish_reason, chunk.usage) for chunk in heard] == [
            (None, None, Usage(1, 2))
        ]


def test_a_continuation_without_the_space_that_was_sent_goes_on_all_the_same() -> None:
    [first, *_] = through(ContinuationFilter("\n "), answer(["and"], opening=0))
    assert first.delta == {"content": "and"}
    [first, *_] = through(ContinuationFilter("\n "), answer(["\n", "and"], opening=0))
    assert first.delta == {"content": "and"}


def test_thoughts_of_a_fresh_answer_are_not_for_one_who_has_half_of_it() -> None:
    chunks = iter([Chunk(delta={"reasoning_content": "hm"}), *answer(["abc"], opening=1)])
    assert text(list(through(ReplayFilter("ab"), chunks))) == "c"


@pytest.mark.parametrize(
    "chunk",
    [
        Chunk(delta={"tool_calls": [{"index": 0}]}),
        Chunk(delta={"refusal": "no"}),
        Chunk(delta={"content": "a"}, logprobs={"content": []}),
        Chunk(delta={"content": [{"type": "text"}]}),
        Chunk(delta={"content": "a", "reasoning_content": "b"}),
    ],
)
def test_what_is_not_plain_text(chunk: Chunk) -> None:
    sent = SentAnswer()
    sent.add(chunk)
    assert not sent.plain
    with pytest.raises(AnswerDiverged):
        list(through(ReplayFilter("b"), iter([chunk, Chunk(delta={}, finish_reason="stop")])))


def having(*texts: str) -> SentAnswer:
    sent = SentAnswer()
    for piece in texts:
        sent.add(Chunk(delta={"content": piece}))
    return sent


def test_caps_are_lowered_by_what_was_used() -> None:
    params = {"max_tokens": 9, "max_completion_tokens": 5, "temperature": 0}
    asked = continuation_request(
        ChatRequest("m", messages=ASKED, params=params), having("a", "b"), BACKENDS["openai"]
    )
    assert asked is not None
    assert asked[0].params == {"max_tokens": 7, "max_completion_tokens": 3, "temperature": 0}
    assert params["max_tokens"] == 9


def test_a_raw_prompt_is_made_longer() -> None:
    asked = continuation_request(ChatRequest("m", prompt="Once"), having(" upon"), BACKENDS["engine"])
    assert asked is not None
    assert (asked[0].prompt, asked[0].messages, asked[0].continues) == ("Once upon", None, True)


@pytest.mark.parametrize(
    "request_",
    [
        ChatRequest("m", messages=ASKED, params={"max_tokens": 2}),
        ChatRequest("m", messages=ASKED, params={"response_format": {"type": "json_object"}}),
        ChatRequest("m", messages=(*ASKED, {"role": "assistant", "content": "So"})),
        ChatRequest("m", prompt=[1, 2, 3]),
        ChatRequest("m", prompt=["Once"]),
        ChatRequest("m", prompt="Once", params={"echo": True}),
        ChatRequest("m", prompt="Once", params={"suffix": "the end"}),
    ],
    ids=["cap-reached", "grammar", "prefilled-before", "token-ids", "list", "echo", "infill"],
)
def test_what_must_be_asked_afresh(request_: ChatRequest) -> None:
    assert continuation_request(request_, having("a", "b"), BACKENDS["openai"]) is None


def test_a_backend_that_does_not_continue_is_not_asked_to() -> None:
    assert (
        continuation_request(
            ChatRequest("m", messages=ASKED), having("a"), backend("openai", continues=False)
        )
        is None
    )


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_usage_is_counted_once(prompt: int, completion: int, cached: int, before: int) -> None:
    usage = whole_usage(Usage(prompt, completion, min(cached, prompt)), before)
    assert usage.prompt + usage.completion == prompt + completion
    assert usage.prompt >= usage.cached >= 0
    if before <= prompt:
        assert usage.completion == completion + before
