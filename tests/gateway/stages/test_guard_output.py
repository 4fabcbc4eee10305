from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Sequence
from contextlib import aclosing
from contextvars import Context, ContextVar
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import errors
from gateway.findings import Finding
from gateway.guards.guards import Guards
from gateway.guards.scanners.scanner import Origin, Verdict
from gateway.guards.streaming.streams import guarded
from gateway.observe.metrics import Metrics
from gateway.stages.guard_output import guard_output
from gateway.types import Call, Chunk, Chunks, Usage
from tests.examples import examples
from tests.fakes import a_call
from tests.scanners import (
    BlockScanner,
    KeywordScanner,
    SlowScanner,
    background_scans_of,
    guards_of,
    unavailable,
)

pytestmark = pytest.mark.anyio

SECRET = "h4x0r-key"
WORDS = {SECRET: "key", "cat": "animal", "dog house": "animal"}

Step = Chunk | BaseException | float | asyncio.Event


class Model:
    """Yields, raises, sleeps and waits as listed; knows how far it got and whether it was closed.

    ``relayed``: once all wait for it, it hands pieces of text over at once, as a server's connection does.
    """

    def __init__(self, *steps: Step, relayed: bool = False) -> None:
        self.steps = steps
        self.relayed = relayed
        self.told = 0
        self.taken = 0
        self.open = 0

    def __call__(self, call: Call) -> Chunks:
        chunks = self.tell(call)
        if call.sink is not None:
            call.sink.source = chunks
        return chunks

    async def takes(self, call: Call, chunk: Chunk) -> bool:
        if chunk.finish_reason is not None or (chunk.delta or {}).keys() != {"content"}:
            return False
        for _ in range(5):
            await asyncio.sleep(0)
        sink = call.sink
        if sink is None or not sink.is_open:
            return False
        return Context().run(
            sink.pass_on, chunk, [chunk.delta["content"]]
        )  # a connection knows nothing of who asks

    async def tell(self, call: Call) -> Chunks:
        self.open += 1
        try:
            for step in self.steps:
                if isinstance(step, Chunk):
                    self.told += 1
                    if self.relayed and await self.takes(call, step):
                        self.taken += 1
                    else:
                        yield step
                elif isinstance(step, BaseException):
                    raise step
                elif isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    await asyncio.sleep(step)
        finally:
            self.open -= 1


def word(text: str, index: int = 0, **more: Any) -> Chunk:
    return Chunk(index, {"content": text}, **more)


def end(index: int = 0, usage: Usage | None = None) -> Chunk:
    return Chunk(index, {}, "stop", usage=usage)


def letters(text: str, index: int = 0, *, pause: bool = False) -> list[Step]:
    """One character a chunk; with ``pause`` each is an arrival of its own."""
    steps: list[Step] = []
    for letter in text:
        steps.append(word(letter, index))
        if pause:
            steps.append(0.0)
    return steps


def text_of(chunks: list[Chunk], index: int = 0, name: str = "content") -> str:
    return "".join((c.delta or {}).get(name) or "" for c in chunks if c.index == index)


async def answer(guards: Guards, model: Model, call: Call | None = None) -> list[Chunk]:
    """As its client has it, who now and then can take no more at once."""
    flags = background_scans_of()
    handle = guard_output(guards, flags, Metrics())(model)
    call = call or a_call()
    out: list[Chunk] = []
    ready = itertools.cycle([True, True, False])

    class Client:
        source: object = None
        looking: ClassVar[list[Callable[[Chunk, Sequence[str]], object]]] = []
        is_open = False

        async def caught_up(self) -> None: ...

        def pass_on(self, like: Chunk, texts: Sequence[str]) -> bool:
            if not next(ready):
                return False
            out.extend(like.with_text(text) for text in texts)
            return True

    client = Client()
    call.sink = client if model.relayed else None
    async with aclosing(handle(call)) as chunks:
        assert call.sink is None or client.source is chunks
        async for chunk in chunks:
            out.append(chunk)
            client.is_open = True
    await flags.idle()
    assert model.open == 0
    return out


def a_guard(scanner: Any = None, **config: Any) -> Guards:
    rules = {"on": ["output"], "action": "block", "window": 16, "interval": 4, **config}
    return guards_of(words=(scanner or KeywordScanner(WORDS), rules))


def cut_of(chunks: list[Chunk]) -> Any:
    assert chunks[-1].revocation is not None
    assert chunks[-1].finish_reason == "content_filter"
    return chunks[-1].revocation


MODES = ["hold", "windowed", "optimistic"]


async def test_without_guards_there_is_no_layer() -> None:
    model = Model(word("hi"), end())
    call = a_call()
    handle = guard_output(guards_of(), background_scans_of(), Metrics())(lambda call: "the very stream")  # type: ignore[arg-type,return-value]
    assert handle(call) == "the very stream"
    other = a_guard(tenants=["other"])
    assert await answer(other, model) == [word("hi"), end()]
    assert "guard_output" not in call.receipt.notes


