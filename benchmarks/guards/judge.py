"""How many texts reach a toxicity guard's judge, by the lower bound of ``judge.unsure``, with the fast check alone.

Unsafe requests are XSTest's, on which the check was trained; everyday prompts are ``broad/prompts.jsonl``'s users'.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.guards.report import Row
from gateway.guards.evaluation import Origin, Verdict, toxicity
from gateway.policy.schema import ToxicityGuard
from gateway.sidecar.client import NoSidecar

BOUNDS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.0)
EVERYDAY = 600
LONGEST = 1_000
"""Characters of a prompt."""


class _Silent:
    """A judge that is there, and not asked."""

    async def judge(self, texts: Sequence[str], origin: Origin, asker: object = None) -> list[Verdict]:
        raise NotImplementedError


def rows(data: Path) -> list[Row]:
    unsafe = [row["text"] for row in _read(data / "xstest.jsonl") if row["label"] == "unsafe"]
    prompts = _read(data / "broad" / "prompts.jsonl")
    everyday = [row["text"][:LONGEST] for row in prompts if row["kind"] == "user" and not row["injection"]]
    found = []
    for bound in BOUNDS:
        for name, texts in (("unsafe requests", unsafe), ("everyday prompts", everyday[:EVERYDAY])):
            found.append(Row(f"asked of {name}, unsure from {bound:g}", _asked(bound, texts), ""))
    return found


def _asked(bound: float, texts: Sequence[str]) -> float:
    guard = ToxicityGuard.model_validate(
        {"kind": "toxicity", "checks": ["fast"], "judge": {"model": "judge", "unsure": [bound, 1.0]}}
    )
    scanner = toxicity(guard, NoSidecar(), _Silent())
    return sum(scanner.quick(text, "user") is None for text in texts) / len(texts)


def _read(path: Path) -> list[dict[str, str]]:
    # Not "splitlines", which cuts at U+2028, too.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
