"""The texts that models are compared on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from engine.errors import ModelUnavailable

LENGTH = 512
"""Tokens of a text that are computed together, each seeing those before it."""


@dataclass(frozen=True, slots=True)
class Sample:
    tokens: list[int]
    """All but the first are predicted."""
    stratum: str = "text"
    answer: int | None = None
    """Where the answer begins that a greedy reader of what is before it should find, to the end."""


def exam(folder: Path, count: int) -> list[Sample]:
    """Held-out conversations of the demo model. All their tokens count: answers alone it is too sure of to differ."""
    from engine.demo import corpus, tokens

    encoder = tokens.Encoder(Tokenizer.from_file(str(folder / "tokenizer.json")))
    return [Sample(encoder.encode(one)[0], "demo", len(encoder.prompt(one))) for one in corpus.exam(0, count)]


def read_texts(folder: Path, path: Path) -> list[Sample]:
    """Of a ``.jsonl`` file the rows ``{"text", "stratum", "answer"}``, of which the last two may be left out; of
    another file its text, cut into pieces. Raises ``ModelUnavailable``."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelUnavailable(f"--text {path} cannot be read: {error}.") from error
    if path.suffix == ".jsonl":
        samples = list(_rows(tokenizer, path, text))
    else:
        tokens = tokenizer.encode(text).ids
        samples = [Sample(tokens[i : i + LENGTH]) for i in range(0, len(tokens), LENGTH)]
    samples = [sample for sample in samples if len(sample.tokens) > 1]
    if not samples:
        raise ModelUnavailable(f"--text {path} has fewer than two tokens.")
    return samples


def _rows(tokenizer: Tokenizer, path: Path, text: str) -> Iterator[Sample]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            prompt, answer, stratum = row["text"], row.get("answer"), str(row.get("stratum", "text"))
            tokens = tokenizer.encode(prompt).ids
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ModelUnavailable(f'{path}:{number} is not an object with "text": {error}.') from error
        if answer is None:
            yield Sample(tokens[:LENGTH], stratum)
        else:
            # As an answer is generated: after the prompt's own tokens.
            found = tokenizer.encode(str(answer), add_special_tokens=False).ids
            yield Sample(tokens + found, stratum, len(tokens))
