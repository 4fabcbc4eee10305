"""OpenAI's older text completions, scripted (https://platform.openai.com/docs/api-reference/completions)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from openai.types import completion_create_params
from starlette.requests import Request
from starlette.responses import Response

from benchmarks.conformance.providers import said
from benchmarks.conformance.providers.openai_edge import CREATED, FINGERPRINT, Json, grant, json, read, stream


async def completions(request: Request) -> Response:
    asked = await read(request, completion_create_params.CompletionCreateParamsBase)
    prompt = asked.get("prompt", "<|endoftext|>")
    prompts = prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else [prompt]
    grant(prompt if isinstance(prompt, str) else "", request)
    stops = asked.get("stop") or ()
    limit = asked.get("max_tokens", 16)
    choices: list[Json] = []
    completed = 0
    for one in (one for one in prompts for _ in range(asked.get("n") or 1)):
        words = said.text(said.TEXT, limit=limit, stops=[stops] if isinstance(stops, str) else stops)
        completed += len(words.tokens)
        before = one if asked.get("echo") and isinstance(one, str) else ""
        tokens = (*said.split(before), *words.tokens)
        logprobs = None if asked.get("logprobs") is None else _text_logprobs(tokens, asked["logprobs"])
        finish = "length" if words.cut else "stop"
        text = "".join(tokens)
        choices.append({"text": text, "index": len(choices), "logprobs": logprobs, "finish_reason": finish})
    usage = {
        "prompt_tokens": said.count(prompt),
        "completion_tokens": completed,
        "total_tokens": said.count(prompt) + completed,
    }
    common = {
        "id": f"cmpl-{said.new_id()}",
        "object": "text_completion",
        "created": CREATED,
        "model": asked["model"],
        "system_fingerprint": FINGERPRINT,
    }
    if not asked.get("stream"):
        return json({**common, "choices": choices, "usage": usage})
    include = bool((asked.get("stream_options") or {}).get("include_usage"))
    no_usage = {"usage": None} if include else {}

    def events() -> Iterator[Json]:
        for choice in choices:
            for piece in said.split(choice["text"]):
                said_now = {**choice, "text": piece, "finish_reason": None, "logprobs": None}
                yield {**common, "choices": [said_now], **no_usage}
            yield {**common, "choices": [{**choice, "text": ""}], **no_usage}
        if include:
            yield {**common, "choices": [], "usage": usage}

    return stream(events())


def _text_logprobs(tokens: Sequence[str], top: int) -> Json:
    offsets = [sum(map(len, tokens[:i])) for i in range(len(tokens))]
    likely = [{token: -0.25} for token in tokens] if top else None
    return {
        "tokens": list(tokens),
        "token_logprobs": [-0.25] * len(tokens),
        "top_logprobs": likely,
        "text_offset": offsets,
    }
