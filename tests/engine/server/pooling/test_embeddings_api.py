"""``/v1/embeddings`` of the real server, with all-MiniLM-L6-v2 as its package has it."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from openai import AsyncOpenAI, BadRequestError, OpenAI
from sentence_transformers import SentenceTransformer

from gateway.sidecar.models.embedder import builtin_folder
from tests.engine.live import EngineServer, alive, eventually
from tests.engine.pooling.encoders import encoder, modules, write

pytestmark = pytest.mark.anyio

TEXTS = ["a cat", "The quick brown fox jumps over the lazy dog.", "Wie geht es dir?", "word " * 200, "b"]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    options = ("--served-model-name", "minilm", "--threads", "1", "--max-waiting", "2", "--max-num-seqs", "4")
    with EngineServer(builtin_folder(), *options, log=tmp_path_factory.mktemp("logs") / "log") as server:
        yield server


@pytest.fixture(scope="module")
def client(minilm: EngineServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{minilm.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def reference() -> SentenceTransformer:
    return SentenceTransformer(str(builtin_folder()), device="cpu", local_files_only=True)


def test_vectors_are_those_of_sentence_transformers(client: OpenAI, reference: SentenceTransformer) -> None:
    expected = torch.from_numpy(reference.encode(TEXTS))
    # The SDK asks for base64 by itself, and decodes it.
    answer = client.embeddings.create(model="minilm", input=TEXTS)
    found = torch.tensor([one.embedding for one in answer.data])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert [one.index for one in answer.data] == list(range(len(TEXTS)))
    tokens = sum(len(reference.tokenizer(text)["input_ids"]) for text in TEXTS)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)
    for text, vector in zip(TEXTS, expected, strict=True):
        alone = (
            client.embeddings.create(model="minilm", input=text, encoding_format="float").data[0].embedding
        )
        torch.testing.assert_close(torch.tensor(alone), vector, atol=1e-5, rtol=1e-4)


def test_base64_is_the_same_as_numbers(minilm: EngineServer) -> None:
    answers = [
        minilm.post("/v1/embeddings", model="minilm", input="a cat", encoding_format=form).json()
        for form in ("base64", "float")
    ]
    (packed,), (plain,) = ([one["embedding"] for one in answer["data"]] for answer in answers)
    assert list(struct.unpack("<384f", base64.b64decode(packed))) == plain


def test_token_ids_are_taken_as_they_are(client: OpenAI, reference: SentenceTransformer) -> None:
    ids = [reference.tokenizer(text, truncation=True, max_length=256)["input_ids"] for text in TEXTS]
    by_text = client.embeddings.create(model="minilm", input=TEXTS).data
    by_ids = client.embeddings.create(model="minilm", input=ids).data
    assert [one.embedding for one in by_text] == [one.embedding for one in by_ids]
    (one,) = client.embeddings.create(model="minilm", input=ids[0]).data
    assert one.embedding == by_text[0].embedding


def test_a_long_text_is_refused_or_cut(client: OpenAI, reference: SentenceTransformer) -> None:
    long = "word " * 300
    with pytest.raises(BadRequestError) as refused:
        client.embeddings.create(model="minilm", input=["short", long])
    assert refused.value.code == "context_length_exceeded" and refused.value.param == "input[1]"
    assert (
        "maximum context length is 256 tokens" in refused.value.message
        and "302 tokens" in refused.value.message
    )
    cut = client.embeddings.create(model="minilm", input=long, extra_body={"truncate_prompt_tokens": -1})
    assert cut.usage.prompt_tokens == 256
    expected = torch.from_numpy(reference.encode(long))
    torch.testing.assert_close(torch.tensor(cut.data[0].embedding), expected, atol=1e-5, rtol=1e-4)
    ten = client.embeddings.create(model="minilm", input=long, extra_body={"truncate_prompt_tokens": 10})
    assert ten.usage.prompt_tokens == 10
    expected = torch.from_numpy(reference.encode("word " * 8))
    torch.testing.assert_close(torch.tensor(ten.data[0].embedding), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"input": ""}, 400, "invalid_value", "input"),
        ({"input": ["a", ""]}, 400, "invalid_value", "input[1]"),
        ({"input": []}, 400, "invalid_value", "input"),
        ({"input": [10**6]}, 400, "invalid_value", "input"),
        ({"input": [[5], [-1]]}, 400, "invalid_value", "input[1]"),
        ({"input": ["a"] * 2049}, 400, "invalid_value", "input"),
        ({"input": "a", "dimensions": 8}, 400, "unsupported_parameter", "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, 400, "invalid_value", "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 0}, 400, "invalid_value", "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 2}, 400, "invalid_value", "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 999}, 400, "invalid_value", "truncate_prompt_tokens"),
        ({"input": "a", "prompt_name": "query"}, 400, "invalid_value", "prompt_name"),
        ({"input": "a", "model": "other"}, 404, "model_not_found", "model"),
    ],
)
def test_mistakes_are_named(
    minilm: EngineServer, body: dict[str, object], status: int, code: str, param: str
) -> None:
    answer = minilm.post("/v1/embeddings", **{"model": "minilm", **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param), error


def test_fields_without_effect_are_said(minilm: EngineServer) -> None:
    answer = minilm.post("/v1/embeddings", model="minilm", input="a", user="u", input_type="query")
    assert answer.status_code == 200 and answer.headers["x-tollgate-ignored"] == "input_type, user"


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/rerank", "/v2/rerank", "/v1/score"]
)
def test_what_it_does_not_do_is_refused_by_name(minilm: EngineServer, path: str) -> None:
    error = minilm.post(path, model="minilm", prompt="x").json()["error"]
    assert error["code"] == "unsupported_parameter" and "makes embeddings" in error["message"]
    assert path in error["message"] and "/v1/embeddings" in error["message"]


def test_a_generating_model_refuses_by_name(server: EngineServer) -> None:
    for path in ("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score"):
        answer = server.post(path, model="long", input="x")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "unsupported_parameter")
        assert "generates text" in error["message"] and path in error["message"]


def test_models_state_health_and_metrics(minilm: EngineServer) -> None:
    (model,) = minilm.http.get("/v1/models").json()["data"]
    assert (model["id"], model["task"], model["max_model_len"]) == ("minilm", "embed", 256)
    assert minilm.http.get("/v1/models/minilm").json()["id"] == "minilm"
    assert minilm.http.get("/v1/models/other").status_code == 404
    minilm.post("/v1/embeddings", model="minilm", input=["a", "b"])
    state = minilm.state()
    assert (state["dimensions"], state["running"], state["waiting"]) == (384, 0, 0)
    assert minilm.http.get("/health").json() == {"status": "ok"}
    metrics = minilm.http.get("/metrics").text
    assert 'tollgate_engine_requests_total{path="/v1/embeddings",status="200"}' in metrics
    assert 'vllm:num_requests_waiting{engine="0",model_name="minilm"} 0.0' in metrics
    assert "tollgate_engine_texts_total" in metrics


async def test_a_large_request_does_not_hold_up_a_small_one(minilm: EngineServer) -> None:
    async with (
        AsyncOpenAI(base_url=f"{minilm.url}/v1", api_key="unused", max_retries=0) as client,
        httpx.AsyncClient(base_url=minilm.url, trust_env=False) as http,
    ):
        large = asyncio.create_task(client.embeddings.create(model="minilm", input=["word " * 60] * 150))
        for _ in range(1000):
            if (await http.get("/v1/engine/state")).json()["running"]:
                break
        assert not large.done(), "it should take seconds"
        small = await client.embeddings.create(model="minilm", input="a cat")
        assert len(small.data) == 1 and not large.done()
        assert len((await large).data) == 150


async def test_a_full_queue_and_deadlines_that_cannot_be_met(minilm: EngineServer) -> None:
    async with httpx.AsyncClient(base_url=minilm.url, trust_env=False, timeout=300) as http:
        body = {"model": "minilm", "input": ["word " * 60] * 20}
        answers = await asyncio.gather(*(http.post("/v1/embeddings", json=body) for _ in range(9)))
        full = [answer for answer in answers if answer.status_code == 503]
        assert len(full) == 3, "four have a place in the batch, two may wait"
        assert all(answer.json()["error"]["code"] == "queue_full" for answer in full)
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in full)
        late = await http.post("/v1/embeddings", json=body, headers={"x-tollgate-deadline": "0.001"})
        assert late.json()["error"]["code"] == "deadline_unreachable"


async def test_a_caller_that_leaves_ends_its_work(minilm: EngineServer) -> None:
    async with httpx.AsyncClient(base_url=minilm.url, trust_env=False) as http:
        body = {"model": "minilm", "input": ["word " * 200] * 2000}
        with pytest.raises(httpx.ReadTimeout):
            await http.post("/v1/embeddings", json=body, timeout=3)
    eventually(lambda: not (minilm.state()["running"] or minilm.state()["waiting"]), within=60)
    metrics = minilm.http.get("/metrics").text
    assert 'tollgate_engine_requests_total{path="/v1/embeddings",status="hung_up"} 1.0' in metrics


def test_ctrl_c_drains_and_a_dead_engine_process_ends_the_server(tmp_path: Path) -> None:
    folder = modules(encoder(tmp_path / "model"), "mean", "Normalize")
    with EngineServer(folder, log=tmp_path / "log") as server:
        pid = server.core_pid
        server.signal(signal.SIGINT)
        assert server.process.wait(60) == 0
        assert not alive(pid)
    with EngineServer(folder, log=tmp_path / "log") as server:
        os.kill(server.core_pid, signal.SIGKILL)
        assert server.process.wait(60) == 1


def test_dimensions_and_prompts_of_a_model_that_has_them(tmp_path: Path) -> None:
    folder = modules(encoder(tmp_path / "model"), "mean", "Normalize")
    settings = {"prompts": {"query": "who is ", "document": ""}, "default_prompt_name": "query"}
    write(folder / "config_sentence_transformers.json", settings)
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    with EngineServer(folder, "--matryoshka", "--served-model-name", "m", log=tmp_path / "log") as server:

        def vector(**fields: object) -> torch.Tensor:
            answer = server.post("/v1/embeddings", model="m", input="the cat", **fields)
            return torch.tensor(answer.json()["data"][0]["embedding"])

        torch.testing.assert_close(vector(), torch.from_numpy(theirs.encode("the cat")), atol=1e-5, rtol=1e-4)
        for name in ("query", "document"):
            expected = torch.from_numpy(theirs.encode("the cat", prompt_name=name))
            torch.testing.assert_close(vector(prompt_name=name), expected, atol=1e-5, rtol=1e-4)
        assert not torch.allclose(vector(prompt_name=""), vector())
        cut = vector(dimensions=8)
        torch.testing.assert_close(cut, vector()[:8] / vector()[:8].norm(), atol=1e-5, rtol=1e-4)
        wide = server.post("/v1/embeddings", model="m", input="a", dimensions=64).json()["error"]
        assert wide["param"] == "dimensions" and "from 1 to 32" in wide["message"]
        eventually(lambda: server.state()["running"] == 0)


@pytest.mark.parametrize(
    "flags", [("--adapter", "a=/tmp"), ("--speculation", "ngram"), ("--tensor-parallel", "2")], ids="".join
)
def test_flags_for_generating_models_are_refused(tmp_path: Path, flags: tuple[str, ...]) -> None:
    folder = modules(encoder(tmp_path / "model"), "mean")
    with pytest.raises(RuntimeError, match=f"{flags[0]} is for models that generate text"):
        EngineServer(folder, *flags, log=tmp_path / "log")


def test_a_digest_is_checked_here_too(tmp_path: Path) -> None:
    folder = modules(encoder(tmp_path / "model"), "mean")
    with pytest.raises(RuntimeError, match="is not the file that --digest pins"):
        EngineServer(folder, "--digest", "0" * 64, log=tmp_path / "log")
