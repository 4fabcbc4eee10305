"""What a schema costs in tokens/s, and what the drafts of grammars give back.

    python -m benchmarks.structured_cost --model qwen2.5-coder-0.5b-instruct-q4_k_m.gguf [--every 10] [--repeats 3]

Rows of ``benchmarks/tool_calls/schemas.jsonl`` are answered at temperature 0, one after the other, in turns: with masks
alone, with masks and drafts, and as free text of the same number of tokens. Times are between an answer's first token
and its last. On a machine that others use as well, the processor's time is the figure to look at.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.tool_calls.ask import rows
from engine.config import EngineConfig
from engine.core.sampling_params import Grammar, SamplingParams
from engine.grammar.schema import prepared
from engine.offline import OfflineEngine
from engine.server.tokenizer import Tokenizer
from engine.weights.gguf_folder import as_folder

MODES = ("text", "masks", "masks and drafts")


class Measured:
    """Of one mode: tokens and steps, and seconds by both clocks, of all answers."""

    def __init__(self) -> None:
        self.tokens = self.steps = 0
        self.wall = self.processor = 0.0


def answer(engine: OfflineEngine, prompt: list[int], params: SamplingParams, into: Measured) -> list[int]:
    # The prompt's blocks, and the grammar's first states, are there before the clocks start.
    engine.generate([(prompt, SamplingParams(max_tokens=1, grammar=params.grammar, temperature=0))])
    steps, began = engine.counts.steps, time.process_time()
    seconds, [output] = engine.generate([(prompt, params)])
    into.processor += time.process_time() - began
    into.wall += seconds
    into.tokens += len(output.tokens)
    into.steps += engine.counts.steps - steps
    return output.tokens


def compare(
    engine: OfflineEngine, tokenizer: Tokenizer, chosen: list[dict[str, Any]], repeats: int
) -> list[dict[str, Measured]]:
    """By repeat and mode. Raises ``RuntimeError`` if drafts change an answer."""
    grammars = engine.runner.grammars
    if grammars is None:
        raise RuntimeError("this model has no tokenizer.json")
    propose, found = grammars.propose, []
    for _ in range(repeats):
        measured = {mode: Measured() for mode in MODES}
        for row in chosen:
            schema = json.dumps(row["schema"], ensure_ascii=False)
            text = f"Answer with JSON of this schema: {schema}\n\n{row['text']}"
            prompt = tokenizer.encode(
                f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", special=False
            )
            grammar = Grammar("json_schema", json.dumps(prepared(row["schema"])))
            stops = tokenizer.stop_ids
            params = SamplingParams(max_tokens=96, temperature=0, grammar=grammar, stop_token_ids=stops)
            grammars.propose = lambda *_: {}
            alone = answer(engine, prompt, params, measured["masks"])
            grammars.propose = propose
            if answer(engine, prompt, params, measured["masks and drafts"]) != alone:
                raise RuntimeError(f"with drafts another answer: {row['text']}")
            answer(engine, prompt, SamplingParams(max_tokens=len(alone), temperature=0), measured["text"])
        found.append(measured)
    return found


def table(found: list[dict[str, Measured]]) -> str:
    lines = [
        "| | tokens | steps | tokens/s | tokens a second of the processor | beside text |",
        "|---|---|---|---|---|---|",
    ]
    for mode in MODES:
        each = [measured[mode] for measured in found]
        wall = statistics.median(one.tokens / one.wall for one in each)
        busy = statistics.median(one.tokens / one.processor for one in each)
        ratio = statistics.median(
            (one[mode].tokens / one[mode].processor) / (one["text"].tokens / one["text"].processor)
            for one in found
        )
        lines.append(
            f"| {mode} | {each[0].tokens} | {each[0].steps} | {wall:.1f} | {busy:.1f} | {ratio:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--every", type=int, default=10, help="ask every n-th row only")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    folder = as_folder(options.model) if options.model.is_file() else options.model
    engine = OfflineEngine(
        EngineConfig(model=folder, max_model_len=2048, threads=options.threads), prefix_caching=True
    )
    chosen = rows("schemas.jsonl")[:: options.every]
    found = compare(engine, Tokenizer(folder), chosen, options.repeats)
    print(f"{options.model.stem}, {len(chosen)} answers\n\n{table(found)}")


if __name__ == "__main__":
    main()
