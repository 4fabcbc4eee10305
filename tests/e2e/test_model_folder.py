"""The engine serves a model from a folder, under whatever name the policy gives it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import Stack, serve

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
