"""How likely prompts are: ``echo`` with ``logprobs``, as scoring harnesses ask, against a plain forward pass."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.live import EngineServer

TEXT = "/v1/completions"
PROMPTS = [[5, 9, 40, 41, 17, 230, 7], [100, 3, 3, 77] * 12, [250, 6]]


def score(server: EngineServer, **more: Any) -> list[dict[str, Any]]:
    answer = server.post(TEXT, model="long", echo=True, temperature=0, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


@pytest.fixture(scope="module")
def expected(long_model: Path) -> list[torch.Tensor]:
    """[tokens, vocabulary]: log-probabilities at each token of each prompt, by transformers."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(long_model, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).logits[0].log_softmax(-1) for prompt in PROMPTS]


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
def test_a_batch_of_token_ids_is_scored_as_transformers_does(
    server: EngineServer, expected: list[torch.Tensor], max_tokens: int
) -> None:
    choices = score(server, prompt=PROMPTS, max_tokens=max_tokens, logprobs=2, ignore_eos=True)
    for prompt, choice, logprobs in zip(PROMPTS, choices, expected, strict=True):
        found = choice["logprobs"]
        assert {len(values) for values in found.values()} == {len(prompt) + max_tokens}
        assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
        own = [float(logprobs[i, token]) for i, token in enumerate(prompt[1:])]
        assert found["token_logprobs"][1 : len(prompt)] == pytest.approx(own, abs=1e-4)
        for i, top in enumerate(found["top_logprobs"][1 : len(prompt)]):
            best = logprobs[i].topk(2).values.tolist()
            assert sorted(top.values(), reverse=True)[:2] == pytest.approx(best, abs=1e-4)
            assert found["token_logprobs"][i + 1] in top.values()
        if max_tokens:
            greedy = float(logprobs[-1].max())
            assert found["token_logprobs"][len(prompt)] == pytest.approx(greedy, abs=1e-4)


def test_offsets_are_those_of_the_echoed_text(server: EngineServer) -> None:
    text = "the quick brown fox"
    [choice] = score(server, prompt=text, max_tokens=2, logprobs=0, ignore_eos=True)
    assert choice["text"].startswith(text)
    found = choice["logprobs"]
    ends = [*found["text_offset"][1:], len(choice["text"])]
    for token, begin, end in zip(found["tokens"], found["text_offset"], ends, strict=True):
        if begin < end and not token.startswith(("bytes:", "<")):
            assert choice["text"][begin:end] == token
    [alone] = score(server, prompt=text, max_tokens=0, logprobs=0)
    assert (alone["text"], alone["finish_reason"]) == (text, "length")
    kept = len(alone["logprobs"]["tokens"])
    assert alone["logprobs"]["text_offset"] == found["text_offset"][:kept]
    assert alone["logprobs"]["token_logprobs"][1:] == pytest.approx(found["token_logprobs"][1:kept], abs=1e-5)


def test_a_prompt_that_is_cached_or_longer_than_a_step_is_scored_all_the_same(server: EngineServer) -> None:
    prompt = [11 + i % 190 for i in range(700)]
    first, again = (
        score(server, prompt=prompt, max_tokens=0, logprobs=0)[0]["logprobs"]["token_logprobs"]
        for _ in range(2)
    )
    assert len(first) == 700 and first[0] is None
    assert again[1:] == pytest.approx(first[1:], abs=1e-4)
    # The end of it, scored alone with the same past, is as likely.
    longer = score(server, prompt=[*prompt, 9, 8], max_tokens=0, logprobs=0)[0]["logprobs"]["token_logprobs"]
    assert longer[1:700] == pytest.approx(first[1:], abs=1e-4)


def test_choices_of_one_prompt_and_streams_tell_it_too(server: EngineServer) -> None:
    asked = {"prompt": PROMPTS[0], "max_tokens": 2, "logprobs": 1, "seed": 3, "ignore_eos": True}
    whole = server.post(TEXT, model="long", echo=True, n=2, **asked).json()
    one, two = (choice["logprobs"]["token_logprobs"][:7] for choice in whole["choices"])
    assert one == two and one[0] is None
    assert whole["usage"]["completion_tokens"] == 4
    streamed = server.post(TEXT, model="long", echo=True, stream=True, n=2, **asked).text
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    for index in (0, 1):
        parts = [c["logprobs"]["token_logprobs"] for e in events for c in e["choices"] if c["index"] == index]
        assert list(chain.from_iterable(parts)) == whole["choices"][index]["logprobs"]["token_logprobs"]


def test_scoring_costs_no_tokens_and_needs_an_echo(server: EngineServer) -> None:
    answer = server.post(TEXT, model="long", prompt=PROMPTS[0], echo=True, max_tokens=0, logprobs=1).json()
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["prompt_tokens"] == 7
    refused = server.post(TEXT, model="long", prompt=PROMPTS[0], max_tokens=0).json()["error"]
    assert refused["param"] == "max_tokens"
