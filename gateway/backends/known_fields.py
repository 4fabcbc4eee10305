"""The parameters that each API is known to take, for operators who want all others refused.

Which those are is told by the published references. What is yet to be invented passes unless a policy says otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gateway.backends import extras
from gateway.errors import BadRequest

OPENAI = extras.SETTINGS | {
    *("audio", "chat_template", "mm_processor_kwargs", "modalities", "models", "prediction", "service_tier"),
    *("tools", "web_search_options"),
}
"""Of OpenAI, and of the servers that extend its API (``extras.SETTINGS`` says which)."""
ANTHROPIC = extras.NATIVE | {
    *("betas", "container", "context_management", "fallbacks", "inference_geo", "mcp_servers", "speed"),
    "user_profile_id",
}
"""Of Anthropic's Messages API, beta features among them."""

GEMINI = extras.GOOGLE | {"cachedContent", "labels", "serviceTier", "store"}
"""Of Google's Gemini API."""


def refuse_unknown(backend: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raises ``BadRequest`` that names the first of ``given`` that is not ``known``."""
    for name in given:
        if name not in known:
            raise refused(backend, name)


def refused(backend: str, name: str) -> BadRequest:
    return BadRequest(
        f"Backend '{backend}' is not known to support '{name[:64]}', and its policy refuses such fields "
        "('unsupported_fields: refuse'). Leave it out, or ask another model.",
        param=name[:64],
        code="unsupported_parameter",
    )
