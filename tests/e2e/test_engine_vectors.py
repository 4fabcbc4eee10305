"""The gateway before engines that serve an embedding model and a reranker."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import httpx
import pytest
from openai import BadRequestError, OpenAI

from gateway.sidecar.models.embedder import builtin_folder
from tests.e2e.gateways import serving
from tests.engine.live import EngineServer
from tests.engine.pooling.encoders import encoder

KEY = "tg-" + "k" * 40
TEXTS = ["a cat", "The quick brown fox jumps over the lazy dog."]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    log = tmp_path_factory.mktemp("logs") / "log"
    with EngineServer(builtin_folder(), "--served-model-name", "minilm", log=log) as server:
        yield server


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    folder = tmp_path_factory.mktemp("model") / "ranker"
    encoder(folder, "BertForSequenceClassification", num_labels=1)
    with EngineServer(folder, log=folder / "log") as server:
        yield server


@pytest.fixture(scope="module")
def gateway(
    embedder: EngineServer, ranker: EngineServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    policy = {
        "version": 1,
        "tenants": {"acme": {}},
        "keys": [{"id": "key", "sha256": sha256(KEY.encode()).hexdigest(), "tenant": "acme"}],
        "backends": {
            "by-openai": {"kind": "openai", "base_url": f"{embedder.url}/v1"},
            "by-engine": {"kind": "engine", "base_url": embedder.url},
            "ranks-by-openai": {"kind": "openai", "base_url": f"{ranker.url}/v1"},
            "ranks-by-engine": {"kind": "engine", "base_url": ranker.url},
        },
        "models": {
            "by-openai": {"targets": [{"backend": "by-openai", "model": "minilm"}]},
            "by-engine": {"targets": [{"backend": "by-engine", "model": "minilm"}]},
            "ranks-by-openai": {"targets": [{"backend": "ranks-by-openai", "model": "ranker"}]},
            "ranks-by-engine": {"targets": [{"backend": "ranks-by-engine", "model": "ranker"}]},
        },
    }
    with serving(tmp_path_factory.mktemp("gateway") / "one", policy) as url:
        yield url


@pytest.fixture(scope="module")
def client(gateway: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.mark.parametrize("model", ["by-openai", "by-engine"])
def test_vectors_come_through_the_gateway(client: OpenAI, embedder: EngineServer, model: str) -> None:
    direct = embedder.post("/v1/embeddings", model="minilm", input=TEXTS).json()
    for form in ("float", "base64"):
        answer = client.embeddings.create(model=model, input=TEXTS, encoding_format=form)  # type: ignore[arg-type]
        assert [one.index for one in answer.data] == [0, 1]
        if form == "float":
            assert [one.embedding for one in answer.data] == [one["embedding"] for one in direct["data"]]
        assert answer.model == model
        assert answer.usage.prompt_tokens == direct["usage"]["prompt_tokens"]
    by_ids = client.embeddings.create(model=model, input=[[101, 1037, 4937, 102]], encoding_format="float")
    assert by_ids.data[0].embedding == direct["data"][0]["embedding"]


@pytest.mark.parametrize("model", ["by-openai", "by-engine"])
def test_what_the_engine_refuses_reaches_the_caller(client: OpenAI, model: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.embeddings.create(model=model, input="word " * 400)
    assert refused.value.code == "context_length_exceeded"
    cut = client.embeddings.create(
        model=model, input="word " * 400, extra_body={"truncate_prompt_tokens": -1}
    )
    assert cut.usage.prompt_tokens == 256
    with pytest.raises(BadRequestError, match="makes embeddings"):
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("model", ["ranks-by-openai", "ranks-by-engine"])
def test_ranks_come_through_the_gateway(gateway: str, ranker: EngineServer, model: str) -> None:
    body = {"query": "a cat", "documents": ["the cat", "dog runs", "lorem"], "top_n": 2}
    direct = ranker.post("/v1/rerank", model="ranker", **body).json()
    answer = httpx.post(
        f"{gateway}/v1/rerank",
        json={"model": model, **body},
        headers={"authorization": f"Bearer {KEY}"},
        timeout=60,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["results"] == direct["results"] and len(direct["results"]) == 2


@pytest.mark.parametrize("model", ["ranks-by-openai", "ranks-by-engine"])
def test_scores_come_through_the_gateway(gateway: str, ranker: EngineServer, model: str) -> None:
    body = {"text_1": "a cat", "text_2": ["the cat", "dog runs"]}
    direct = ranker.post("/v1/score", model="ranker", **body).json()
    answer = httpx.post(
        f"{gateway}/v1/score",
        json={"model": model, **body},
        headers={"authorization": f"Bearer {KEY}"},
        timeout=60,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["data"] == direct["data"] and len(direct["data"]) == 2
    assert answer.json()["usage"] == direct["usage"]
