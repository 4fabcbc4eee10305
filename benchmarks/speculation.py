"""What speculation gains: the demo model with its draft, on questions held out of its training, and a large shape.

    python -m benchmarks.speculation [--questions 32] [--repeats 5] [--layers 28] [--dtype float32] [--json FILE]

The first table: the demo pair in float32 on one thread, greedy and at temperature 0.7, that many requests at a time.
``draft`` and ``ngram`` choose their lengths by what they measure, as they do in service; ``draft, always`` drafts all
it may, to show what choosing is worth. The second: Qwen3-0.6B's shape with random weights and an oracle in the
draft's place, which knows the greedy answer and tells each token rightly with a given chance. Its drafts cost nothing,
so the ratio is what checking them leaves: no draft can gain more at that acceptance.

All candidates of a row are asked in turn within each repeat, after one round that is not counted; tokens a second are
medians over the repeats, ratios medians of each repeat's ratio to ``off``. The time is that of the whole loop without
its processes: scheduling, prompts, sampling and speculation. Every answer is compared with that of ``off``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from benchmarks.engine_cpu.shape import write_folder
from engine.config import EngineConfig
from engine.core.block_pool import BlockPool
from engine.core.plan import Plan
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.demo import corpus, tokens
from engine.weights.source import locate
from engine.worker.runner import Runner
from engine.worker.speculative import FixedDraftLength, Speculation

Requests = list[tuple[list[int], SamplingParams]]
MOST = 4


@dataclass
class Candidate:
    """A runner, and how it drafts. Figures of all repeats."""

    name: str
    runner: Runner
    speculation: Speculation | None = None
    rates: list[float] = field(default_factory=list)
    tokens: int = 0
    samples: int = 0
    """Times that a request drew: what it gains beyond one token each was drafted."""
    differing: int = 0
    clock: Callable[[], float] = time.perf_counter

    def serve(self, requests: Requests, batch: int) -> dict[int, list[int]]:
        self.runner.speculation = self.speculation
        scheduler = Scheduler(
            BlockPool(self.runner.cache.blocks),
            block_size=self.runner.block_size,
            max_num_seqs=batch,
            max_batched_tokens=512,
            max_model_len=self.runner.max_model_len,
            max_waiting=len(requests),
            max_drafts=self.speculation.max_drafts if self.speculation else 0,
            # A repeat must not find what the last one left.
            prefix_caching=False,
            windows=self.runner.windows,
        )
        answers: dict[int, list[int]] = {number: [] for number in range(len(requests))}
        began = self.clock()
        for number, (prompt, params) in enumerate(requests):
            scheduler.submit(Request(number, prompt, params))
        while not scheduler.idle:
            plan = scheduler.schedule()
            for output in scheduler.update(plan, self.runner.execute(plan)):
                answers[output.request_id] += output.tokens
                self.samples += 1
        seconds = self.clock() - began
        count = sum(map(len, answers.values()))
        self.tokens += count
        self.rates.append(count / seconds)
        # The next round's requests have the same numbers.
        self.runner.execute(Plan(ended=list(answers)))
        return answers


class Oracle:
    """Knows the answers, and tells each token rightly with the chance ``acceptance``."""

    source = "oracle"
    block_bytes = 0

    def __init__(
        self, prompts: Sequence[list[int]], answers: Mapping[int, list[int]], acceptance: float
    ) -> None:
        self._texts = {number: prompts[number] + answer for number, answer in answers.items()}
        self._acceptance = acceptance
        self._random = Random(0)
        self._lengths: dict[int, int] = {}

    def allocate(self, blocks: int) -> None:
        pass

    def begin(self, plan: Plan) -> None:
        pass

    def look(
        self, plan: Plan, tokens: Mapping[int, Sequence[int]], limits: Mapping[int, int]
    ) -> dict[int, int]:
        self._lengths = {
            scheduled.request_id: len(scheduled.history) + len(tokens[scheduled.request_id])
            for scheduled in plan.requests
            if scheduled.request_id in limits
        }
        return dict(limits)

    def prepare(self, lengths: Mapping[int, int]) -> dict[int, int]:
        return dict(lengths)

    def propose(self, lengths: Mapping[int, int]) -> dict[int, list[int]]:
        return {number: self._tell(number, length) for number, length in lengths.items()}

    def forget(self, request_ids: Sequence[int]) -> None:
        pass

    def _tell(self, number: int, count: int) -> list[int]:
        start = self._lengths[number]
        return [
            token if self._random.random() < self._acceptance else token ^ 1
            for token in self._texts[number][start : start + count]
        ]


def compare(
    candidates: list[Candidate], requests: Requests, batch: int, repeats: int
) -> list[dict[str, Any]]:
    """The first candidate is what the others are compared with."""
    for repeat in range(repeats + 1):
        said: dict[int, list[int]] = {}
        for candidate in candidates:
            answers = candidate.serve(requests, batch)
            said = said or answers
            candidate.differing += sum(answers[number] != said[number] for number in said)
        if repeat == 0:
            for candidate in candidates:
                candidate.rates, candidate.tokens, candidate.samples = [], 0, 0
                if candidate.speculation:
                    candidate.speculation.proposed = candidate.speculation.accepted = 0
    return [summary(candidate, candidates[0], batch) for candidate in candidates]


def summary(candidate: Candidate, first: Candidate, batch: int) -> dict[str, Any]:
    speculation = candidate.speculation
    ratios = [rate / other for rate, other in zip(candidate.rates, first.rates, strict=True)]
    return {
        "drafts": candidate.name,
        "batch": batch,
        "tokens_per_second": statistics.median(candidate.rates),
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "acceptance": speculation.acceptance if speculation else None,
        "proposed_per_step": speculation.proposed / candidate.samples if speculation else 0.0,
        "tokens_per_step": candidate.tokens / candidate.samples,
        "differing_answers": candidate.differing,
    }


def demo(count: int, repeats: int, batches: Sequence[int]) -> list[dict[str, Any]]:
    folder = locate("demo")
    plain = EngineConfig(model=folder, dtype="float32", threads=1, kv_cache_blocks=2048, max_drafts=MOST)
    drafting = replace(plain, speculation="draft", draft_model=folder.parent / "draft")
    off, ngram, draft = Runner(plain), Runner(replace(plain, speculation="ngram")), Runner(drafting)
    for runner in (off, ngram, draft):
        runner.warm_up()
    lookup, small = ngram.speculation.proposer, draft.speculation.proposer
    encoder = tokens.Encoder(Tokenizer.from_file(str(folder / "tokenizer.json")))
    prompts = [encoder.prompt(conversation) for conversation in corpus.exam(0, count)]
    stop = frozenset({encoder.ids[tokens.END]})
    rows = []
    for temperature in (0.0, 0.7):
        requests = [
            (prompt, SamplingParams(max_tokens=128, temperature=temperature, seed=seed, stop_token_ids=stop))
            for seed, prompt in enumerate(prompts)
        ]
        for batch in batches:
            # Nothing is known of their costs yet.
            candidates = [
                Candidate("off", off),
                Candidate("ngram", ngram, Speculation(lookup, MOST)),
                Candidate("draft", draft, Speculation(small, MOST)),
                Candidate("draft, always", draft, Speculation(small, MOST, policy=FixedDraftLength(MOST))),
            ]
            for row in compare(candidates, requests, batch, repeats):
                rows.append({"temperature": temperature, **row})
                show("{temperature:.1f} | {batch:5} |", rows[-1])
    return rows


def by_acceptance(
    layers: int, dtype: str, repeats: int, batches: Sequence[int], answer: int, folder: Path
) -> list[dict[str, Any]]:
    config = EngineConfig(
        model=write_folder(folder, layers), dtype=dtype, kv_cache_blocks=512, max_drafts=MOST
    )
    runner = Runner(config)
    runner.warm_up()
    random, rows = Random(0), []
    for batch in batches:
        prompts = [[random.randrange(1000, 100_000) for _ in range(32)] for _ in range(batch)]
        requests = [(prompt, SamplingParams(max_tokens=answer, temperature=0)) for prompt in prompts]
        answers = Candidate("off", runner).serve(requests, batch)
        candidates = [Candidate("off", runner)]
        for acceptance in (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0):
            oracle = Oracle(prompts, answers, acceptance)
            fixed = Speculation(oracle, MOST, policy=FixedDraftLength(MOST))
            candidates.append(Candidate(f"{acceptance:.1f}, always", runner, fixed))
            candidates.append(Candidate(f"{acceptance:.1f}", runner, Speculation(oracle, MOST)))
        for row in compare(candidates, requests, batch, repeats):
            rows.append(row)
            show("{batch:5} |", row)
    return rows


def show(start: str, row: dict[str, Any]) -> None:
    acceptance = "-" if row["acceptance"] is None else f"{row['acceptance']:.2f}"
    print(
        "| "
        + start.format(**row)
        + f" {row['drafts']:13} | {row['tokens_per_second']:8.1f} | {row['ratio']:.2f} "
        f"({row['ratio_range'][0]:.2f}–{row['ratio_range'][1]:.2f}) | {acceptance} | {row['proposed_per_step']:.2f} "
        f"| {row['tokens_per_step']:.2f} | {row['differing_answers']} |",
        flush=True,
    )


COLUMNS = (
    "batch | drafts | tokens/s | × off (range) | acceptance | drafts a step | tokens a step | other answers |"
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--layers", type=int, default=28, help="of the large shape; 0 leaves its table out")
    parser.add_argument("--dtype", default="float32", help="of the large shape")
    parser.add_argument("--answer", type=int, default=48, help="tokens of its answers")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    print("The demo model and its draft\n\n| temperature | " + COLUMNS)
    print("|---" * 9 + "|")
    found["demo"] = demo(options.questions, options.repeats, options.batches)
    if options.layers:
        print(
            f"\nQwen3-0.6B's shape, {options.layers} layers, {options.dtype}, by the oracle's chance\n\n| {COLUMNS}"
        )
        print("|---" * 8 + "|")
        with tempfile.TemporaryDirectory() as folder:
            found["acceptance"] = by_acceptance(
                options.layers,
                options.dtype,
                options.repeats,
                options.batches,
                options.answer,
                Path(folder) / "model",
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
