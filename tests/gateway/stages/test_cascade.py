from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.backends.fake import FakeBackend
from gateway.backends.openai import OpenAIBackend
from gateway.backends.transport import OutgoingTransport
from gateway.cascade.cascade import MAX_BYTES
from gateway.policy import schema
from gateway.stages.cascade import cascade
from gateway.types import Call, Candidate, ChatRequest, Chunk, Chunks, Handler, Purpose, UpstreamUsage, Usage
from tests.fakes import (
    DONE,
    Action,
    FakeUpstream,
    a_call,
    completion,
    delta,
    policy,
    reply,
    sse,
    stream,
    usage_event,
)

pytestmark = pytest.mark.anyio

Answer = list[Chunk | BaseException]


class Fixed:
    """A judge of one opinion."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.asked = 0

    async def complexity(self, request: ChatRequest) -> float:
        self.asked += 1
        return self.value


def a_cascade(*steps: dict[str, Any], **request: Any) -> Call:
    """A call to ``auto``; without steps it is: small below 0.4, medium below 0.8, large."""
    steps = steps or (
        {"model": "small", "when": {"complexity": {"below": 0.4}}},
        {"model": "medium", "when": {"complexity": {"below": 0.8}}},
        {"model": "large"},
    )
    names = {step["model"] for step in steps} | {"small", "medium", "large"}
    models = {name: {"targets": [{"backend": "up", "model": f"{name}-upstream"}]} for name in names}
    rules = policy(models={**models, "auto": {"cascade": list(steps)}})
    return replace(a_call(policy_=rules, **request), model="auto")


class Models:
    """What lies behind the stage: each model's answer, and a record of who was asked and closed."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.becomes_answer = answers
        self.asked: list[str] = []
        self.requests: list[ChatRequest] = []
        self.open = 0

    async def __call__(self, call: Call) -> Chunks:
        self.asked.append(call.model)
        self.requests.append(call.request)
        self.open += 1
        try:
            target = call.policy.models[call.model].targets[0]
            call.candidate = Candidate(call.model, target, schema.Timeouts())
            for step in self.becomes_answer[call.model]:
                if isinstance(step, BaseException):
                    raise step
                yield step
        finally:
            self.open -= 1


def text(*words: str, finish: str = "stop", logprobs: list[float] | None = None) -> Answer:
    notes = logprobs or []
    chunks = [
        Chunk(
            delta={"content": word},
            logprobs={"content": [{"token": word, "logprob": notes[i]}]} if i < len(notes) else None,
        )
        for i, word in enumerate(words)
    ]
    return [*chunks, Chunk(delta={}, finish_reason=finish, usage=Usage(5, len(words)))]


async def collect(chunks: Chunks) -> list[Chunk]:
    async with aclosing(chunks):
        return [chunk async for chunk in chunks]


def joined(chunks: list[Chunk]) -> str:
    return "".join((chunk.delta or {}).get("content", "") for chunk in chunks)


def steps_of(call: Call) -> list[tuple[str, str]]:
    return [(step["model"], step["verdict"]) for step in call.receipt.notes["cascade"]["steps"]]


@pytest.mark.parametrize(
    ("complexity", "model"),
    [(0.0, "small"), (0.39, "small"), (0.4, "medium"), (0.79, "medium"), (1.0, "large")],
)
async def test_the_complexity_decides_where_to_start(complexity: float, model: str) -> None:
    models = Models({name: text(name) for name in ("small", "medium", "large")})
    call = a_cascade()
    chunks = await collect(cascade(Fixed(complexity))(models)(call))
    assert joined(chunks) == model
    assert models.asked == [model]
    assert chunks[-1].usage == Usage(5, 1)
    assert call.model == "auto"
    assert call.candidate is not None
    assert call.candidate.model == model
    note = call.receipt.notes["cascade"]
    assert note["complexity"] == complexity
    assert note["answered"] == model


