"""Embeddings from each kind of backend: the sidecar's embedder, a server, a script, and those that have none."""

from __future__ import annotations

import asyncio
import math
from array import array
from base64 import b64decode
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, cast

import pytest

from gateway import errors, fair_turns
from gateway.backends.anthropic import AnthropicBackend
from gateway.backends.embedder import SLICE, EmbedderBackend
from gateway.backends.fake import FakeBackend
from gateway.backends.openai import OpenAIBackend
from gateway.backends.token_ids import TokenIds
from gateway.policy import schema
from gateway.sidecar.api import Sidecar, SidecarBusy, SidecarDown, SidecarError, SidecarLoading
from gateway.types import Backend, Call, Chunk, Usage
from tests.fakes import TARGET, FakeUpstream, a_call, reply, within
from tests.sidecars import SidecarProcess

pytestmark = pytest.mark.anyio


def wanted(*inputs: Any, timeouts: dict[str, str] | None = None, **params: Any) -> Call:
    prompt = inputs[0] if len(inputs) == 1 else list(inputs)
    return a_call(stream=False, prompt=prompt, embeds=True, params=params, timeouts=timeouts)


async def ask(backend: Backend, call: Call) -> list[Chunk]:
    async with aclosing(backend.stream(call, TARGET)) as chunks:
        return [chunk async for chunk in chunks]


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


class Lengths:
    """A sidecar whose vectors are a text's length, and 1."""

    def __init__(self, error: SidecarError | None = None, delay: float = 0.0) -> None:
        self.asked: list[int] = []
        self.texts: set[str] = set()
        self._error = error
        self._delay = delay

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        self.asked.append(len(texts))
        self.texts.update(texts)
        await asyncio.sleep(self._delay)
        if self._error is not None:
            raise self._error
        return [array("f", (len(text), 1)).tobytes() for text in texts]


def embedder(sidecar: Lengths, **more: Any) -> EmbedderBackend:
    return EmbedderBackend("embedder", cast("Sidecar", sidecar), **{"load_token_ids": lambda: None, **more})


# The sidecar's embedder


async def test_a_vector_for_each_text() -> None:
    chunks = await ask(embedder(Lengths()), wanted("a", "bcd"))
    assert chunks == [
        Chunk(index=0, delta={"embedding": [1.0, 1.0]}, finish_reason="stop", more=True),
        Chunk(index=1, delta={"embedding": [3.0, 1.0]}, finish_reason="stop"),
    ]


@pytest.mark.parametrize(("given_", "where"), [(("",), "input"), (("a", ""), "input[1]"), ((" ",), None)])
async def test_an_empty_text_has_no_vector(given_: tuple[str, ...], where: str | None) -> None:
    scripted = FakeBackend(
        "f", schema.FakeBackend.model_validate({"kind": "fake", "script": [{"reply": "x"}]})
    )
    for backend in (embedder(Lengths()), scripted):
        if where is None:
            assert await ask(backend, wanted(*given_))
            continue
        with pytest.raises(errors.BadRequest, match="empty text") as caught:
            await ask(backend, wanted(*given_))
        assert (caught.value.status, caught.value.param) == (400, where)


async def test_base64_is_little_endian_float32() -> None:
    [chunk] = await ask(embedder(Lengths()), wanted("abc", encoding_format="base64"))
    assert b64decode((chunk.delta or {})["embedding"]) == b"\x00\x00\x40\x40\x00\x00\x80\x3f"


async def test_many_texts_go_in_slices() -> None:
    sidecar = Lengths()
    chunks = await ask(embedder(sidecar), wanted(*("x" * (n + 1) for n in range(2 * SLICE + 3))))
    assert sidecar.asked == [SLICE, SLICE, 3]
    assert [(chunk.index, (chunk.delta or {})["embedding"][0]) for chunk in chunks] == [
        (n, float(n + 1)) for n in range(2 * SLICE + 3)
    ]
    assert [chunk.more for chunk in chunks].count(False) == 1


@pytest.mark.parametrize("inputs", [[[1, 2]], [[1], [2]]])
async def test_token_ids_that_cannot_be_read_are_refused_with_what_helps(inputs: list[Any]) -> None:
    with pytest.raises(errors.BadRequest, match="check_embedding_ctx_length=False") as caught:
        await ask(embedder(Lengths()), wanted(*inputs))
    assert (caught.value.param, caught.value.code) == ("input", "unsupported_parameter")


PIECES = TokenIds({0: b"Hel", 1: b"lo", 2: b" w\xc3", 3: b"\xb6rld"})


