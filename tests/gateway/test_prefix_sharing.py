"""What tenants may find of each other's prompts."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.policy.schema import Policy
from gateway.prefix_sharing import alias, sharing
from gateway.types import ChatRequest

SUPPORT = "You are the support desk of Example Corp. Be brief."


def policy(**model: Any) -> Policy:
    return Policy.model_validate(
        {
            "version": 1,
            "backends": {"up": {"kind": "engine"}},
            "models": {"m": {"targets": ({"backend": "up", "model": "x"},), **model}},
            "shared_prompts": {"support": SUPPORT},
        }
    )


def chat(*messages: tuple[str, Any]) -> ChatRequest:
    return ChatRequest("m", messages=tuple({"role": role, "content": text} for role, text in messages))


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        (chat(("system", SUPPORT), ("user", "Hello")), "system"),
        (chat(("developer", SUPPORT), ("user", "Hello")), "system"),
        (chat(("system", SUPPORT + " The password is 42."), ("user", "Hello")), "none"),
        (chat(("user", SUPPORT)), "none"),
        (chat(("user", "Hello"), ("system", SUPPORT)), "none"),
        (chat(("system", [{"type": "text", "text": SUPPORT}])), "none"),
        (ChatRequest("m", prompt=SUPPORT), "none"),
    ],
)
def test_a_system_prompt_is_shared_only_if_it_is_one_that_the_policy_names(
    request_: ChatRequest, found: str
) -> None:
    assert sharing(policy(prefix_sharing="system"), "m", request_) == found
    assert sharing(policy(), "m", request_) == "none"
    assert sharing(policy(prefix_sharing="all"), "m", request_) == "all"


def test_an_alias_tells_tenants_apart_and_nothing_else() -> None:
    assert alias("acme") == alias("acme") != alias("globex")
    assert len(alias("a" * 1000)) == 16
    assert alias("\ud800")
