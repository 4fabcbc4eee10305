"""A guard's ``judge`` beside labelled texts: how often a small chat model's verdict is the label.

Texts are those of ``../shared/data``, an equal number of either label from each source, where there are as many.
The verdict is the gateway's own, from ``format: json``; a refusal, or what is no JSON, is no verdict.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

from benchmarks.real_models.answers import Answers
from gateway.guards.evaluation import ModelJudge, Origin, Unscanned
from gateway.policy.schema import InjectionGuard, Policy, ToxicityGuard
from gateway.policy.schema.judges import Harm
from gateway.types import Call, Chunk, Chunks

EACH = 25
"""Texts of a source and label."""
LONGEST = 1_000
"""Characters of a text; longer ones are left out, since a cut may lose what the label is about."""
MAX_TOKENS = 96
JUDGE = {"model": "judge", "format": "json", "unsure": [0, 1], "per_minute": 10**9, "max_tokens": MAX_TOKENS}
POLICY = {
    "version": 1,
    "backends": {"engine": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}},
    "models": {"judge": {"targets": [{"backend": "engine", "model": "judge"}]}},
    "keys": [],
}


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    guard: str
    """``toxicity`` or ``injection``."""
    source: str
    bad: bool
    origin: Origin


def texts(data: Path, each: int = EACH) -> list[Text]:
    """The same ones each time. Raises ``OSError`` where the data are not."""
    found: dict[tuple[str, str, bool], list[Text]] = {}
    for one in _labelled(data):
        if len(one.text) <= LONGEST:
            found.setdefault((one.guard, one.source, one.bad), []).append(one)
    drawn = {name: sorted(rows, key=_lot)[:each] for name, rows in found.items()}
    return [one for name in sorted(drawn) for one in drawn[name]]


def _labelled(data: Path) -> Iterable[Text]:
    for row in _rows(data / "xstest.jsonl"):
        yield Text(row["text"], "toxicity", "XSTest", row["label"] == "unsafe", "user")
    for row in _rows(data / "hatecheck.jsonl"):
        yield Text(row["text"], "toxicity", "HateCheck", row["label"] == "hateful", "user")
    for row in _rows(data / "moderation.jsonl"):
        bad = any(row.get(name) for name in ("S", "H", "V", "HR", "SH", "S3", "H2", "V2"))
        yield Text(row["text"], "toxicity", "moderation", bad, "user")
    for row in _rows(data / "broad" / "toxicity.jsonl"):
        if row["language"] in ("de", "en"):
            yield Text(
                row["text"], "toxicity", f"{row['source']}, {row['language']}", bool(row["toxic"]), "user"
            )
    for row in _rows(data / "injection.jsonl"):
        source = "trigger words" if not row["injection"] else "attacks"
        yield Text(row["text"], "injection", source, bool(row["injection"]), "user")
    for row in _rows(data / "broad" / "prompts.jsonl"):
        if row["kind"] in ("user", "tool"):
            source = "everyday prompts" if row["kind"] == "user" else "tools' results"
            yield Text(row["text"], "injection", source, bool(row["injection"]), row["kind"])


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _lot(one: Text) -> str:
    return sha256(one.text.encode()).hexdigest()


async def verdicts(chosen: list[Text], answers: Answers) -> list[bool | None]:
    """Whether the judge calls each harmful; None where it gave no verdict."""
    policy = Policy.model_validate(POLICY)

    async def handler(call: Call) -> Chunks:
        messages = call.request.messages or ()
        answer = await answers.ask(messages, call.request.params["max_tokens"])
        yield Chunk(delta={"content": answer.text}, finish_reason=answer.finish_reason)

    judges = {
        "toxicity": ModelJudge(
            ToxicityGuard.model_validate({"kind": "toxicity", "judge": JUDGE}).judge,
            policy,
            handler,
            wanted={*get_args(Harm)} - {"prompt_injection"},
        ),
        "injection": ModelJudge(
            InjectionGuard.model_validate({"kind": "injection", "judge": JUDGE}).judge,
            policy,
            handler,
            wanted={"prompt_injection"},
        ),
    }

    async def verdict(one: Text) -> bool | None:
        try:
            (found,) = await judges[one.guard].judge([one.text], one.origin)
        except Unscanned:
            return None
        return bool(found.findings)

    return list(await asyncio.gather(*map(verdict, chosen)))
