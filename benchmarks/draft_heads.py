"""What drafts are worth by kind of text: n-grams, a small model and an EAGLE-3 head, on held-out prompts.

    python -m benchmarks.draft_heads MODEL [--head FOLDER] [--tree 6] [--draft-model MODEL] [--kinds code json]

Greedy answers to prompts of ``benchmarks.draft_prompts`` that no head is trained on, one at a time, one thread, always
so many draft tokens as there may be; a tree has fewer where the head is not sure. ``--served``: beside these, as many
as the engine chooses. Acceptance and tokens a step are exact; speed is processor time as a ratio to that without drafts
within the same repeat, as machines have other work; with ``--wall`` it is wall time, for machines that have none and
for more threads. Every answer is compared with that without drafts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from benchmarks.draft_prompts import KINDS, prompts
from benchmarks.speculation import Candidate, compare
from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.drafts.texts import encoded
from engine.server.chat_template import ChatTemplate
from engine.server.template_files import read_templates
from engine.server.tokenizer import Tokenizer
from engine.weights.source import locate
from engine.worker.runner import Runner
from engine.worker.speculative import FixedDraftLength, Speculation

Clock = Callable[[], float]


def opened(config: EngineConfig) -> Runner:
    runner = Runner(config)
    runner.warm_up()
    return runner


def candidate(
    name: str, runner: Runner, most: int | None, clock: Clock = time.process_time, *, trees: bool = False
) -> Candidate:
    """``most``: draft tokens of each step; ``None``: as many as the engine chooses."""
    speculation = runner.speculation
    if speculation is not None:
        policy = None if most is None else FixedDraftLength(most)
        size = speculation.max_drafts if most is None else most
        speculation = Speculation(speculation.proposer, size, policy=policy, trees=trees, clock=clock)
    return Candidate(name, runner, speculation, clock=clock)


def _drafting(plain: EngineConfig, kind: str, folder: Path, options: argparse.Namespace) -> EngineConfig:
    return replace(plain, speculation=kind, draft_model=folder, draft_quantization=options.draft_quantization)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--head", type=Path, help="the folder of an EAGLE-3 head")
    parser.add_argument(
        "--tree", type=int, nargs="+", default=[], help="tokens of the head's trees, beside chains"
    )
    parser.add_argument("--depth", type=int, default=4, help="of trees (default: 4)")
    parser.add_argument("--draft-model")
    parser.add_argument("--draft-quantization", help="of the head or the draft model, as the engine's flag")
    parser.add_argument("--skip", nargs="*", default=[], choices=["n-grams", "chain"])
    parser.add_argument("--prompts", type=int, default=8, help="of each kind (default: 8)")
    parser.add_argument("--answer", type=int, default=128, help="tokens of an answer (default: 128)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--drafts", type=int, nargs="+", default=[3], help="of a step (default: 3)")
    parser.add_argument("--served", action="store_true", help="as many as the engine chooses, too")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wall", action="store_true", help="wall time in place of processor time")
    options = parser.parse_args()
    clock = time.perf_counter if options.wall else time.process_time
    folder, most = locate(options.model), max(options.drafts)
    plain = EngineConfig(
        model=folder, threads=options.threads, max_model_len=1024, kv_cache_blocks=80, max_drafts=most
    )
    candidates = [candidate("off", opened(plain), 0, clock)]

    def add(name: str, config: EngineConfig, sizes: list[int]) -> None:
        runner, trees = opened(config), config.draft_tree > 0
        candidates.extend(candidate(f"{name} of {size}", runner, size, clock, trees=trees) for size in sizes)
        if options.served:
            candidates.append(candidate(f"{name}, as served", runner, None, clock, trees=trees))

    if "n-grams" not in options.skip:
        add("n-grams", replace(plain, speculation="ngram"), options.drafts)
    if options.draft_model:
        add("small model", _drafting(plain, "draft", locate(options.draft_model), options), options.drafts)
    if options.head:
        eagle = _drafting(plain, "eagle", options.head, options)
        if "chain" not in options.skip:
            add("EAGLE-3 chain", eagle, options.drafts)
        for size in options.tree:
            add("EAGLE-3 tree", replace(eagle, draft_tree=size, max_drafts=options.depth), [size])
    tokenizer = Tokenizer(folder)
    templates = read_templates(folder, tokenizer.settings)
    template = ChatTemplate(templates, tokenizer.roles) if templates else None
    params = SamplingParams(max_tokens=options.answer, temperature=0, stop_token_ids=tokenizer.stop_ids)
    print(
        "| text | drafts | accepted | tokens a step | × off (range) | other answers |\n|---|---|--:|--:|--:|--:|"
    )
    for kind in options.kinds:
        asked = [
            (encoded(text, tokenizer, template), params)
            for text in islice(prompts(kind, held_out=True), options.prompts)
        ]
        for one in candidates:
            one.rates, one.tokens, one.samples, one.differing = [], 0, 0, 0
            if one.speculation:
                one.speculation.proposed = one.speculation.accepted = 0
        for row in compare(candidates, asked, 1, options.repeats)[1:]:
            low, high = row["ratio_range"]
            print(
                f"| {kind} | {row['drafts']} | {row['acceptance']:.0%} | {row['tokens_per_step']:.2f} "
                f"| {row['ratio']:.2f} ({low:.2f}–{high:.2f}) | {row['differing_answers']} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