async def test_token_ids_are_read_where_their_encoding_is_there() -> None:
    loads = []

    def load() -> TokenIds:
        loads.append(1)
        return PIECES

    sidecar = Lengths()
    backend = embedder(sidecar, load_token_ids=load)
    await ask(backend, wanted("text"))
    assert not loads, "only where they are needed"
    await asyncio.gather(
        ask(backend, wanted([0, 1, 2, 3])),
        ask(backend, wanted([0, 1], [3, 100257])),
        ask(backend, wanted([2])),
    )
    assert sidecar.texts == {"text", "Hello wörld", "Hello", "\ufffdrld<|endoftext|>", " w\ufffd"}
    assert len(loads) == 1
    with pytest.raises(errors.BadRequest, match="there is no token 4") as caught:
        await ask(backend, wanted([0, 4]))
    assert caught.value.code == "invalid_value"


async def test_other_dimensions_are_refused() -> None:
    assert await ask(embedder(Lengths()), wanted("a", dimensions=2))
    for matryoshka, dimensions in ((False, 1), (False, 3), (True, 3)):
        sidecar = Lengths()
        with pytest.raises(errors.BadRequest, match="2 dimensions") as caught:
            await ask(
                embedder(sidecar, matryoshka=matryoshka), wanted(*"a" * 2 * SLICE, dimensions=dimensions)
            )
        assert caught.value.param == "dimensions"
        assert sidecar.asked == [SLICE]


class Fixed(Lengths):
    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        return [array("f", (0.48, -0.64, 0.6, 0.0)).tobytes() for _ in texts]


async def test_a_matryoshka_model_bears_cutting() -> None:
    backend = embedder(Fixed(), matryoshka=True)
    for dimensions, expected in ((4, [0.48, -0.64, 0.6, 0.0]), (2, [0.6, -0.8]), (1, [1.0])):
        [chunk] = await ask(backend, wanted("a", dimensions=dimensions))
        assert (chunk.delta or {})["embedding"] == pytest.approx(expected)
    [chunk] = await ask(backend, wanted("a", dimensions=2, encoding_format="base64"))
    assert array("f", b64decode((chunk.delta or {})["embedding"])).tolist() == pytest.approx([0.6, -0.8])


async def test_it_does_not_chat() -> None:
    with pytest.raises(errors.BadRequest, match="/v1/embeddings"):
        await ask(embedder(Lengths()), a_call())
    with pytest.raises(errors.BadRequest, match="/v1/embeddings"):
        await ask(embedder(Lengths()), a_call(prompt="Once"))


@pytest.mark.parametrize("kind", [SidecarDown, SidecarLoading, SidecarBusy])
async def test_an_absent_sidecar_is_an_unavailable_upstream(kind: type[SidecarError]) -> None:
    backend = embedder(Lengths(kind("whatever")))
    for asking in (ask(backend, wanted("a")), backend.probe()):
        with pytest.raises(errors.UpstreamUnavailable) as caught:
            await asking
        assert caught.value.retry_after
        assert "whatever" not in caught.value.message


async def test_a_failing_sidecar_is_a_failed_upstream() -> None:
    with pytest.raises(errors.UpstreamFailed):
        await ask(embedder(Lengths(SidecarError("no"))), wanted("a"))


@pytest.mark.parametrize(
    "timeouts", [{"first_token": "50ms"}, {"total": "50ms"}], ids=["first token", "total"]
)
async def test_its_time_is_bounded(timeouts: dict[str, str]) -> None:
    async with within(1):
        with pytest.raises(errors.UpstreamTimeout):
            await ask(embedder(Lengths(delay=5)), wanted("a", timeouts=timeouts))


async def test_a_queue_that_is_nearly_full_is_given_fewer_at_once() -> None:
    class Crowded(Lengths):
        async def embed(self, texts: Sequence[str]) -> list[bytes]:
            if len(texts) > 3:
                self.asked.append(0)
                raise SidecarBusy("full")
            return await super().embed(texts)

    sidecar = Crowded()
    chunks = await ask(embedder(sidecar), wanted(*("x" * n for n in range(1, 6))))
    assert [(chunk.delta or {})["embedding"][0] for chunk in chunks] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert sidecar.asked == [0, 2, 2, 1]


