"""The embedder of the semantic cache and of ``kind: sidecar`` can be an engine."""

from __future__ import annotations

import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from gateway.sidecar.models.embedder import builtin_folder
from tests.e2e.gateways import serving
from tests.e2e.keys.harness import shows
from tests.engine.live import EngineServer
from tests.engine.pooling.encoders import encoder

KEY = "tg-" + "k" * 40
TEXTS = ["a cat", "The quick brown fox jumps over the lazy dog."]


def asking(url: str, text: str) -> httpx.Response:
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}]}
    headers = {"authorization": f"Bearer {KEY}"}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer


def is_sidecar(process: Path, engine: str) -> bool:
    try:
        command, environment = ((process / name).read_text() for name in ("cmdline", "environ"))
    except OSError:
        return False
    return "gateway.sidecar.worker" in command and engine in environment


def embedding_by(engine: str, model: str) -> dict[str, Any]:
    return {
        "version": 1,
        "keys": [{"id": "key", "sha256": sha256(KEY.encode()).hexdigest(), "tenant": "acme"}],
        "backends": {
            "ours": {"kind": "engine", "base_url": engine},
            "vectors": {"kind": "sidecar"},
            "scripted": {"kind": "fake", "script": [{"reply": "Look at the settings."}]},
        },
        "models": {
            "vectors": {"targets": [{"backend": "vectors", "model": "any"}]},
            "scripted": {"targets": [{"backend": "scripted", "model": "any"}]},
        },
        "caches": {"semantic": {"ttl": "1h"}},
        "sidecar": {"embedder": {"backend": "ours", "model": model}},
    }


@shows("sidecar.embedder.model", "sidecar.embedder.backend")
def test_the_semantic_caches_embedder_can_be_an_engine(tmp_path: Path) -> None:
    """all-MiniLM-L6-v2 of the package that the sidecar would load."""
    with (
        EngineServer(builtin_folder(), "--served-model-name", "minilm", log=tmp_path / "log") as embedder,
        serving(tmp_path / "one", embedding_by(embedder.url, "minilm")) as url,
    ):
        deadline = time.monotonic() + 300
        asking(url, "How do I reset my password?")
        while asking(url, "How do I reset my password, please?").headers["x-tollgate-cache"] != "semantic":
            assert time.monotonic() < deadline
            asking(url, "How do I reset my password?")
            time.sleep(0.5)
        assert asking(url, "What is the capital of France?").headers["x-tollgate-cache"] == "miss"
        with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            answer = client.embeddings.create(model="vectors", input=TEXTS, encoding_format="float")
        direct = embedder.post("/v1/embeddings", model="minilm", input=TEXTS).json()
        for one, other in zip(answer.data, direct["data"], strict=True):
            assert one.embedding == pytest.approx(other["embedding"], abs=1e-6)
        sidecars = [
            one for one in Path("/proc").iterdir() if one.name.isdigit() and is_sidecar(one, embedder.url)
        ]
        assert sidecars and not any("libtorch" in (one / "maps").read_text() for one in sidecars)


def test_another_models_vectors_are_none_for_the_semantic_cache(tmp_path: Path) -> None:
    encoder(tmp_path / "tiny", "BertModel")
    with (
        EngineServer(tmp_path / "tiny", log=tmp_path / "log") as engine,
        serving(tmp_path / "one", embedding_by(engine.url, "tiny")) as url,
    ):
        log, deadline = tmp_path / "one" / "log", time.monotonic() + 300
        while "is not all-MiniLM-L6-v2" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for _ in range(2):
            answer = asking(url, "How do I reset my password?")
            assert answer.headers["x-tollgate-cache"] != "semantic"
        with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            vectors = client.embeddings.create(model="vectors", input=TEXTS, encoding_format="float")
        assert len(vectors.data[0].embedding) == 32, "which is what it can do"
