"""Answers and errors are as the published APIs have them, in both dialects, from providers that answer in full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage

from benchmarks.conformance.backends import SCRIPTED
from benchmarks.conformance.providers import anthropic, openai
from benchmarks.conformance.published import Wrong, fits
from benchmarks.conformance.shapes import CASES, MESSAGES, Case
from benchmarks.conformance.stack import Stack
from tests.conformance import scripted_stack


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with scripted_stack(tmp_path_factory.mktemp("conformance")) as stack:
        yield stack


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@pytest.mark.parametrize("model", [provider.model for provider in SCRIPTED])
def test_it_is_as_published(stack: Stack, model: str, case: Case) -> None:
    case.run(stack, model)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_providers_themselves_answer_as_published(stack: Stack, case: Case) -> None:
    if case.path.startswith(MESSAGES):
        case.run(replace(stack, gateway=stack.providers["anthropic"], key=anthropic.KEY), anthropic.MODEL)
    else:
        case.run(replace(stack, gateway=stack.providers["openai"], key=openai.KEY), openai.MODEL)


MESSAGE: dict[str, Any] = {"role": "assistant", "content": "Hi", "refusal": None}


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        (MESSAGE, None),
        ({**MESSAGE, "content": 7}, "content: Input should be a valid string"),
        ({**MESSAGE, "role": "user"}, "role: Input should be 'assistant'"),
        ({"role": "assistant", "content": "Hi"}, "missing: refusal"),
    ],
)
def test_what_is_not_as_published_is_told(value: dict[str, Any], wrong: str | None) -> None:
    if wrong is None:
        fits(ChatCompletionMessage, value)
    else:
        with pytest.raises(Wrong, match=wrong):
            fits(ChatCompletionMessage, value)
