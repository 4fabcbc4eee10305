"""What drafts are worth by kind of text: n-grams, a small model and an EAGLE-3 head, on held-out prompts.

    python -m benchmarks.draft_heads MODEL [--head FOLDER] [--tree 8] [--draft-model MODEL] [--kinds code json]

Greedy answers to prompts of ``benchmarks.draft_prompts`` that no head is trained on, one at a time, one thread, always
so many draft tokens as there may be; a tree has fewer where the head is not sure. Acceptance and tokens a step are
exact; speed is processor time as a ratio to that without drafts within the same repeat, as machines have other work.
Every answer is compared with that without drafts.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

from benchmarks.draft_prompts import KINDS, prompts
from benchmarks.speculation import MOST, Candidate, compare
from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.drafts.texts import encoded
from engine.server.chat_template import ChatTemplate
from engine.server.template_files import read_templates
from engine.server.tokenizer import Tokenizer
from engine.weights.source import locate
from engine.worker.runner import Runner
from engine.worker.speculative import FixedDraftLength, Speculation


def candidate(name: str, config: EngineConfig, most: int) -> Candidate:
    runner = Runner(config)
    runner.warm_up()
    speculation = runner.speculation
    if speculation is not None:
        policy = FixedDraftLength(most)
        speculation = Speculation(speculation.proposer, most, policy=policy, trees=config.draft_tree > 0)
    return Candidate(name, runner, speculation, clock=time.process_time)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--head", type=Path, help="the folder of an EAGLE-3 head")
    parser.add_argument("--tree", type=int, help="tokens of a tree of the head, beside its chain")
    parser.add_argument("--depth", type=int, default=4, help="of the tree (default: 4)")
    parser.add_argument("--draft-model")
    parser.add_argument("--skip", nargs="*", default=[], choices=["n-grams", "chain"])
    parser.add_argument("--prompts", type=int, default=8, help="of each kind (default: 8)")
    parser.add_argument("--answer", type=int, default=128, help="tokens of an answer (default: 128)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--drafts", type=int, default=3, help=f"of a step, at most {MOST} (default: 3)")
    options = parser.parse_args()
    folder = locate(options.model)
    plain = EngineConfig(
        model=folder, threads=1, max_model_len=1024, kv_cache_blocks=80, max_drafts=options.drafts
    )
    candidates = [candidate("off", plain, 0)]
    if "n-grams" not in options.skip:
        candidates.append(candidate("n-grams", replace(plain, speculation="ngram"), options.drafts))
    if options.draft_model:
        draft = replace(plain, speculation="draft", draft_model=locate(options.draft_model))
        candidates.append(candidate("small model", draft, options.drafts))
    if options.head:
        eagle = replace(plain, speculation="eagle", draft_model=options.head)
        if "chain" not in options.skip:
            candidates.append(candidate("EAGLE-3 chain", eagle, options.drafts))
        if options.tree:
            tree = replace(eagle, draft_tree=options.tree, max_drafts=options.depth)
            candidates.append(candidate(f"EAGLE-3 tree of {options.tree}", tree, options.tree))
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
