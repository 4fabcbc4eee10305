"""An arm's system prompt in the inner form of each dialect."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.experiments.system_prompt import with_prompt
from gateway.policy.schema import PromptPlace
from gateway.types import ChatRequest
from gateway.wire.anthropic.body_to_request import read_request as of_anthropic
from gateway.wire.gemini.body_to_request import read_request as of_gemini

USER = {"role": "user", "content": "Hi"}
METADATA = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli;"}


def canonical(request: ChatRequest) -> list[Any]:
    return [one["content"] for one in request.messages or () if one["role"] in ("system", "developer")]


@pytest.mark.parametrize(
    ("written", "before", "instead"),
    [
        ([], ["Be brief."], ["Be brief."]),
        ([{"role": "system", "content": "Sell."}], ["Be brief.\n\nSell."], ["Be brief."]),
        ([{"role": "developer", "content": "Sell."}], ["Be brief.\n\nSell."], ["Be brief."]),
        (
            [{"role": "system", "content": [{"type": "text", "text": "Sell."}]}],
            [[{"type": "text", "text": "Be brief.\n\n"}, {"type": "text", "text": "Sell."}]],
            ["Be brief."],
        ),
        ([{"role": "system", "content": ""}], ["Be brief."], ["Be brief."]),
        (
            [{"role": "system", "content": "Sell."}, {"role": "developer", "content": "Now."}],
            ["Be brief.\n\nSell.", "Now."],
            ["Be brief."],
        ),
    ],
)
def test_it_goes_before_what_the_caller_wrote_or_in_its_place(
    written: list[Any], before: list[Any], instead: list[Any]
) -> None:
    request = ChatRequest("m", (*written, USER))
    assert canonical(with_prompt(request, "Be brief.", "before")) == before
    assert canonical(with_prompt(request, "Be brief.", "instead")) == instead
    assert with_prompt(request, "Be brief.", "before").messages[-1] == USER  # type: ignore[index]


@pytest.mark.parametrize(
    ("system", "place", "body", "message"),
    [
        (None, "before", "Be brief.", "Be brief."),
        ("Sell.", "before", "Be brief.\n\nSell.", "Be brief.\n\nSell."),
        ("Sell.", "instead", "Be brief.", "Be brief."),
        (
            [METADATA, {"type": "text", "text": "Sell.", "cache_control": {"type": "ephemeral"}}],
            "before",
            [
                METADATA,
                {"type": "text", "text": "Be brief.\n\n"},
                {"type": "text", "text": "Sell.", "cache_control": {"type": "ephemeral"}},
            ],
            None,
        ),
        (
            [METADATA, {"type": "text", "text": "Sell."}],
            "instead",
            [METADATA, {"type": "text", "text": "Be brief."}],
            None,
        ),
    ],
)
def test_anthropics_system(system: Any, place: PromptPlace, body: Any, message: str | None) -> None:
    asked: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [USER]}
    request = of_anthropic(orjson.dumps(asked | ({"system": system} if system is not None else {})))
    changed = with_prompt(request, "Be brief.", place)
    assert changed.native is not None and changed.native.body["system"] == body
    [said] = canonical(changed)
    assert "Be brief." in said and ("Sell." in said) == (system is not None and place == "before")
    assert message is None or said == message
    assert (changed.params, changed.model) == (request.params, request.model)


@pytest.mark.parametrize("name", ["systemInstruction", "system_instruction"])
def test_googles_system_instruction(name: str) -> None:
    contents = [{"role": "user", "parts": [{"text": "Hi"}]}]
    own = {name: {"parts": [{"text": "Sell."}]}}
    asked = of_gemini(orjson.dumps({"contents": contents, **own}), model="m", stream=False)
    changed = with_prompt(asked, "Be brief.", "before")
    assert changed.native is not None
    assert changed.native.body["systemInstruction"]["parts"] == [{"text": "Be brief.\n\n"}, {"text": "Sell."}]
    assert "".join(canonical(changed)).startswith("Be brief.")
    replaced = with_prompt(asked, "Be brief.", "instead")
    assert canonical(replaced) == ["Be brief."]
    none = of_gemini(orjson.dumps({"contents": contents}), model="m", stream=False)
    assert canonical(with_prompt(none, "Be brief.", "before")) == ["Be brief."]