@pytest.mark.parametrize("mode", MODES)
async def test_a_clean_answer_passes_whole(mode: str) -> None:
    call = a_call()
    told = "All is well in the garden, and nothing is to be said against it. " * 3
    model = Model(
        Chunk(0, {"role": "assistant", "content": ""}), *letters(told), end(), Chunk(usage=Usage(3, 4))
    )
    out = await answer(a_guard(stream=mode), model, call)
    assert text_of(out) == told
    assert [c.finish_reason for c in out if c.delta is not None][-1] == "stop"
    assert sum(c.finish_reason is not None for c in out) == 1
    assert [c.usage for c in out if c.usage] == [Usage(3, 4)]
    assert not out[-1].more
    note = call.receipt.notes["guard_output"]
    assert note["scanned"] is True
    assert note["guards"]["words"]["action"] == "pass"


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("way", ["together", "one by one", "relayed"])
@pytest.mark.parametrize("mode", MODES)
async def test_leak_bound_wherever_the_unsafe_text_begins(mode: str, way: str, n: int) -> None:
    for place in range(48):
        await leak(mode, way != "together", place, n, relayed=way == "relayed")


async def leak(mode: str, pause: bool, place: int, n: int, *, relayed: bool) -> None:
    before = ("abcdefghij" * 5)[:place]
    unsafe = before + SECRET + "z" * 60
    steps: list[Step] = []
    if n == 2:
        for good, bad in zip(letters("w" * len(unsafe), 0), letters(unsafe, 1), strict=True):
            steps += [good, bad, *([0.0] if pause else [])]
    else:
        steps = letters(unsafe, pause=pause)
    model = Model(*steps, *(end(i) for i in range(n)), relayed=relayed)
    call = a_call(n=n)
    out = await answer(a_guard(stream=mode), model, call)
    seen = text_of(out, n - 1)
    told = cut_of(out)
    assert unsafe.startswith(seen)
    assert told["from"] == place
    assert told["guard"] == "words"
    assert told["reason"] == "content_filter"
    assert told["request_id"] == call.request_id
    assert {c.index for c in out if c.finish_reason == "content_filter"} == set(range(n))
    assert out[-1].index == n - 1
    if mode == "hold":
        assert seen == ""
    elif mode == "windowed":
        assert len(seen) <= place
    else:
        assert len(seen) <= place + len(SECRET) + 4
        assert call.receipt.notes["guard_output"]["cut"]["leaked"] == max(len(seen) - place, 0)
    assert not relayed or model.taken
    if mode != "hold" and pause:
        assert model.told < len([s for s in model.steps if isinstance(s, Chunk)])


@pytest.mark.parametrize("split", range(1, len(SECRET)))
@pytest.mark.parametrize("mode", ["hold", "windowed"])
async def test_nothing_of_it_leaves_wherever_it_is_split(mode: str, split: int) -> None:
    model = Model(
        word("y" * 40),
        0.0,
        word("so: " + SECRET[:split]),
        0.0,
        word(SECRET[split:] + " and so on"),
        0.0,
        end(),
    )
    out = await answer(a_guard(stream=mode), model)
    assert not set(text_of(out)) - set("yso: ")
    assert cut_of(out)["from"] == 44


@pytest.mark.parametrize("mode", ["windowed", "optimistic"])
async def test_slow_checks_know_for_whom_they_are(mode: str) -> None:
    class Knowing(SlowScanner):
        async def thorough(
            self, texts: Sequence[str], origin: Origin, call: Call | None = None
        ) -> list[Verdict]:
            known.append(asking.get())
            return await super().thorough(texts, origin, call)

    asking: ContextVar[str] = ContextVar("asking", default="nobody")
    known: list[str] = []
    asking.set("acme")
    model = Model(*letters("no harm in it, " * 6), end(), relayed=True)
    out = await answer(a_guard(Knowing(WORDS), stream=mode), model)
    assert text_of(out) == "no harm in it, " * 6
    assert model.taken
    assert len(known) > 3 and set(known) == {"acme"}


TEXTS = st.lists(
    st.sampled_from(["cat", "dog house", SECRET, "ca", "dog", " ", "x", "yy", "h4x", "é😀", "t"])
).map("".join)


def cut_up(text: str, cuts: list[int]) -> list[str]:
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(places)]


CUTS = st.lists(st.integers(0, 120), max_size=60)


def redacted(text: str) -> str:
    scanner = KeywordScanner(WORDS)
    for finding in reversed(scanner.find(text)):
        text = f"{text[: finding.start]}[{finding.label.upper()}]{text[finding.end :]}"
    return text


