"""The engine serves a model from a folder or a file, under whatever name the policy gives it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from tokenizers import Tokenizer

from tests.e2e.conftest import Stack, serve
from tests.engine.tiny import write_model
from tests.engine.weights import gguf_files
from tests.engine.weights.test_gguf_serving import cache, described

__all__ = ["cache"]
"""Of each test's own."""

DRAFT = Path(__file__).parents[2] / "engine" / "demo" / "draft"


@pytest.fixture
def draft(tmp_path: Path) -> Iterator[Stack]:
    yield from serve(tmp_path, model=str(DRAFT))


def test_a_folder_is_served(draft: Stack) -> None:
    client = openai.OpenAI(base_url=f"{draft.url}/v1", api_key=draft.key, max_retries=0)
    answer = client.chat.completions.create(
        model="tollgate-demo",
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
    )
    assert "Paris" in (answer.choices[0].message.content or "")


NAMES = """
models:
  one: {targets: [{backend: bundled, model: tiny}]}
  two: {targets: [{backend: bundled, model: of any name}]}
"""


@pytest.fixture
def gguf(tmp_path: Path) -> Iterator[Stack]:
    folder = write_model(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    file = gguf_files.write(tmp_path / "tiny.gguf", folder, extra=described(tokenizer))
    yield from serve(tmp_path, model=str(file), beside=NAMES)


def test_a_file_is_served_under_its_own_name_and_any_other(gguf: Stack) -> None:
    client = openai.OpenAI(base_url=f"{gguf.url}/v1", api_key=gguf.key, max_retries=0)
    question = [{"role": "user", "content": "bal dem fin"}]
    answers = [
        client.chat.completions.create(model=name, messages=question, temperature=0, max_tokens=12)  # type: ignore[call-overload]
        for name in ("one", "two", "tollgate-demo")
    ]
    assert len({answer.choices[0].message.content for answer in answers}) == 1
    served = httpx.get(f"{gguf.engine_url}/v1/models").json()["data"]
    assert [model["id"] for model in served] == ["tiny"]
