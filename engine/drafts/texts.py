"""The token sequences that a draft head learns from: texts, and the model's own answers to prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.errors import StartupError
from engine.offline import OfflineEngine
from engine.server.chat_template import ChatTemplate
from engine.server.template_files import read_templates
from engine.server.tokenizer import Tokenizer

_AT_ONCE = 32
"""Answers between two saves."""


@dataclass(frozen=True, slots=True)
class Sequenced:
    tokens: list[int]
    first: int
    """The first token that a draft is to guess: where the answer begins."""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows ``{"text": …}``, ``{"prompt": …}`` or ``{"tokens": [ids], "first": n}``. Raises ``StartupError``."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise StartupError(f"{path} cannot be read as JSON Lines: {error}.") from error
    if not rows:
        raise StartupError(f"{path} has no rows.")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not row.keys() & {"text", "prompt", "tokens"}:
            raise StartupError(f'{path}: row {number} has no "text", no "prompt" and no "tokens".')
    return rows


def sequences(rows: Sequence[dict[str, Any]], folder: Path, length: int) -> list[Sequenced]:
    """Of the rows that have a text or tokens: at most ``length`` tokens of each."""
    tokenizer, found = Tokenizer(folder), []
    for row in rows:
        if "tokens" in row:
            found.append(Sequenced(list(row["tokens"])[:length], int(row.get("first", 1))))
        elif "text" in row:
            found.append(Sequenced(tokenizer.encode(str(row["text"]), special=True)[:length], 1))
    return [one for one in found if len(one.tokens) > max(2, one.first)]


def answers(
    rows: Sequence[dict[str, Any]], config: EngineConfig, *, tokens: int
) -> Iterator[list[dict[str, Any]]]:
    """Rows of tokens: the prompts with the model's own greedy answers of at most ``tokens`` tokens, some at a time.

    They are, to the token, what drafts have to guess in service.
    """
    tokenizer = Tokenizer(config.model)
    templates = read_templates(config.model, tokenizer.settings)
    template = ChatTemplate(templates, tokenizer.roles) if templates else None
    params = SamplingParams(max_tokens=tokens, temperature=0, stop_token_ids=tokenizer.stop_ids)
    prompts = [encoded(str(row["prompt"]), tokenizer, template) for row in rows if "prompt" in row]
    if not prompts:
        return
    engine = OfflineEngine(config)
    for start in range(0, len(prompts), _AT_ONCE):
        part = prompts[start : start + _AT_ONCE]
        _, outputs = engine.generate([(prompt, params) for prompt in part])
        yield [
            {"tokens": prompt + output.tokens, "first": len(prompt)}
            for prompt, output in zip(part, outputs, strict=True)
        ]


def encoded(prompt: str, tokenizer: Tokenizer, template: ChatTemplate | None) -> list[int]:
    """As a conversation's first message, where the model has a chat template."""
    if template is None:
        return tokenizer.encode(prompt, special=True)
    return tokenizer.encode(template.render([{"role": "user", "content": prompt}]), special=False)