async def test_complexity_is_not_computed_where_nothing_depends_on_it() -> None:
    judge = Fixed(1.0)
    call = a_cascade({"model": "small"}, {"model": "large"})
    assert joined(await collect(cascade(judge)(Models({"small": text("a")}))(call))) == "a"
    assert judge.asked == 0
    assert call.receipt.notes["cascade"]["complexity"] is None


async def test_a_model_without_a_cascade_gets_the_next_handler_itself() -> None:
    models = Models({"small": text("a")})
    call = replace(a_cascade(), model="small")
    chunks = cascade(Fixed(0))(models)(call)
    assert chunks.__qualname__ == "Models.__call__"
    assert joined(await collect(chunks)) == "a"
    assert "cascade" not in call.receipt.notes


@pytest.mark.parametrize(
    ("first", "verdict"),
    [
        (text("I'm sorry, but I can't ", "help with that."), "refusal"),
        (text("Well", finish="content_filter"), "refusal"),
        ([Chunk(delta={"refusal": "No."}, finish_reason="stop")], "refusal"),
        ([errors.UpstreamFailed("broken")], "failed"),
        ([Chunk(delta={"content": "half an ans"}), errors.UpstreamTimeout("silent")], "failed"),
        ([errors.UpstreamUnavailable("away")], "failed"),
        ([errors.Overloaded("full")], "failed"),
        ([errors.UnknownModel("disabled")], "failed"),
        ([errors.ContextTooLong("long", status=400, type=None, param=None, code=None)], "failed"),
        ([errors.RateLimited("slower")], "failed"),
        ([errors.Forbidden("stays here", code="local_only")], "failed"),
        ([errors.Rejected("whom?", status=404, type=None, param=None, code="model_not_found")], "failed"),
        (
            [errors.Rejected("what?", status=400, type=None, param=None, code="unsupported_parameter")],
            "failed",
        ),
    ],
    ids=[
        *("phrase", "filter", "refusal", "failed", "cut", "unavailable", "overloaded", "disabled", "context"),
        *("rate", "local", "unknown", "parameter"),
    ],
)
async def test_an_answer_that_will_not_do_is_replaced_by_the_next(first: Answer, verdict: str) -> None:
    models = Models({"small": first, "medium": text("good"), "large": text("better")})
    call = a_cascade()
    assert joined(await collect(cascade(Fixed(0))(models)(call))) == "good"
    assert steps_of(call) == [("small", verdict), ("medium", "good")]
    assert call.candidate is not None
    assert call.candidate.model == "medium"
    assert models.open == 0


