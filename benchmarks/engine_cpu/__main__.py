"""Decode and prefill beside llama.cpp, with flash attention and without: tokens/s, and the ratio to the better of both.

    python -m venv /tmp/llama && /tmp/llama/bin/pip install llama-cpp-python     # builds for this processor
    python -m benchmarks.engine_cpu --llama-python /tmp/llama/bin/python [--repeats 5] [--json FILE]
    python -m benchmarks.engine_cpu --llama-python … --gguf FILE.gguf …          # the same files for both

Qwen3-0.6B's shape with random weights, or GGUF files. Both engines are loaded at once and asked in turn, so that a
ratio compares the same minutes of the same machine. Each figure is the median over the repeats of a repeat's median, a
ratio the median of each repeat's. llama.cpp computes logits and draws nothing; ours schedules, computes and draws.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.engine_cpu.shape import SHAPE, prompt, quantize, write_folder, write_gguf
from engine.bench.child import Child

PAIRS = {"int4": "Q4_0", "int8": "Q8_0", "bf16": "F16"}
FLASH = {"llama.cpp": False, "llama.cpp, flash": True}


def compare(ours: Child, theirs: Child | None, contexts: list[int], tokens: int, repeats: int) -> list[dict]:
    rows = []
    for context in contexts:
        asked = {"do": "decode", "prompt": prompt(context), "tokens": tokens}
        found = in_turns(ours, theirs, asked, repeats, lambda times: 1 / statistics.median(times))
        rows.append(row(f"decode at {context}", found))
    asked = {"do": "prefill", "prompt": prompt(512)}
    rows.append(row("prefill of 512", in_turns(ours, theirs, asked, repeats, lambda time: 512 / time)))
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


def in_turns(
    ours: Child, theirs: Child | None, asked: dict[str, Any], repeats: int, speed: Callable[[Any], float]
) -> dict[str, list[float]]:
    """Tokens/s in each repeat, after one that does not count."""
    found: dict[str, list[float]] = {"ours": []} | {name: [] for name in FLASH if theirs is not None}
    for repeat in range(repeats + 1):
        for name, figures in found.items():
            answer = ours.ask(**asked) if name == "ours" else theirs.ask(**asked, flash=FLASH[name])
            if repeat:
                figures.append(speed(answer))
    return found


def row(what: str, found: dict[str, list[float]]) -> dict[str, Any]:
    told: dict[str, Any] = {"what": what}
    told |= {name: statistics.median(figures) for name, figures in found.items()}
    others = [name for name in found if name != "ours"]
    if others:
        better = max(others, key=told.__getitem__)
        pairs = zip(found["ours"], found[better], strict=True)
        told["ratio"] = statistics.median(ours / theirs for ours, theirs in pairs)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--llama-python", help="a Python that has llama-cpp-python; without it, ours alone")
    parser.add_argument(
        "--gguf", nargs="+", type=Path, default=[], help="files to load in place of the shape"
    )
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
    context = str(max(512, *options.contexts) + options.tokens + 64)
    pairs = [(file.stem, "gguf", file, file) for file in options.gguf] or shapes(options, folder)
    results = {}
    for title, kind, model, file in pairs:
        theirs = None
        if options.llama_python:
            script = str(Path(__file__).with_name("llama.py"))
            theirs = Child(options.llama_python, script, "serve", str(file), str(options.threads), context)
        module = ("-m", "benchmarks.engine_cpu.ours")
        ours = Child(sys.executable, *module, str(model), str(options.threads), context, kind)
        results[title] = compare(ours, theirs, options.contexts, options.tokens, options.repeats)
        for child in (ours, theirs):
            if child is not None:
                child.close()
        print(f"\n{title}, tokens/s (load {os.getloadavg()[0]:.1f})")
        for found in results[title]:
            figures = "  ".join(f"{key} {value:8.2f}" for key, value in found.items() if key != "what")
            print(f"  {found['what']:18} {figures}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def shapes(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str, Path, Path]]:
    """Title, format, folder and llama.cpp's file; each is written when it is its turn."""
    model = write_folder(folder / f"qwen3-{options.layers}", options.layers)
    for name in options.formats:
        file = folder / f"qwen3-{options.layers}-F16.gguf"
        if options.llama_python:
            write_gguf(file, model, options.layers)
            if (kind := PAIRS[name]) != "F16":
                target = folder / f"qwen3-{options.layers}-{kind}.gguf"
                file = quantize(options.llama_python, file, target, kind)
        yield f"{name} against {PAIRS[name]}", name, model, file


if __name__ == "__main__":
    main()