@settings(max_examples=examples(300))
@given(
    text=TEXTS,
    cuts=CUTS,
    interval=st.integers(1, 20),
    more=st.booleans(),
    slow=st.booleans(),
    relayed=st.booleans(),
)
def test_windowed_redaction_is_that_of_the_whole(
    text: str, cuts: list[int], interval: int, more: bool, slow: bool, relayed: bool
) -> None:
    async def run() -> list[Chunk]:
        steps: list[Step] = []
        for piece in cut_up(text, cuts):
            steps += [word(piece)] if more else [word(piece), 0.0]
        guards = a_guard(SlowScanner(WORDS) if slow else None, action="redact", interval=interval)
        return await answer(guards, Model(*steps, end(), relayed=relayed))

    out = asyncio.run(run())
    assert text_of(out) == redacted(text)
    assert out[-1].finish_reason == "stop"


@settings(max_examples=examples(300))
@given(text=TEXTS, cuts=CUTS, interval=st.integers(1, 20), relayed=st.booleans())
def test_windowed_blocking_lets_nothing_of_a_finding_out(
    text: str, cuts: list[int], interval: int, relayed: bool
) -> None:
    async def run() -> list[Chunk]:
        steps: list[Step] = [step for piece in cut_up(text, cuts) for step in (word(piece), 0.0)]
        return await answer(a_guard(interval=interval), Model(*steps, end(), relayed=relayed))

    out = asyncio.run(run())
    found = KeywordScanner(WORDS).find(text)
    if not found:
        assert text_of(out) == text
        assert out[-1].finish_reason == "stop"
    else:
        assert text.startswith(text_of(out))
        assert len(text_of(out)) <= found[0].start
        assert cut_of(out)["from"] == found[0].start


CHANNELS = ["reasoning", "content", "tool 0", "tool 1", "refusal"]


def through(channel: str, text: str, index: int) -> Chunk:
    kind, _, number = channel.partition(" ")
    if kind != "tool":
        return Chunk(index, {kind: text})
    return Chunk(index, {"tool_calls": [{"index": int(number), "function": {"arguments": text}}]})


def heard(chunks: list[Chunk], channel: str, index: int) -> str:
    kind, _, number = channel.partition(" ")
    if kind != "tool":
        return text_of(chunks, index, kind)
    return arguments_of([c for c in chunks if c.index == index], int(number))


@settings(max_examples=examples(150))
@given(
    texts=st.lists(st.lists(TEXTS, min_size=5, max_size=5), min_size=2, max_size=2),
    cuts=CUTS,
    interval=st.integers(1, 20),
    order=st.lists(st.booleans(), min_size=100, max_size=100),
    modes=st.tuples(st.sampled_from(["hold", "windowed"]), st.sampled_from(["hold", "windowed"])),
    relayed=st.booleans(),
)
def test_so_it_is_in_every_text_of_every_choice(
    texts: list[list[str]],
    cuts: list[int],
    interval: int,
    order: list[bool],
    modes: tuple[str, str],
    relayed: bool,
) -> None:
    async def run() -> list[Chunk]:
        todo: list[list[Step]] = [
            [
                *(
                    through(channel, piece, index)
                    for channel, text in zip(CHANNELS, own, strict=True)
                    for piece in cut_up(text, cuts)
                ),
                end(index),
            ]
            for index, own in enumerate(texts)
        ]
        steps: list[Step] = []
        for second in order:
            if todo[second]:
                steps += [todo[second].pop(0), 0.0]
        rules = {"on": ["output"], "action": "redact", "window": 16, "interval": interval}
        guards = guards_of(
            one=(KeywordScanner({SECRET: "key", "cat": "animal"}), {**rules, "stream": modes[0]}),
            two=(SlowScanner({"dog house": "animal"}), {**rules, "window": 40, "stream": modes[1]}),
        )
        return await answer(guards, Model(*steps, *todo[0], *todo[1], relayed=relayed), a_call(n=2))

    out = asyncio.run(run())
    for index, own in enumerate(texts):
        for channel, text in zip(CHANNELS, own, strict=True):
            expected = redacted(text)
            if channel.startswith("tool"):
                expected = expected.replace("[KEY]", '"[KEY]"').replace("[ANIMAL]", '"[ANIMAL]"')
                assert heard(out, channel, index).replace(" ", "") == expected.replace(" ", "")
            else:
                assert heard(out, channel, index) == expected
    assert sorted(c.index for c in out if c.finish_reason) == [0, 1]
    for index in range(2):
        assert [c for c in out if c.index == index][-1].finish_reason == "stop"


async def test_a_server_that_speaks_by_turns_lets_nothing_more_than_the_first_turn_out() -> None:
    steps: list[Step] = []
    for letter in SECRET + "z" * 40:
        steps += [word(letter), 0.0, Chunk(0, {"reasoning": "."}), 0.0]
    out = await answer(a_guard(), Model(*steps, end()))
    assert text_of(out) == SECRET[0]
    assert cut_of(out)["from"] == 0


