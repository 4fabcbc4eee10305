"""The texts that models are compared on.

``prompts.jsonl`` has 200: 50 pieces of this repository's code (``source`` names the file), and 50 each of English
prose, German and Chinese, written for this comparison. The four take turns, so that a part of them has all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

PROMPTS = Path(__file__).parent / "prompts.jsonl"


@dataclass(frozen=True, slots=True)
class Text:
    number: int
    stratum: str
    text: str
    tokens: list[int]
    """At least two: all but the first are predicted."""


def read(folder: Path, count: int, length: int) -> list[Text]:
    """The first ``count``, in the tokens of the model in ``folder``, cut to ``length`` of them."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = []
    for number, line in enumerate(PROMPTS.read_text(encoding="utf-8").splitlines()[:count]):
        row = json.loads(line)
        found.append(Text(number, row["stratum"], row["text"], tokenizer.encode(row["text"]).ids[:length]))
    return found
