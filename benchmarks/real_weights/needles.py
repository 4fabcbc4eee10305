"""Facts in a long text, which the model is asked for: attention reaches as far as the context does.

The haystack is this repository's documentation. It is computed once, in chunks; the questions hit the prefix cache.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.offline import OfflineEngine

DOCS = Path(__file__).resolve().parents[2] / "docs"
NEEDLES = (
    (0.02, "harbour", "4817"),
    (0.25, "library", "9052"),
    (0.5, "observatory", "3364"),
    (0.75, "bakery", "7129"),
    (0.95, "lighthouse", "6283"),
)
"""Where in the text, whose number, and the number."""
_ANSWER = 8
_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Answer:
    depth: float
    wanted: str
    said: str
    prompt: int
    """Tokens."""
    hits: int
    """Of these, from the prefix cache."""
    seconds: float

    @property
    def right(self) -> bool:
        return self.wanted in self.said

    def line(self) -> str:
        return f"| {self.prompt:,} | {self.depth:.0%} | {self.wanted} | {self.said!r} | {self.hits:,} |"


HEAD = """| tokens of the prompt | needle at | number | answer | from the prefix cache |
|--:|--:|---|---|--:|"""


def haystack(tokenizer: Tokenizer, tokens: int) -> str:
    """So many tokens of documentation, with the needles between its lines."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md")))
    encoded = tokenizer.encode(text, add_special_tokens=False)
    if len(encoded.ids) < tokens:
        raise SystemExit(f"the documentation has {len(encoded.ids)} tokens, fewer than {tokens}")
    text = text[: encoded.offsets[tokens - 1][1]]
    size = len(text)
    for depth, place, number in reversed(NEEDLES):
        at = text.rindex("\n", 0, int(depth * size))
        text = f"{text[:at]}\n\nThe secret number of the {place} is {number}.\n{text[at:]}"
    return text


def ask(folder: Path, dtype: str, tokens: int, threads: int) -> Iterator[Answer]:
    """One answer for each needle, as it comes. ``tokens``: of the haystack."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = haystack(tokenizer, tokens)
    prompts = []
    for _, place, _ in NEEDLES:
        what = f"the secret number of the {place}"
        question = f"\n\nQuestion: What is {what}?\nAnswer: {what.capitalize()} is"
        prompts.append(tokenizer.encode(text + question).ids)
    longest = max(map(len, prompts)) + _ANSWER
    config = EngineConfig(
        model=folder,
        device="cpu",
        dtype=dtype,
        threads=threads,
        max_num_seqs=1,
        max_batched_tokens=512,
        max_model_len=longest,
        block_size=_BLOCK,
        kv_cache_blocks=-(-longest // _BLOCK) + len(NEEDLES) * 8,
        cuda_graphs=False,
    )
    engine = OfflineEngine(config, prefix_caching=True)
    params = SamplingParams(max_tokens=_ANSWER, temperature=0)
    for (depth, _, number), prompt in zip(NEEDLES, prompts, strict=True):
        before, began = engine.counts.hit_tokens, time.perf_counter()
        _, answers = engine.generate([(prompt, params)])
        said = re.sub(r"\s+", " ", tokenizer.decode(answers[0].tokens)).strip()
        yield Answer(
            depth, number, said, len(prompt), engine.counts.hit_tokens - before, time.perf_counter() - began
        )