@pytest.mark.parametrize("mode", MODES)
async def test_the_model_has_stopped_when_the_client_hears_of_the_cut(mode: str) -> None:
    model = Model(word("say " + SECRET + "z" * 60), 0.0, end(), asyncio.Event())
    async with aclosing(
        guard_output(a_guard(stream=mode), background_scans_of(), Metrics())(model)(a_call())
    ) as chunks:
        async for chunk in chunks:
            if chunk.finish_reason == "content_filter":
                assert model.open == 0
                return
    raise AssertionError("it was not cut")


class Exact(KeywordScanner):
    """Finds ``cat`` where it is a word of its own."""

    def find(self, text: str) -> tuple[Finding, ...]:
        return tuple(Finding("animal", *match.span()) for match in re.finditer(r"\bcat\b", text))


async def test_of_a_large_chunk_leaves_what_may_though_the_rest_waits() -> None:
    """The model may be silent for long after it."""
    silence = asyncio.Event()
    text = "x" * 100 + " " + "y" * 400
    handle = guard_output(a_guard(stream="windowed"), background_scans_of(), Metrics())(
        Model(word(text), silence, end())
    )
    async with aclosing(handle(a_call())) as chunks:
        first = await asyncio.wait_for(anext(chunks), 60)
        silence.set()
        rest = [chunk async for chunk in chunks]
    begun = text_of([first])
    assert 400 <= len(begun) < len(text)
    assert begun + text_of(rest) == text


@pytest.mark.parametrize("mode", MODES)
async def test_the_beginning_of_a_longer_word_is_not_the_word(mode: str) -> None:
    text = "concatenate the category, " * 12
    for shift in range(4):
        model = Model(*letters("-" * shift + text, pause=True), end())
        assert text_of(await answer(a_guard(Exact({"-cat-": "-"}), stream=mode), model)) == "-" * shift + text


async def test_a_flagged_text_is_not_scanned_more_often() -> None:
    scanner = KeywordScanner(WORDS)
    await answer(
        a_guard(scanner, action="flag", stream="optimistic"),
        Model(*letters("cat" + "." * 80, pause=True), end()),
    )
    assert len(scanner.seen) == 1


async def test_no_more_than_a_few_verdicts_are_waited_for_in_vain() -> None:
    scanner = SlowScanner(WORDS)
    scanner.gate.clear()
    guards = a_guard(scanner, on_error="allow", timeout="5ms")
    assert text_of(await answer(guards, Model(*letters("u" * 200), end()))) == "u" * 200
    assert len(scanner.asked) <= 3


@pytest.mark.parametrize("size", [1, 7, 50, 5000])
async def test_what_is_longer_than_the_window_is_one_thing_all_the_same(size: int) -> None:
    text = "before " + "BEGIN" + "k" * 4500 + "END" + " between BEGIN" + "q" * 90 + "END after" + "." * 40
    pieces = [step for i in range(0, len(text), size) for step in (word(text[i : i + size]), 0.0)]
    for mode in ("hold", "windowed"):
        out = await answer(
            a_guard(BlockScanner(), action="redact", stream=mode, interval=64), Model(*pieces, end())
        )
        assert text_of(out) == "before [BLOCK] between [BLOCK] after" + "." * 40
    out = await answer(a_guard(BlockScanner(), interval=64), Model(*pieces, end()))
    assert "before ".startswith(text_of(out))
    assert cut_of(out)["from"] == 7


async def test_a_window_is_as_wide_as_what_is_looked_for() -> None:
    long = "k" + "e" * 200 + "y"
    out = await answer(
        a_guard(KeywordScanner({long: "long"})), Model(*letters("aaa" + long + "b" * 300), end())
    )
    assert set(text_of(out)) <= {"a"}
    assert cut_of(out)["from"] == 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "channel"),
    [("reasoning_content", "reasoning_content"), ("reasoning", "reasoning"), ("refusal", "refusal")],
)
async def test_other_texts_are_guarded_as_well(mode: str, name: str, channel: str) -> None:
    model = Model(*(Chunk(0, {name: letter}) for letter in "no " + SECRET + "!" * 40), word("Hello"), end())
    out = await answer(a_guard(stream=mode), model)
    told = cut_of(out)
    assert (told["channel"], told["from"]) == (channel, 3)
    assert text_of(out) == ""


def tool(arguments: str, index: int = 0, **more: Any) -> Chunk:
    return Chunk(0, {"tool_calls": [{"index": index, **more, "function": {"arguments": arguments}}]})


def opening(name: str, index: int = 0) -> Chunk:
    call = {
        "index": index,
        "id": f"c{index}",
        "type": "function",
        "function": {"name": name, "arguments": ""},
    }
    return Chunk(0, {"tool_calls": [call]})