@pytest.mark.parametrize(
    "error",
    [
        errors.Rejected("bad", status=422, type=None, param=None, code=None),
        errors.ContentPolicy("no", status=400, type=None, param=None, code="content_policy"),
        errors.BadRequest("bad"),
        errors.Forbidden("not yours"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_no_model_could_answer_is_passed_on(error: errors.GatewayError) -> None:
    models = Models({"small": [error]})
    call = a_cascade()
    with pytest.raises(type(error)) as caught:
        await collect(cascade(Fixed(0))(models)(call))
    assert caught.value is error
    assert models.asked == ["small"]
    assert call.receipt.notes["cascade"]["answered"] is None
    assert call.candidate is not None
    assert call.candidate.model == "small"


async def test_the_last_answer_is_passed_on_as_it_comes_whatever_it_says() -> None:
    models = Models({"large": text("I can't help ", "with that.")})
    call = a_cascade()
    async with aclosing(cascade(Fixed(1))(models)(call)) as chunks:
        assert (await anext(chunks)).delta == {"content": "I can't help "}
        assert models.open == 1
        assert call.candidate is not None
    assert models.open == 0


async def test_the_last_error_is_the_callers() -> None:
    models = Models({"small": [errors.UpstreamFailed("1")], "large": [errors.UpstreamTimeout("2")]})
    call = a_cascade({"model": "small"}, {"model": "large"})
    with pytest.raises(errors.UpstreamTimeout, match="2"):
        await collect(cascade(Fixed(0))(models)(call))
    assert call.candidate is not None
    assert call.candidate.model == "large"


@pytest.mark.parametrize(
    "error",
    [errors.UpstreamFailed("2"), errors.RateLimited("2"), errors.Forbidden("2", code="local_only")],
    ids=lambda error: type(error).__name__,
)
async def test_a_weak_answer_is_better_than_none(error: errors.GatewayError) -> None:
    weak = text("I ", "guess.", logprobs=[-2.0, -2.0])
    models = Models({"small": weak, "large": [Chunk(comment="queued"), error]})
    call = unsure()
    assert joined(await collect(cascade(Fixed(0))(models)(call))) == "I guess."
    assert steps_of(call) == [("small", "low_logprob"), ("large", "failed")]
    assert call.receipt.notes["cascade"]["answered"] == "small"
    assert call.candidate is not None
    assert call.candidate.model == "small"


async def test_a_refusal_is_not() -> None:
    models = Models({"small": text("I can't help ", "with that."), "large": [errors.UpstreamFailed("2")]})
    call = a_cascade({"model": "small"}, {"model": "large"})
    with pytest.raises(errors.UpstreamFailed, match="2"):
        await collect(cascade(Fixed(0))(models)(call))
    assert steps_of(call)[0] == ("small", "refusal")
    assert call.receipt.notes["cascade"]["answered"] is None


@pytest.mark.parametrize("name", ["small", "large"])
async def test_the_receipt_names_the_fallback_that_answered(name: str) -> None:
    """As ``x-tollgate-model`` does."""

    async def replaced(call: Call) -> Chunks:
        call.candidate = Candidate("spare", call.policy.models[call.model].targets[0], schema.Timeouts())
        for chunk in text("Hello"):
            assert isinstance(chunk, Chunk)
            yield chunk

    call = a_cascade({"model": "small", "when": {"complexity": {"below": 0.5}}}, {"model": "large"})
    await collect(cascade(Fixed(0 if name == "small" else 1))(replaced)(call))
    assert [step for step, _ in steps_of(call)] == [name]
    assert call.receipt.notes["cascade"]["answered"] == "spare"


async def test_nobody_answered_where_the_last_step_fails() -> None:
    call = a_cascade({"model": "small"}, {"model": "large"})
    models = Models({"small": [errors.UpstreamFailed("1")], "large": [errors.UpstreamTimeout("2")]})
    with pytest.raises(errors.UpstreamTimeout):
        await collect(cascade(Fixed(0))(models)(call))
    assert call.receipt.notes["cascade"]["answered"] is None


async def test_half_an_answer_of_the_last_model_is_not_mixed_with_a_weak_one() -> None:
    weak = text("I guess.", logprobs=[-2.0])
    models = Models({"small": weak, "large": [Chunk(delta={"content": "half"}), errors.UpstreamFailed("2")]})
    with pytest.raises(errors.UpstreamFailed):
        await collect(cascade(Fixed(0))(models)(unsure()))


async def test_an_answer_without_the_form_asked_for_is_no_answer() -> None:
    models = Models({"small": text("no json"), "large": [errors.UpstreamFailed("2")]})
    asked = {"response_format": {"type": "json_object"}}
    call = a_cascade({"model": "small"}, {"model": "large"}, params=asked)
    with pytest.raises(errors.UpstreamFailed):
        await collect(cascade(Fixed(0))(models)(call))


def unsure(bar: float = -0.5, **request: Any) -> Call:
    small = {"model": "small", "escalate": {"mean_logprob_below": bar}}
    return a_cascade(small, {"model": "large"}, **request)


@pytest.mark.parametrize(
    ("logprobs", "expected", "mean"),
    [([-0.1, -0.8], "a b", -0.45), ([-0.1, -1.1], "large", -0.6), (None, "a b", None)],
    ids=["sure", "unsure", "not-told"],
)
async def test_an_unsure_answer_escalates(
    logprobs: list[float] | None, expected: str, mean: float | None
) -> None:
    models = Models({"small": text("a ", "b", logprobs=logprobs), "large": text("large")})
    call = unsure()
    chunks = await collect(cascade(Fixed(0))(models)(call))
    assert joined(chunks) == expected
    assert call.receipt.notes["cascade"]["steps"][0]["mean_logprob"] == mean
    assert models.requests[0].params["logprobs"] is True
    assert all(chunk.logprobs is None for chunk in chunks)
    assert "logprobs" not in call.request.params
    assert all("logprobs" not in request.params for request in models.requests[1:])


async def test_the_callers_own_logprobs_stay() -> None:
    models = Models({"small": text("a", logprobs=[-0.1])})
    call = unsure(params={"logprobs": True, "top_logprobs": 2})
    chunks = await collect(cascade(Fixed(0))(models)(call))
    assert chunks[0].logprobs is not None
    assert models.requests[0].params == {"logprobs": True, "top_logprobs": 2}


async def test_completions_are_asked_for_logprobs_in_their_own_way() -> None:
    answer: Answer = [
        Chunk(delta={"content": "a b"}, logprobs={"tokens": ["a", "b"], "token_logprobs": [None, -3.0]}),
        Chunk(delta={}, finish_reason="stop"),
    ]
    models = Models({"small": answer, "large": text("large")})
    assert joined(await collect(cascade(Fixed(0))(models)(unsure(prompt="Once")))) == "large"
    assert models.requests[0].params["logprobs"] == 1


JSON = {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize(
    ("said", "params", "answered"),
    [
        (text('{"a":', "1}"), JSON, "small"),
        (text('{"a":'), JSON, "large"),
        (text("[1]"), JSON, "large"),
        (text('{"a":', finish="length"), JSON, "large"),
        (text('{"a":', finish="length"), {**JSON, "max_tokens": 1}, "small"),
        (text("plain"), {"response_format": {"type": "text"}}, "small"),
    ],
    ids=["sound", "cut", "no-object", "too-long", "capped", "text"],
)
async def test_json_that_was_asked_for_must_be_json(
    said: Answer, params: dict[str, Any], answered: str
) -> None:
    models = Models({"small": said, "large": text("large")})
    call = a_cascade({"model": "small"}, {"model": "large"}, params=params)
    await collect(cascade(Fixed(0))(models)(call))
    assert call.receipt.notes["cascade"]["answered"] == answered


async def test_nothing_of_an_answer_is_shown_before_it_is_judged_but_comments_pass() -> None:
    seen: list[str] = []

    async def behind(call: Call) -> Chunks:
        for chunk in (Chunk(comment="position 1"), *text("a ", "b")):
            assert isinstance(chunk, Chunk)
            seen.append("sent")
            yield chunk
        seen.append("ended")

    async with aclosing(cascade(Fixed(0))(behind)(a_cascade())) as chunks:
        assert (await anext(chunks)).comment == "position 1"
        assert seen == ["sent"]
        assert joined([await anext(chunks)]) == "a "
        assert seen == ["sent"] * 4 + ["ended"]
        assert joined([chunk async for chunk in chunks]) == "b"


async def test_a_caller_who_is_cancelled_while_an_answer_is_held_closes_it() -> None:
    reached, closed = asyncio.Event(), asyncio.Event()

    async def behind(call: Call) -> Chunks:
        try:
            yield Chunk(delta={"content": "held"})
            reached.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    call = a_cascade()
    task = asyncio.create_task(collect(cascade(Fixed(0))(behind)(call)))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()
    assert call.receipt.notes["cascade"]["answered"] is None


async def test_what_each_step_spent_is_on_the_callers_bill() -> None:
    spending = UpstreamUsage(schema.Target(backend="up", model="x"), Usage(5, 7))

    async def behind(call: Call) -> Chunks:
        call.upstream_usage.append(replace(spending, purpose=call.purpose, model=call.model))
        for chunk in text("I cannot help with that." if call.model == "small" else "Gladly."):
            assert isinstance(chunk, Chunk)
            yield chunk

    call = a_cascade()
    assert joined(await collect(cascade(Fixed(0))(behind)(call))) == "Gladly."
    assert [(one.purpose, one.model) for one in call.upstream_usage] == [
        ("step", "small"),
        ("answer", "medium"),
    ]


async def test_a_discarded_answer_that_is_used_after_all_is_the_answer() -> None:
    async def behind(call: Call) -> Chunks:
        failed = call.model == "large"
        purpose: Purpose = "attempt" if failed else call.purpose
        call.upstream_usage.append(
            UpstreamUsage(schema.Target(backend="up", model="x"), Usage(5, 7), purpose=purpose)
        )
        if failed:
            raise errors.UpstreamTimeout("silent")
        for chunk in text("I guess.", logprobs=[-2.0]):
            assert isinstance(chunk, Chunk)
            yield chunk

    unsure = {"escalate": {"mean_logprob_below": -0.5}}
    call = a_cascade({"model": "small", **unsure}, {"model": "medium", **unsure}, {"model": "large"})
    assert joined(await collect(cascade(Fixed(0))(behind)(call))) == "I guess."
    assert [one.purpose for one in call.upstream_usage] == ["step", "answer", "attempt"]


async def test_an_answer_too_long_to_hold_is_let_go_and_goes_on_as_it_comes() -> None:
    big = "x" * (MAX_BYTES // 2)
    models = Models({"small": text(big, big, "y", "z", logprobs=[-9.0] * 4)})
    call = unsure()
    async with aclosing(cascade(Fixed(0))(models)(call)) as chunks:
        first = await anext(chunks)
        assert models.open == 1
        rest = [chunk async for chunk in chunks]
    assert joined([first, *rest]) == big + big + "yz"
    assert all(chunk.logprobs is None for chunk in (first, *rest))
    assert steps_of(call) == [("small", "too_long")]


SAMPLES: dict[str, Callable[[str], Answer]] = {
    "good": lambda name: text(f"{name} ", f"{name} ", f"{name}"),
    "comments": lambda name: [Chunk(comment="waiting"), *text(name, name), Chunk(comment="late")],
    "refuses": lambda name: text("I cannot help with that, says ", name),
    "fails": lambda name: [errors.UpstreamFailed("broken")],
    "cut": lambda name: [Chunk(delta={"content": name}), errors.UpstreamFailed("cut")],
    "rejects": lambda name: [errors.BadRequest("no")],
    "huge": lambda name: text(name + "x" * MAX_BYTES, name),
}
kinds = st.sampled_from(sorted(SAMPLES))


@given(kinds=st.tuples(kinds, kinds, kinds), complexity=st.floats(0, 1), leave=st.integers(0, 8))
async def test_one_answer_and_never_a_mix_whenever_the_caller_leaves(
    kinds: tuple[str, str, str], complexity: float, leave: int
) -> None:
    names = ("small", "medium", "large")
    answers = {name: SAMPLES[kind](name) for name, kind in zip(names, kinds, strict=True)}
    models = Models(answers)
    call = a_cascade()
    shown: list[Chunk] = []
    error: BaseException | None = None
    try:
        async with aclosing(cascade(Fixed(complexity))(models)(call)) as chunks:
            async for chunk in chunks:
                shown.append(chunk)
                if len(shown) == leave:
                    break
            else:
                leave = 0
    except errors.GatewayError as raised:
        error = raised
        leave = 0
    assert models.open == 0
    said = [chunk for chunk in shown if chunk.comment is None]
    if said:
        answered = call.receipt.notes["cascade"]["answered"]
        whole = [c for c in answers[answered] if isinstance(c, Chunk) and c.comment is None]
        assert all(a is b for a, b in zip(said, whole, strict=False))
        assert leave or len(said) == len(whole)
        assert models.asked[-1] == answered
        assert call.candidate is not None
        assert call.candidate.model == answered
    elif not leave:
        assert error is not None


@asynccontextmanager
async def over(upstream: FakeUpstream) -> AsyncIterator[Handler]:
    """Every step's model is answered by ``upstream``, over a real connection."""
    url = upstream.base_url
    backend = OpenAIBackend("up", base_url=url, probe_url=url + "/models", transport=OutgoingTransport())

    def handle(call: Call) -> Chunks:
        target = call.policy.models[call.model].targets[0]
        call.candidate = Candidate(call.model, target, schema.Timeouts())
        return backend.stream(call, target)

    try:
        yield handle
    finally:
        await backend.aclose()


def with_logprob(value: float) -> bytes:
    event = delta("word ")
    event["choices"][0]["logprobs"] = {"content": [{"token": "word", "logprob": value}], "refusal": None}
    return sse(event)


@pytest.mark.parametrize(("logprob", "answered"), [(-0.2, "small"), (-2.0, "large")])
async def test_logprobs_over_the_wire(upstream: FakeUpstream, logprob: float, answered: str) -> None:
    sound = [sse(delta(finish="stop")), sse(usage_event()), DONE]
    upstream.scripts = [
        stream(with_logprob(logprob), with_logprob(logprob), *sound),
        stream(sse(delta("large")), *sound),
    ]
    call = unsure(-1.0)
    async with over(upstream) as handler:
        chunks = await collect(cascade(Fixed(0))(handler)(call))
    assert joined(chunks) == {"small": "word word ", "large": "large"}[answered]
    assert upstream.requests[0].json()["logprobs"] is True
    assert upstream.requests[0].json()["model"] == "small-upstream"
    assert call.receipt.notes["cascade"]["steps"][0]["mean_logprob"] == logprob
    assert chunks[-1].usage is not None


@pytest.mark.parametrize("param", ["logprobs", None])
async def test_a_server_that_rejects_logprobs_is_asked_without(
    upstream: FakeUpstream, param: str | None
) -> None:
    message = "'logprobs' is not supported."
    error = {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": None}}
    upstream.scripts = [reply(error, status=400), stream(sse(delta("fine")), sse(delta(finish="stop")), DONE)]
    call = unsure()
    async with over(upstream) as handler:
        assert joined(await collect(cascade(Fixed(0))(handler)(call))) == "fine"
    assert "logprobs" not in upstream.requests[1].json()
    assert steps_of(call) == [("small", "good")]
    assert call.reply_headers == {}, "what the caller did not ask for was not ignored"


async def test_the_callers_own_logprobs_are_the_callers_own_mistake(upstream: FakeUpstream) -> None:
    error = {"error": {"message": "no logprobs", "type": "invalid_request_error", "param": "logprobs"}}
    upstream.scripts = [reply(error, status=400)]
    async with over(upstream) as handler:
        with pytest.raises(errors.Rejected, match="no logprobs"):
            await collect(cascade(Fixed(0))(handler)(unsure(params={"logprobs": True})))
    assert len(upstream.requests) == 1


async def test_a_whole_answer_over_the_wire(upstream: FakeUpstream) -> None:
    upstream.scripts = [reply(completion("Sorry, I can't help with that.")), reply(completion("Of course."))]
    call = a_cascade({"model": "small"}, {"model": "large"}, stream=False)
    async with over(upstream) as handler:
        assert joined(await collect(cascade(Fixed(0))(handler)(call))) == "Of course."


async def test_a_caller_who_leaves_stops_the_upstream(upstream: FakeUpstream) -> None:
    sound = stream(sse(delta("large")), Action.HANG)
    upstream.scripts = [sound]
    async with over(upstream) as handler:
        async with aclosing(cascade(Fixed(1))(handler)(a_cascade())) as chunks:
            await anext(chunks)
        await upstream.requests[0].left.wait()


async def test_a_scripted_backend_tells_no_logprobs_and_is_believed() -> None:
    config = schema.FakeBackend.model_validate({"kind": "fake", "script": [{"reply": "one two"}]})
    backend = FakeBackend("up", config)

    def handle(call: Call) -> Chunks:
        return backend.stream(call, call.policy.models[call.model].targets[0])

    call = unsure()
    assert joined(await collect(cascade(Fixed(0))(handle)(call))) == "one two"
    assert steps_of(call) == [("small", "good")]
