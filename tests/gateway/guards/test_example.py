"""The example policy, and the defaults, leave everyday technical answers as they are."""

from __future__ import annotations

import re
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.guards.guards import Guards
from gateway.guards.scanners.factory import build_scanners
from gateway.observe.metrics import Metrics
from gateway.policy.loader import load_policy
from gateway.policy.schema import Policy
from gateway.sidecar.client import NoSidecar
from gateway.stages.guard_input import guard_input
from gateway.stages.guard_output import guard_output
from gateway.types import Call, Chunk, Chunks
from tests.fakes import a_call, policy
from tests.gateway.guards.technical_answers import ANSWERS
from tests.scanners import background_scans_of

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).resolve().parents[3] / "policies" / "examples" / "guards"


@pytest.fixture(scope="module")
def example() -> Policy:
    """Without the guards whose models are the sidecar's: these are measured, see docs/guards.md."""
    whole = load_policy(FOLDER, {"OPENAI_API_KEY": "sk-test"}).policy
    assert whole.guards["injection"].action == "flag"
    kept = {name: guard for name, guard in whole.guards.items() if name not in ("injection", "toxicity")}
    assert set(kept) == {"pii", "numbers", "secrets", "projects", "size"}
    return whole.model_copy(update={"guards": kept})


async def echoed(rules: Policy, text: str) -> str:
    """What a caller gets who has ``text`` repeated."""

    async def model(call: Call) -> Chunks:
        assert call.request.messages is not None
        heard = call.request.messages[0]["content"]
        for start in range(0, len(heard), 11):
            yield Chunk(0, {"content": heard[start : start + 11]})
        yield Chunk(0, {}, "stop")

    guards, metrics = Guards(rules, build_scanners(rules, NoSidecar(), {})), Metrics()
    flags = background_scans_of(metrics)
    handle = guard_input(guards, flags, metrics)(guard_output(guards, flags, metrics)(model))
    call = a_call(messages=({"role": "user", "content": text},), stream=True)
    call.principal = replace(call.principal, tenant="acme")
    async with aclosing(handle(call)) as chunks:
        return "".join([(chunk.delta or {}).get("content") or "" async for chunk in chunks])


@pytest.mark.parametrize("text", ANSWERS, ids=range(len(ANSWERS)))
async def test_technical_answers_pass_unharmed(example: Policy, text: str) -> None:
    assert await echoed(example, text) == text


@pytest.mark.parametrize("text", ANSWERS, ids=range(len(ANSWERS)))
async def test_a_guard_of_answers_by_default_changes_none_but_addresses_of_e_mail(text: str) -> None:
    rules = policy(guards={"pii": {"on": ["output"]}, "secrets": {"on": ["output"]}})
    expected = re.sub(r"[a-z.+]+@(?:sub\.)?example\.(?:com|org)", "[EMAIL_ADDRESS]", text)
    assert await echoed(rules, text) == expected


async def test_the_example_still_guards(example: Policy) -> None:
    said = await echoed(
        example, "Pay with 4556 7375 8689 9855, and write to ann@gmail.com about Project Heron."
    )
    # The caller's own number went upstream masked and came back; what the model makes of it is not scanned twice.
    assert "ann@gmail.com" in said
    assert "[WORD_0]" in said