def arguments_of(chunks: list[Chunk], index: int = 0) -> str:
    calls = [call for c in chunks for call in (c.delta or {}).get("tool_calls", ()) if call["index"] == index]
    return "".join(call["function"].get("arguments", "") for call in calls)


@pytest.mark.parametrize("mode", ["hold", "windowed"])
async def test_a_tool_call_is_cut_in_its_middle(mode: str) -> None:
    said = '{"path": "/tmp/x", "text": "' + "w" * 60 + SECRET + '"}'
    model = Model(word("I write."), opening("write"), *(tool(one) for one in said), end())
    out = await answer(a_guard(stream=mode), model)
    told = cut_of(out)
    assert told["channel"] == "tool_calls[0].function.arguments"
    assert told["from"] == said.index(SECRET)
    assert said.startswith(arguments_of(out))
    assert len(arguments_of(out)) <= said.index(SECRET)


async def test_what_comes_before_does_not_hold_a_tool_call_back() -> None:
    """Thoughts and content are over when another text begins."""
    go = asyncio.Event()
    said = '{"text": "' + "w" * 80
    model = Model(
        *(Chunk(0, {"reasoning": letter}) for letter in "I think"),
        word("I write."),
        opening("write"),
        *(tool(one) for one in said),
        go,
        tool('"}'),
        end(),
    )
    seen: list[Chunk] = []
    async with aclosing(guard_output(a_guard(), background_scans_of(), Metrics())(model)(a_call())) as chunks:
        async for chunk in chunks:
            seen.append(chunk)
            if len(arguments_of(seen)) > 60:
                go.set()
    assert text_of(seen, name="reasoning") == "I think"
    assert text_of(seen) == "I write."
    assert arguments_of(seen) == said + '"}'
    assert go.is_set()


async def test_redaction_leaves_arguments_json() -> None:
    import json

    said = json.dumps(
        {"a": f"x\n{SECRET}", "b": ["cat", {"cat": 1}], "c": 'quo"cat"te\\cat', "d": "é\u2028cat"}
    )
    for size in (1, 3, 1000):
        pieces = [tool(said[i : i + size]) for i in range(0, len(said), size)]
        out = await answer(a_guard(action="redact"), Model(opening("f"), *pieces, end()))
        told = json.loads(arguments_of(out))
        assert told == {
            "a": "x\n[KEY]",
            "b": ["[ANIMAL]", {"[ANIMAL]": 1}],
            "c": 'quo"[ANIMAL]"te\\[ANIMAL]',
            "d": "é\u2028[ANIMAL]",
        }


@pytest.mark.parametrize("mode", ["hold", "windowed"])
@pytest.mark.parametrize("size", [1, 4, 1000])
async def test_what_is_written_with_escapes_is_found_in_arguments(mode: str, size: int) -> None:
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in SECRET)
    said = f'{{"a": "one\\n{escaped} \\u00e9"}}'
    pieces = [tool(said[i : i + size]) for i in range(0, len(said), size)]
    out = await answer(a_guard(action="redact", stream=mode), Model(opening("f"), *pieces, end()))
    assert arguments_of(out) == '{"a": "one\\n[KEY] \u00e9"}'
    out = await answer(a_guard(stream=mode), Model(opening("f"), *pieces, end()))
    assert cut_of(out)["channel"] == "tool_calls[0].function.arguments"
    assert "[" not in arguments_of(out)
    assert "h4" not in arguments_of(out)


async def test_a_number_in_arguments_gives_way_to_a_string() -> None:
    import json

    out = await answer(
        a_guard(KeywordScanner({"4111111111111111": "card"}), action="redact"),
        Model(
            opening("pay"),
            *(tool(one) for one in '{"card": 4111111111111111, "n": [4111111111111111]}'),
            end(),
        ),
    )
    assert json.loads(arguments_of(out)) == {"card": "[CARD]", "n": ["[CARD]"]}


async def test_log_probabilities_stay_with_their_text_and_go_with_what_is_replaced() -> None:
    def with_logprobs(text: str, token: str | None = None) -> Chunk:
        return word(text, logprobs={"content": [{"token": token or text, "logprob": -0.1}]})

    model = Model(
        with_logprobs("fine "),
        with_logprobs("ca"),
        with_logprobs("t"),
        with_logprobs(" ok"),
        with_logprobs("", "c"),
        end(),
    )
    out = await answer(a_guard(action="redact"), model)
    assert [(text_of([c]), c.logprobs is not None) for c in out] == [
        ("fine ", True),
        ("[ANIMAL]", False),
        ("", False),
        (" ok", True),
        ("", False),  # spells a token whose text has not come
        ("", False),
    ]


