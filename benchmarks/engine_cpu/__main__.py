"""Decode and prefill of Qwen3-0.6B's shape, random weights, beside llama.cpp: tokens/s and their ratio.

    python -m venv /tmp/llama && /tmp/llama/bin/pip install llama-cpp-python     # builds for this processor
    python -m benchmarks.engine_cpu --llama-python /tmp/llama/bin/python [--repeats 5] [--json FILE]

Both engines are loaded at once and asked in turn, so that a ratio compares the same minutes of the same machine.
Each figure is the median over the repeats of a repeat's median. llama.cpp computes logits and does not draw; the
engine schedules, computes and draws.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.engine_cpu.shape import SHAPE, prompt, quantize, write_folder, write_gguf
from engine.bench.child import Child

PAIRS = {"int4": "Q4_0", "int8": "Q8_0", "bf16": "F16"}
TARGETS = {"int4": 1.2, "int8": 1.2}


def compare(ours: Child, theirs: Child | None, contexts: list[int], tokens: int, repeats: int) -> list[dict]:
    rows = []
    for context in contexts:
        asked = {"do": "decode", "prompt": prompt(context), "tokens": tokens}
        found: dict[str, list[float]] = {"ours": [], "theirs": []}
        for _ in range(repeats):
            for name, child in (("ours", ours), ("theirs", theirs)):
                if child is not None:
                    found[name].append(1 / statistics.median(child.ask(**asked)))
        rows.append(row(f"decode at {context}", found))
    asked = {"do": "prefill", "prompt": prompt(512)}
    found = {"ours": [], "theirs": []}
    for _ in range(repeats):
        for name, child in (("ours", ours), ("theirs", theirs)):
            if child is not None:
                found[name].append(512 / child.ask(**asked))
    rows.append(row("prefill of 512", found))
    single, several = [], []
    for _ in range(repeats):
        for streams, figures in ((1, single), (8, several)):
            times = ours.ask(do="decode", prompt=prompt(128), tokens=tokens, streams=streams)
            figures.append(streams / statistics.median(times))
    rows.append(
        {
            "what": "8 streams at 128",
            "ours": statistics.median(several),
            "one stream": statistics.median(single),
            "ratio": statistics.median(b / a for a, b in zip(single, several, strict=True)),
        }
    )
    return rows


def row(what: str, found: dict[str, list[float]]) -> dict[str, Any]:
    told: dict[str, Any] = {"what": what, "ours": statistics.median(found["ours"])}
    if found["theirs"]:
        told["llama.cpp"] = statistics.median(found["theirs"])
        pairs = zip(found["ours"], found["theirs"], strict=True)
        told["ratio"] = statistics.median(ours / theirs for ours, theirs in pairs)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--llama-python", help="a Python that has llama-cpp-python; without it, ours alone")
    parser.add_argument("--formats", nargs="+", choices=list(PAIRS), default=["int4", "int8", "bf16"])
    parser.add_argument("--contexts", nargs="+", type=int, default=[16, 1024])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=SHAPE["num_hidden_layers"])
    parser.add_argument("--folder", type=Path, help="keeps the weights (some 3 GB) for the next run")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="tollgate-"))
    model = write_folder(folder / f"qwen3-{options.layers}", options.layers)
    context = str(max(512, *options.contexts) + options.tokens + 64)
    results = {}
    for name in options.formats:
        theirs = None
        if options.llama_python:
            plain = write_gguf(folder / f"qwen3-{options.layers}-F16.gguf", model, options.layers)
            kind = PAIRS[name]
            file = plain
            if kind != "F16":
                target = folder / f"qwen3-{options.layers}-{kind}.gguf"
                file = quantize(options.llama_python, plain, target, kind)
            script = str(Path(__file__).with_name("llama.py"))
            theirs = Child(options.llama_python, script, "serve", str(file), str(options.threads), context)
        ours = Child(
            sys.executable,
            "-m",
            "benchmarks.engine_cpu.ours",
            str(model),
            str(options.threads),
            context,
            name,
        )
        results[name] = compare(ours, theirs, options.contexts, options.tokens, options.repeats)
        for child in (ours, theirs):
            if child is not None:
                child.close()
        print(f"\n{name} against {PAIRS[name]}, tokens/s")
        for found in results[name]:
            figures = "  ".join(f"{key} {value:8.2f}" for key, value in found.items() if key != "what")
            print(f"  {found['what']:18} {figures}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
