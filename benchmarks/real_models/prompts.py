"""The prompts, and what is right: 300 of coding and 300 of other things, written for this project.

A row's ``check`` says how an answer is judged (``checks.py``), its ``solution`` is an answer that passes. Nothing was
tuned on them, and neither model was asked before all were written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SETS = ("coding", "general")


@dataclass(frozen=True, slots=True)
class Prompt:
    id: str
    kind: str
    language: str
    prompt: str
    max_tokens: int
    check: Mapping[str, Any]
    solution: str

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}]


def read(name: str, folder: Path = FOLDER) -> list[Prompt]:
    """In an order by lot, so that the first ones are of all kinds."""
    with (folder / f"{name}.jsonl").open(encoding="utf-8") as lines:
        prompts = [Prompt(**json.loads(line)) for line in lines]
    return sorted(prompts, key=lambda one: sha256(one.prompt.encode()).digest())