async def test_comments_and_roles_do_not_wait() -> None:
    go = asyncio.Event()
    model = Model(Chunk(comment="position 3"), go, Chunk(0, {"role": "assistant"}), word("hi"), end())
    call = a_call()
    async with aclosing(
        guard_output(a_guard(stream="windowed"), background_scans_of(), Metrics())(model)(call)
    ) as chunks:
        assert (await anext(chunks)).comment == "position 3"
        go.set()
        assert (await anext(chunks)).delta == {"role": "assistant"}
        assert [text_of([c]) async for c in chunks] == ["hi", ""]


@pytest.mark.parametrize("mode", MODES)
async def test_text_and_end_in_one_chunk(mode: str) -> None:
    model = Model(word("a " + SECRET, finish_reason="stop", usage=Usage(1, 2)))
    out = await answer(a_guard(stream=mode), model)
    assert text_of(out) == ""
    assert [c.finish_reason for c in out] == ["content_filter"]
    assert out[-1].usage == Usage(1, 2)
    clean = await answer(a_guard(stream=mode), Model(word("a b", finish_reason="stop", usage=Usage(1, 2))))
    assert text_of(clean) == "a b"
    assert [c.finish_reason for c in clean if c.finish_reason] == ["stop"]


async def test_a_whole_answer_is_always_held() -> None:
    model = Model(word("one two " + SECRET, finish_reason="stop"))
    out = await answer(a_guard(stream="optimistic"), model, a_call(stream=False))
    assert text_of(out) == ""
    assert cut_of(out)["from"] == 8


async def test_an_optimistic_scan_cuts_while_the_model_is_silent() -> None:
    scanner = SlowScanner(WORDS)
    scanner.gate.clear()
    never = asyncio.Event()
    model = Model(word("say " + SECRET), never)
    call = a_call()
    async with asyncio.timeout(300):
        async with aclosing(
            guard_output(a_guard(scanner, stream="optimistic"), background_scans_of(), Metrics())(model)(call)
        ) as chunks:
            assert text_of([await anext(chunks)]) == "say " + SECRET
            scanner.gate.set()
            rest = [chunk async for chunk in chunks]
    assert cut_of(rest)["from"] == 4
    assert model.open == 0
    note = call.receipt.notes["guard_output"]
    assert note["scanned"] is False
    assert note["cut"]["leaked"] == len(SECRET)
    assert SECRET not in str(call.receipt.notes)


async def test_an_optimistic_stream_does_not_end_before_its_last_scan() -> None:
    scanner = SlowScanner(WORDS)
    scanner.gate.clear()
    model = Model(word("all "), word("good"), end())
    async with aclosing(
        guard_output(a_guard(scanner, stream="optimistic"), background_scans_of(), Metrics())(model)(a_call())
    ) as chunks:
        assert text_of([await anext(chunks), await anext(chunks)]) == "all good"
        last = asyncio.ensure_future(anext(chunks))
        await asyncio.sleep(0.02)
        assert not last.done()
        scanner.gate.set()
        assert (await last).finish_reason == "stop"
    assert max(len(texts) for texts in scanner.asked) == 1


async def test_one_optimistic_scan_at_a_time() -> None:
    scanner = SlowScanner(WORDS)
    most = 0

    class Counting(SlowScanner):
        async def thorough(self, texts: Any, origin: Any, call: Any = None) -> Any:
            nonlocal most
            most = max(most, self.running + 1)
            return await super().thorough(texts, origin)

    scanner = Counting(WORDS)
    out = await answer(a_guard(scanner, stream="optimistic"), Model(*letters("u" * 200, pause=True), end()))
    assert text_of(out) == "u" * 200
    assert most == 1
    assert 1 < len(scanner.asked) <= 52
    assert max(len(text) for texts in scanner.asked for text in texts) < 120


@pytest.mark.parametrize("mode", MODES)
async def test_what_cannot_be_judged_is_cut(mode: str) -> None:
    call = a_call()
    model = Model(*letters("perfectly fine and long enough to be let out in part", pause=True), end())
    out = await answer(a_guard(SlowScanner(WORDS, failure=unavailable()), stream=mode), model, call)
    told = cut_of(out)
    assert (told["reason"], told["from"]) == ("guard_unavailable", 0)
    assert text_of(out) == "" or mode == "optimistic"
    assert call.receipt.notes["guard_output"]["scanned"] is False
    assert call.receipt.notes["guard_output"]["guards"]["words"]["action"] == "block"


@pytest.mark.parametrize("mode", MODES)
async def test_or_goes_on_and_is_not_called_clean(mode: str) -> None:
    call = a_call()
    model = Model(*letters("perfectly fine and long enough"), end())
    out = await answer(
        a_guard(SlowScanner(WORDS, failure=unavailable()), stream=mode, on_error="allow"), model, call
    )
    assert text_of(out) == "perfectly fine and long enough"
    assert out[-1].finish_reason == "stop"
    note = call.receipt.notes["guard_output"]
    assert note["scanned"] is False
    assert note["guards"]["words"]["unscanned"] == "unavailable"


