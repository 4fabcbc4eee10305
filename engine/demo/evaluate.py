"""What the committed models know: ``python -m engine.demo.evaluate``. Held-out loss, and exact answers by kind."""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from engine.demo import corpus, tokens
from engine.demo.llama import Llama
from engine.demo.train import HERE, load

LONGEST = 160


@torch.inference_mode()
def held_out_loss(model: Llama, tokenizer: Tokenizer, exam: list[corpus.Conversation]) -> float:
    """Nats a token over the held-out answers alone, their end marks included."""
    encoder = tokens.Encoder(tokenizer)
    total, count = 0.0, 0
    for conversation in exam:
        prompt = encoder.prompt(conversation)
        ids = torch.tensor([encoder.encode(conversation)[0]])
        logits = model.logits(model(ids[:, :-1])[:, len(prompt) - 1 :])
        answer = ids[0, len(prompt) :]
        total += functional.cross_entropy(logits[0], answer, reduction="sum").item()
        count += len(answer)
    return total / count


@torch.inference_mode()
def answers(model: Llama, tokenizer: Tokenizer, exam: list[corpus.Conversation], rows: int = 64) -> list[str]:
    """Greedy answers, by computing everything anew for every token: slow, and too simple to be wrong."""
    encoder = tokens.Encoder(tokenizer)
    end, pad = encoder.ids[tokens.END], encoder.ids[tokens.PAD]
    answer_ids: dict[int, list[int]] = {}
    order = sorted(range(len(exam)), key=lambda i: len(encoder.encode(exam[i])[0]))
    for begin in range(0, len(order), rows):
        open_rows = {i: encoder.prompt(exam[i]) for i in order[begin : begin + rows]}
        for i in open_rows:
            answer_ids[i] = []
        while open_rows:
            longest = max(map(len, open_rows.values()))
            ids = torch.tensor([row + [pad] * (longest - len(row)) for row in open_rows.values()])
            last = torch.tensor([len(row) - 1 for row in open_rows.values()])
            hidden = model(ids)[torch.arange(len(last)), last]
            for i, token in zip(list(open_rows), model.logits(hidden).argmax(-1).tolist(), strict=True):
                if token != end:
                    open_rows[i].append(token)
                    answer_ids[i].append(token)
                if token == end or len(answer_ids[i]) >= LONGEST:
                    del open_rows[i]
    return [tokenizer.decode(answer_ids[i]) for i in range(len(exam))]


def report(folder: Path, seed: int, count: int, *, show: int = 0, with_tools: bool = False) -> None:
    model, tokenizer = load(folder)
    exam = (corpus.tool_exam if with_tools else corpus.exam)(seed, count)
    loss = held_out_loss(model, tokenizer, exam)
    size = sum(weight.numel() for weight in model.parameters())
    print(f"{folder.name}: {size / 1e6:.2f} M parameters")
    print(f"held-out loss {loss:.4f} nats a token (perplexity {math.exp(loss):.3f})")
    right: dict[str, list[bool]] = defaultdict(list)
    for conversation, answer in zip(exam, answers(model, tokenizer, exam), strict=True):
        question, wanted = conversation.turns[-1]
        right[conversation.kind].append(answer == wanted)
        if answer != wanted and show:
            show -= 1
            print(f"  {question!r}\n    wanted {wanted!r}\n    answer {answer!r}")
    print("| kind | questions | exact |\n|---|---|---|")
    for kind, marks in sorted(right.items()):
        print(f"| {kind} | {len(marks)} | {sum(marks) / len(marks):.1%} |")
    everything = [mark for marks in right.values() for mark in marks]
    print(f"| **all** | {len(everything)} | **{sum(everything) / len(everything):.1%}** |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, action="append", help="default: the bundled model and its draft"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--show", type=int, default=0, help="print so many wrong answers")
    parser.add_argument("--tools", action="store_true", help="examine conversations with tools")
    options = parser.parse_args()
    for folder in options.folder or [HERE / "model", HERE / "draft"]:
        report(folder, options.seed, options.count, show=options.show, with_tools=options.tools)


if __name__ == "__main__":
    main()
