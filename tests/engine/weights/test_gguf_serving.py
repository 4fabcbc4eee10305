"""A whole server on a GGUF file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type
from tokenizers import Tokenizer

from tests.engine.dense import greedy
from tests.engine.live import EngineServer
from tests.engine.tiny import CHAT_TEMPLATE, SHAPE, make_weights, write_model
from tests.engine.weights import gguf_files
from tests.sampling import slow

MESSAGES = [{"role": "user", "content": "bal dem fin"}]
PROMPT = "<|user|>bal dem fin\n<|assistant|>"


def described(tokenizer: Tokenizer) -> dict[str, object]:
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    received = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [token for token, _ in vocabulary],
        "token_type": [3 if number < 2 else 1 for _, number in vocabulary],
        "merges": [" ".join(pair) for pair in merges],
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    named = {f"tokenizer.ggml.{key}": value for key, value in received.items()}
    return {**named, "tokenizer.chat_template": CHAT_TEMPLATE}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its own, but for the compiled C."""
    compiled = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tollgate" / "native"
    compiled.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = tmp_path / "cache" / "tollgate"
    folder.mkdir(parents=True)
    (folder / "native").symlink_to(compiled)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", [Type.F32, *slow(Type.Q8_0)])
def test_a_server_on_a_gguf_file_answers_a_chat(tmp_path: Path, kind: Type) -> None:
    folder = write_model(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    file = gguf_files.write(tmp_path / "tiny.gguf", folder, lambda name: kind, extra=described(tokenizer))
    with EngineServer(file, "--kv-cache-blocks", "50", log=tmp_path / "log") as server:
        body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
        plain = server.post("/v1/chat/completions", **body).json()
        schema = {"name": "n", "schema": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}}
        form = {"type": "json_schema", "json_schema": schema}
        formed = server.post("/v1/chat/completions", **body | {"max_tokens": 60}, response_format=form).json()
        assert [model["id"] for model in server.http.get("/v1/models").json()["data"]] == ["tiny"]
    assert plain["usage"]["prompt_tokens"] == len(tokenizer.encode(PROMPT).ids)
    if kind == Type.F32:
        ids = greedy(make_weights(SHAPE), SHAPE, tokenizer.encode(PROMPT).ids, 12)
        assert plain["choices"][0]["message"]["content"] == tokenizer.decode(ids)
    assert isinstance(json.loads(formed["choices"][0]["message"]["content"]), list)


def test_a_file_that_cannot_be_read_ends_the_start_with_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "half.gguf"
    file.write_bytes(b"GGUF\3\0\0\0")
    command = [sys.executable, "-m", "engine", "serve", "--model", str(file), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1
    assert "error: " in ended.stderr and "Is the download whole?" in ended.stderr
    assert "Traceback" not in ended.stderr
