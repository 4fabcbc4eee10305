"""What becomes of each parameter of a request that is translated for an API with names of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.errors import BadRequest
from gateway.types import ChatRequest, Json

DECISIVE = frozenset(
    {
        *("allowed_token_ids", "audio", "bad_words", "best_of", "echo", "frequency_penalty", "function_call"),
        *("functions", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "ignore_eos"),
        *("logit_bias", "logprobs", "min_tokens", "modalities", "moderation", "presence_penalty"),
        *("prompt_logprobs", "stop_token_ids", "structured_outputs", "suffix", "top_logprobs"),
        *("use_beam_search", "web_search_options"),
    }
)
"""The answer would be another one without them: they are refused where they have no equivalent. All others concern
speed, storage, repetition, sampling or style, or are unknown here, and are left out."""
NEUTRAL: Mapping[str, tuple[Json, ...]] = {
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "top_logprobs": (0,),
}
"""Without an equivalent, but harmless with these values."""


@dataclass(frozen=True, slots=True)
class FieldTable:
    """One API's."""

    names: Mapping[str, str]
    """Parameters whose values are sent as they are, and their paths there: ``{"top_p": "generationConfig.topP"}``."""
    translated: frozenset[str]
    """Parameters whose values are translated, each in code of its own."""
    neutral: Mapping[str, tuple[Json, ...]] = field(default_factory=lambda: NEUTRAL)

    def given(self, request: ChatRequest) -> dict[str, Json]:
        """The parameters of ``request`` that are set. Raises ``BadRequest`` for those that must not be left out."""
        params = {name: value for name, value in request.params.items() if value is not None}
        for name, value in params.items():
            if name in DECISIVE and not self._knows(name) and value not in self.neutral.get(name, ()):
                raise unsupported(name)
        return params

    def copied(self, params: Mapping[str, Json]) -> dict[str, Json]:
        """A body with those values that are sent as they are."""
        body: dict[str, Json] = {}
        for name, path in self.names.items():
            if name in params:
                put(body, path, params[name])
        return body

    def left_out(self, request: ChatRequest) -> list[str]:
        """The parameters of ``request`` that are not sent, and would mean something elsewhere."""
        return [
            name
            for name, value in request.params.items()
            if value is not None and not self._knows(name) and value not in self.neutral.get(name, ())
        ]

    def kept(self, request: ChatRequest) -> ChatRequest:
        """``request`` with what is sent of its parameters."""
        return request.having({name: value for name, value in request.params.items() if self._knows(name)})

    def _knows(self, name: str) -> bool:
        return name in self.names or name in self.translated


def put(body: dict[str, Json], path: str, value: Json) -> None:
    """``value`` at a path such as ``generationConfig.topP``."""
    *above, name = path.split(".")
    for part in above:
        body = body.setdefault(part, {})
    body[name] = value


def unsupported(name: str) -> BadRequest:
    return BadRequest(
        f"This model's provider does not support '{name}'. Leave it out, or ask another model.",
        param=name,
        code="unsupported_parameter",
    )


def invalid(where: str, what: str) -> BadRequest:
    return BadRequest(f"'{where}' {what}.", param=where, code="invalid_value")