async def test_a_verdict_that_does_not_come_in_time_is_none() -> None:
    scanner = SlowScanner(WORDS)
    scanner.gate.clear()
    out = await answer(a_guard(scanner, timeout="20ms", stream="hold"), Model(word("hi"), end()))
    assert cut_of(out)["reason"] == "guard_unavailable"
    assert scanner.cancelled == 1


async def test_a_scanner_with_a_bug_gives_nothing_away(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(KeywordScanner):
        def quick(self, text: str, origin: Any) -> Any:
            raise ValueError(f"cannot read {text}")

    out = await answer(a_guard(Broken(WORDS), stream="hold"), Model(word("private"), end()))
    assert cut_of(out)["reason"] == "guard_unavailable"
    assert "private" not in caplog.text


async def test_several_guards_with_modes_of_their_own() -> None:
    def rules(**config: Any) -> dict[str, Any]:
        return {"on": ["output"], "window": 16, "interval": 4, **config}

    def both() -> Guards:
        return guards_of(
            strict=(KeywordScanner({"cat": "animal"}), rules(action="redact", stream="windowed")),
            loose=(KeywordScanner({SECRET: "key"}), rules(action="block", stream="optimistic")),
            noted=(KeywordScanner({"dog": "animal"}), rules(action="flag", stream="optimistic")),
        )

    call = a_call()
    out = await answer(
        both(), Model(*letters("a cat and a dog walk by, slowly and in good order"), end()), call
    )
    assert text_of(out) == "a [ANIMAL] and a dog walk by, slowly and in good order"
    notes = call.receipt.notes["guard_output"]["guards"]
    assert notes["noted"]["labels"] == {"animal": 1}
    assert (notes["noted"]["action"], notes["strict"]["action"], notes["loose"]["action"]) == (
        "flag",
        "redact",
        "pass",
    )
    said = "a cat and a dog walk by, slowly " + SECRET
    out = await answer(both(), Model(*letters(said, pause=True), end()))
    assert cut_of(out)["guard"] == "loose"
    assert SECRET[0] not in text_of(out)  # the window of the other guard has kept it back
    assert cut_of(out)["from"] == len("a [ANIMAL] and a dog walk by, slowly ")


async def test_a_guard_that_holds_decides_for_all() -> None:
    guards = guards_of(
        slow=(KeywordScanner({"zzz": "z"}), {"on": ["output"], "action": "block", "stream": "hold"}),
        loose=(
            KeywordScanner({SECRET: "k"}),
            {"on": ["output"], "action": "block", "stream": "optimistic", "interval": 4},
        ),
    )
    out = await answer(guards, Model(*letters("much text and then " + SECRET + " and more"), end()))
    assert text_of(out) == ""
    assert cut_of(out)["guard"] == "loose"


async def test_signs_of_life_while_an_answer_is_held() -> None:
    go = asyncio.Event()
    guards = a_guard(stream="hold").of("acme").output
    model = Model(word("x"), go, word("y"), end())
    async with aclosing(guarded(a_call(), guards, Metrics(), model, held=0.01)) as chunks:
        assert (await anext(chunks)).comment == "held"
        assert (await anext(chunks)).comment == "held"
        go.set()
        assert text_of([chunk async for chunk in chunks]) == "xy"


async def test_a_length_limit() -> None:
    rules = {"kind": "length", "max_characters": 10, "on": ["output"]}
    from tests.fakes import policy

    guards = Guards(policy(guards={"length": rules}), {"length": KeywordScanner({"-": "unused"})})
    out = await answer(guards, Model(*letters("0123456789abc", pause=True), end()))
    assert text_of(out) == "0123456789"
    assert cut_of(out)["from"] == 10
    assert text_of(await answer(guards, Model(*letters("0123456789"), end()))) == "0123456789"
    whole = await answer(guards, Model(word("0123456789abc"), end()), a_call(stream=False))
    assert text_of(whole) == ""


@pytest.mark.parametrize("mode", MODES)
async def test_an_error_in_the_middle_lets_nothing_unscanned_out(mode: str) -> None:
    failure = errors.UpstreamFailed("gone")
    call = a_call()
    model = Model(*letters("n" * 30), word(SECRET[:5]), failure)
    seen: list[Chunk] = []
    with pytest.raises(errors.UpstreamFailed):
        async with aclosing(
            guard_output(a_guard(stream=mode), background_scans_of(), Metrics())(model)(call)
        ) as chunks:
            async for chunk in chunks:
                seen += [chunk]
    assert set(text_of(seen)) <= {"n"} or mode == "optimistic"
    assert all(c.finish_reason is None for c in seen)
    assert call.receipt.notes["guard_output"]["scanned"] is False
    assert model.open == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("moment", range(0, 40, 3))
async def test_a_client_that_leaves_at_any_moment(mode: str, moment: int) -> None:
    scanner = SlowScanner(WORDS)
    model = Model(*letters("long and harmless, " * 3, pause=True), end())
    call = a_call()

    async def read() -> None:
        async with aclosing(
            guard_output(a_guard(scanner, stream=mode), background_scans_of(), Metrics())(model)(call)
        ) as chunks:
            async for _ in chunks:
                await asyncio.sleep(0)

    before = asyncio.all_tasks()
    task = asyncio.create_task(read())
    for _ in range(moment):
        await asyncio.sleep(0)
    if moment > 30:
        scanner.gate.clear()
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.open == 0
    assert scanner.running == 0
    assert asyncio.all_tasks() == before


async def test_a_reader_that_stops_early_closes_the_model() -> None:
    model = Model(*letters("long and harmless, " * 3, pause=True), asyncio.Event())
    chunks = guard_output(a_guard(stream="optimistic"), background_scans_of(), Metrics())(model)(a_call())
    await anext(chunks)
    await chunks.aclose()
    assert model.open == 0


async def test_a_model_is_not_read_far_ahead_of_a_slow_client() -> None:
    model = Model(*letters("p" * 1000), end())
    async with aclosing(
        guard_output(a_guard(stream="optimistic"), background_scans_of(), Metrics())(model)(a_call())
    ) as chunks:
        await anext(chunks)
        await asyncio.sleep(0.02)
        assert model.told <= 130


async def test_others_have_their_turn_while_a_long_answer_leaves() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    count = 20_000
    model = Model(*(word("cat, " if number % 2 else "and ") for number in range(count)), end())
    handle = guard_output(a_guard(action="redact", stream="hold"), background_scans_of(), Metrics())(model)
    at_first = 0
    async with asyncio.timeout(300), aclosing(handle(a_call())) as chunks:
        busy = asyncio.create_task(others())
        async for _ in chunks:
            at_first = at_first or turns
        assert turns - at_first >= count // 64
        busy.cancel()


async def test_fields_that_cannot_be_read_are_left_out() -> None:
    call = a_call()
    model = Model(
        Chunk(0, {"content": "ok", "reasoning_details": [{"text": SECRET}]}),
        Chunk(0, {"content": [{"type": "text", "text": " then"}, {"type": "image_url"}]}),
        end(),
    )
    out = await answer(a_guard(), model, call)
    assert text_of(out) == "ok then"
    assert SECRET not in str(out)
    assert call.receipt.notes["guard_output"]["left_out"] == ["parts", "reasoning_details"]


async def test_figures() -> None:
    metrics = Metrics()
    model = Model(*letters("aaaa" + SECRET + "bbbb" * 10, pause=True), end())
    async with aclosing(
        guard_output(a_guard(stream="optimistic"), background_scans_of(), metrics)(model)(a_call())
    ) as chunks:
        out = [chunk async for chunk in chunks]
    page = metrics.render().decode()
    leaked = len(text_of(out)) - 4
    assert f'tollgate_guard_leaked_characters_total{{guard="words"}} {leaked:.1f}' in page
    assert 'tollgate_guard_cuts_total{guard="words"} 1.0' in page
    assert 'tollgate_guard_answers_total{guard="words"} 1.0' in page
    assert 'tollgate_guard_hits_total{action="block",direction="output",guard="words"} 1.0' in page
    assert 'tollgate_guard_time_to_cut_seconds_count{guard="words"} 1.0' in page
    assert 'tollgate_guard_scans_total{check="fast",guard="words",outcome="found"} 1.0' in page


@pytest.mark.parametrize("calls", [[None], ["x"], {"a": 1}, "x"], ids=["null", "text", "object", "no list"])
@pytest.mark.parametrize("mode", MODES)
async def test_tool_calls_that_are_none_are_left_out(mode: str, calls: Any) -> None:
    call = a_call()
    out = await answer(
        a_guard(stream=mode), Model(Chunk(0, {"content": "x", "tool_calls": calls}), end()), call
    )
    assert text_of(out) == "x"
    assert all(not (chunk.delta or {}).get("tool_calls") for chunk in out)
    assert call.receipt.notes["guard_output"]["left_out"] == ["tool_calls"]


async def test_what_comes_beside_the_choices_is_left_out_where_it_may_hold_text() -> None:
    call = a_call()
    envelope = {
        "id": "c",
        "created": 1,
        "service_tier": "default",
        "citations": ["a cat"],
        "output_text": "a cat",
        "search": {"x": "cat"},
    }
    out = await answer(a_guard(), Model(word("x", envelope=envelope), end()), call)
    assert [chunk.envelope for chunk in out if chunk.envelope] == [
        {"id": "c", "created": 1, "service_tier": "default"}
    ]
    assert call.receipt.notes["guard_output"]["left_out"] == ["citations", "output_text", "search"]