async def test_the_real_one(sidecar: SidecarProcess) -> None:
    texts = [
        "A cat sleeps.",
        "A kitten is asleep.",
        "Shares fell on Monday.",
        *(f"number {n}" for n in range(20)),
    ]
    client = sidecar.client()
    backend = EmbedderBackend("embedder", client)
    await backend.probe()
    chunks = await ask(backend, wanted(*texts))
    [packed] = await ask(backend, wanted(texts[0], encoding_format="base64", dimensions=384))
    with pytest.raises(errors.BadRequest, match="384 dimensions"):
        await ask(backend, wanted("a", dimensions=256))
    await client.aclose()
    vectors = [(chunk.delta or {})["embedding"] for chunk in chunks]
    assert [len(vector) for vector in vectors] == [384] * len(texts)
    assert all(math.hypot(*vector) == pytest.approx(1, abs=1e-3) for vector in vectors)
    assert cosine(vectors[0], vectors[1]) > cosine(vectors[0], vectors[2]) + 0.3
    decoded = array("f", b64decode((packed.delta or {})["embedding"]))
    assert [*decoded] == pytest.approx(vectors[0], abs=0.02)


async def test_it_proves_itself_by_work() -> None:
    sidecar = Lengths()
    backend = embedder(sidecar)
    await backend.probe()
    await backend.probe()
    assert sidecar.asked == [1, 1]
    assert len(sidecar.texts) == 2


# The others


async def test_a_server_is_asked_for_embeddings(upstream: FakeUpstream) -> None:
    data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
    answer = {"object": "list", "data": data, "model": "e", "usage": {"prompt_tokens": 2, "total_tokens": 2}}
    upstream.scripts = [reply(answer)]
    backend = OpenAIBackend("up", base_url=upstream.base_url, probe_url=upstream.base_url)
    chunks = await ask(backend, wanted("a b", dimensions=2))
    await backend.aclose()
    assert chunks == [
        Chunk(delta={"embedding": [0.5, 0.25]}, finish_reason="stop", usage=Usage(prompt=2, completion=0))
    ]
    assert upstream.requests[0].path == "/v1/embeddings"
    assert upstream.requests[0].json() == {"model": "upstream-model", "input": "a b", "dimensions": 2}


async def test_others_run_between_many_vectors(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_turns, "TURN", -1.0)
    data = [{"object": "embedding", "index": n, "embedding": [float(n)]} for n in range(500)]
    upstream.scripts = [reply({"data": data})]
    backend = OpenAIBackend("up", base_url=upstream.base_url, probe_url=upstream.base_url)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    async with aclosing(backend.stream(wanted(["a"] * 500), TARGET)) as chunks:
        between = [turns async for _ in chunks]
    task.cancel()
    await backend.aclose()
    assert max(between.count(turn) for turn in between) <= 16


@pytest.mark.parametrize(
    "answer", [{"data": []}, {"data": [{"embedding": 3}]}, {"choices": []}], ids=["empty", "odd", "chat"]
)
async def test_a_server_that_answers_nonsense_has_failed(upstream: FakeUpstream, answer: Any) -> None:
    upstream.scripts = [reply(answer)]
    backend = OpenAIBackend("up", base_url=upstream.base_url, probe_url=upstream.base_url)
    with pytest.raises(errors.UpstreamFailed):
        await ask(backend, wanted("a"))
    await backend.aclose()


async def test_who_has_no_embeddings_says_so_and_lets_another_try(upstream: FakeUpstream) -> None:
    claude = AnthropicBackend("claude", base_url=upstream.base_url, max_tokens=16)
    with pytest.raises(errors.BadRequest, match="embedder") as caught:
        await ask(claude, wanted("a"))
    assert caught.value.code == "unsupported_parameter"
    await claude.aclose()
    assert upstream.requests == []


def scripted(*script: dict[str, Any]) -> FakeBackend:
    return FakeBackend("up", schema.FakeBackend.model_validate({"kind": "fake", "script": script}))


async def test_scripted_vectors_are_the_same_every_time() -> None:
    backend = scripted({"reply": "words"})
    first, second = [await ask(backend, wanted("one two", "three", "one two")) for _ in range(2)]
    assert first == second
    vectors = [(chunk.delta or {})["embedding"] for chunk in first]
    assert vectors[0] == vectors[2] != vectors[1]
    assert [sum(number**2 for number in vector) for vector in vectors] == pytest.approx([1, 1, 1])
    assert first[-1].usage == Usage(5, 0)
    assert len((await ask(backend, wanted("a", dimensions=3)))[0].delta["embedding"]) == 3  # type: ignore[index]


async def test_scripted_errors_and_bounds() -> None:
    with pytest.raises(errors.UpstreamUnavailable):
        await ask(scripted({"match": "fail", "reply": "no", "status": 503}), wanted("fail"))
    with pytest.raises(errors.BadRequest, match="1024"):
        await ask(scripted({"reply": "words"}), wanted("a", dimensions=10**9))
