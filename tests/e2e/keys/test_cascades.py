"""What the keys of ``cascade`` do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.keys.harness import Row, answerer, on, text
from tests.fakes import completion, reply

pytestmark = pytest.mark.anyio

SORRY = "I'm sorry, but I can't help with that."
REFUSES = {"backends": {"shy": {"kind": "fake", "script": [{"reply": SORRY}]}}, "models": {"shy": on("shy")}}
STEP = "models.<name>.cascade[]"
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


def unsure(words: str = "perhaps") -> Any:
    whole = completion(words)
    whole["choices"][0]["logprobs"] = {"content": [{"token": words, "logprob": -3.0, "top_logprobs": []}]}
    return reply(whole)


def row(*steps: dict[str, Any]) -> dict[str, Any]:
    """A cascade of these steps and, last, ``other``."""
    return {**REFUSES, "models": {**REFUSES["models"], "x": {"cascade": [*steps, {"model": "other"}]}}}


def begins(below: float) -> dict[str, Any]:
    return {"complexity": {"below": below}}


ROWS = [
    Row(
        "models.<name>.cascade",
        row({"model": "shy"}),
        text(model="x"),
        "from the other",
        SORRY,
        {**REFUSES, "models": {**REFUSES["models"], "x": on("shy")}},
    ),
    Row(f"{STEP}.model", row({"model": "m"}), answerer(model="x"), "m", "up", row({"model": "up"})),
    Row(
        f"{STEP}.when",
        row({"model": "m", "when": begins(0.0)}),
        answerer(model="x"),
        "other",
        "m",
        row({"model": "m"}),
    ),
    Row(
        f"{STEP}.when.complexity",
        row({"model": "m", "when": begins(0.0)}, {"model": "up", "when": begins(1.0)}),
        answerer(model="x"),
        "up",
        "m",
        row({"model": "m", "when": begins(1.0)}, {"model": "up"}),
    ),
    Row(
        f"{STEP}.when.complexity.below",
        row({"model": "m", "when": begins(1.0)}),
        answerer(model="x"),
        "m",
        "other",
        row({"model": "m", "when": begins(0.0)}),
    ),
    Row(
        f"{STEP}.escalate",
        row({"model": "shy", "escalate": {"on_refusal": False}}),
        answerer(model="x"),
        "shy",
        "other",
        row({"model": "shy"}),
    ),
    Row(
        f"{STEP}.escalate.on_refusal",
        row({"model": "shy", "escalate": {"on_refusal": False}}),
        text(model="x"),
        SORRY,
        "from the other",
        row({"model": "shy", "escalate": {"on_refusal": True}}),
    ),
    Row(
        f"{STEP}.escalate.mean_logprob_below",
        row({"model": "up", "escalate": {"mean_logprob_below": -1.0}}),
        answerer(model="x"),
        "other",
        "up",
        row({"model": "up"}),
        up=(unsure(),),
    ),
    Row(
        f"{STEP}.escalate.on_invalid_schema",
        row({"model": "up", "escalate": {"on_invalid_schema": False}}),
        answerer(model="x", response_format=SCHEMA),
        "up",
        "other",
        row({"model": "up"}),
        up=(reply(completion("no JSON at all")),),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_it_does_what_it_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)
