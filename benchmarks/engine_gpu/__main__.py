"""The whole engine on a GPU: Llama-3-8B's and Qwen3-0.6B's shapes with random weights, bfloat16.

    python -m benchmarks.engine_gpu [--models llama-3-8b qwen3-0.6b] [--repeats 3] [--json FILE] [--markdown FILE]

One run of under 8 minutes: what a device copy moves, decode steps at several numbers of streams with CUDA graphs and
without, prompts, 64 requests beside transformers' continuous batching in the same run, quantized weights, and how long
``python -m engine serve`` takes until it answers, its files in the page cache. A decode step's share of the limit is
the time that a device copy would take to read the weights once, by the time of the step. What fails is printed, and
the rest goes on. ``--device cpu --layers 1`` tries the script itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.child import Child
from benchmarks.engine_gpu.serving import seconds_to_serve
from benchmarks.random_model import LLAMA3_8B, QWEN3_06B, prompt, write_folder

ROOM = 512
"""Tokens of a sequence beyond ``--context``."""
MODELS = {"llama-3-8b": LLAMA3_8B, "qwen3-0.6b": QWEN3_06B}
TARGETS = {
    "decode 1 stream, share of limit": 0.8,
    "64 requests, of transformers": 3.0,
    "serve, seconds": 10.0,
}
"""Of llama-3-8b; the last is an upper bound."""


class Table:
    def __init__(self) -> None:
        self.rows: list[tuple[str, str, float, str]] = []

    def add(self, model: str, what: str, value: float, unit: str = "") -> None:
        self.rows.append((model, what, value, unit))
        print(f"{model:12} {what:44} {value:10.3f} {unit}", flush=True)

    def markdown(self, chip: str) -> str:
        """Targets beside what was reached."""
        lines = [f"{chip}, {time.strftime('%Y-%m-%d')}", ""]
        lines += ["| model | what | measured | target |", "|---|---|--:|--:|"]
        for model, what, value, unit in self.rows:
            target = TARGETS.get(what) if model == "llama-3-8b" else None
            lines.append(f"| {model} | {what} | {value:,.3g} {unit} | {'' if target is None else target} |")
        return "\n".join(lines) + "\n"


class Bench:
    def __init__(self, options: argparse.Namespace, table: Table) -> None:
        self.options = options
        self.table = table
        self.began = time.monotonic()

    def left(self) -> float:
        return self.options.seconds - (time.monotonic() - self.began)

    def model(self, name: str, folder: Path) -> None:
        # Room for the longest prompt and an answer, however long a context the model was made for.
        positions = max(MODELS[name]["max_position_embeddings"], self.options.context + ROOM)
        shape = {**MODELS[name], "max_position_embeddings": positions}
        layers = self.options.layers or shape["num_hidden_layers"]
        write_folder(folder, shape, layers, self.options.device if self.options.device != "auto" else "cuda")
        weights = weight_bytes(folder, shape)
        plain = self._child(folder)
        try:
            limit = self._decode(name, plain, shape, weights)
            self._prefill(name, plain, shape)
            requests = self._requests(shape)
            ours = self._generate(plain, requests)
            self.table.add(name, f"{len(requests)} requests", ours, "tokens/s")
        finally:
            plain.close()
        self._try("transformers", self._theirs, name, folder, requests, ours)
        self._try("eager", self._variant, name, folder, shape, limit, {"cuda_graphs": False})
        for method in self.options.quantizations:
            self._try(method, self._variant, name, folder, shape, limit, {"quantization": method})
        self._try("serving", self._serving, name, folder)

    def _child(self, folder: Path, **changes: Any) -> Child:
        options = self.options
        asked = {
            "folder": str(folder),
            "device": options.device,
            "context": options.context + ROOM,
            "streams": options.requests,
            "budget": 2048,
        }
        return Child(sys.executable, "-m", "benchmarks.engine_gpu.ours", json.dumps(asked | changes))

    def _decode(self, name: str, child: Child, shape: dict[str, Any], weights: int) -> float:
        speed = statistics.median(child.ask(do="bandwidth", bytes=self.options.copy_bytes) for _ in range(3))
        self.table.add(name, "device copy", speed / 1e9, "GB/s")
        limit = speed / weights
        self.table.add(name, "weights read so fast, steps a second", limit)
        for streams in sorted({1, min(8, self.options.requests), self.options.requests}):
            for context in (128, min(1024, self.options.context)):
                step = self._step(child, shape, streams, context)
                self.table.add(name, f"decode {streams} streams at {context}", streams / step, "tokens/s")
                if streams == 1 and context == 128:
                    self.table.add(name, "decode 1 stream, share of limit", 1 / step / limit)
        return limit

    def _step(self, child: Child, shape: dict[str, Any], streams: int, context: int) -> float:
        prompts = [prompt(context, shape["vocab_size"], seed) for seed in range(streams)]
        asked = {"do": "decode", "prompts": prompts, "tokens": self.options.tokens}
        return statistics.median(statistics.median(child.ask(**asked)) for _ in range(self.options.repeats))

    def _prefill(self, name: str, child: Child, shape: dict[str, Any]) -> None:
        for length in (512, 2048, 8192):
            if length > self.options.context:
                continue
            asked = {"do": "prefill", "prompt": prompt(length, shape["vocab_size"])}
            seconds = statistics.median(child.ask(**asked) for _ in range(self.options.repeats))
            self.table.add(name, f"prefill of {length}", length / seconds, "tokens/s")

    def _requests(self, shape: dict[str, Any]) -> list[tuple[list[int], int]]:
        """Prompts of 64 to 512 tokens, answers of one length."""
        longest = min(512, self.options.context // 2)
        return [
            (prompt(64 + 7 * i % (longest - 63), shape["vocab_size"], i), self.options.answer)
            for i in range(self.options.requests)
        ]

    def _generate(self, child: Child, requests: list[tuple[list[int], int]]) -> float:
        speeds = []
        for _ in range(self.options.repeats):
            done = child.ask(do="generate", requests=requests)
            speeds.append(done["tokens"] / done["seconds"])
        return statistics.median(speeds)

    def _theirs(self, name: str, folder: Path, requests: list[tuple[list[int], int]], ours: float) -> None:
        asked = {"folder": str(folder), "device": self.options.device}
        child = Child(sys.executable, "-m", "benchmarks.engine_gpu.theirs", json.dumps(asked))
        try:
            # Its room in memory, and its recordings, are made for the first requests.
            child.ask(do="generate", requests=requests)
            theirs = self._generate(child, requests)
        finally:
            child.close()
        self.table.add(name, f"{len(requests)} requests, transformers", theirs, "tokens/s")
        self.table.add(name, f"{len(requests)} requests, of transformers", ours / theirs)

    def _variant(
        self, name: str, folder: Path, shape: dict[str, Any], limit: float, changes: dict[str, Any]
    ) -> None:
        what = changes.get("quantization") or "eager"
        child = self._child(folder, **changes)
        try:
            for streams in sorted({1, min(8, self.options.requests)}):
                step = self._step(child, shape, streams, 128)
                self.table.add(name, f"{what}: decode {streams} streams at 128", streams / step, "tokens/s")
        finally:
            child.close()

    def _serving(self, name: str, folder: Path) -> None:
        # The first start fills the page cache and compiles kernels.
        for _ in range(2):
            seconds = seconds_to_serve(folder, self.options.device, self.options.context)
        self.table.add(name, "serve, seconds", seconds, "s")

    def _try(self, what: str, function: Any, name: str, *rest: Any) -> None:
        if self.left() <= 0:
            print(f"{name}: {what} left out, as the time is up", flush=True)
            return
        try:
            function(name, *rest)
        except (Exception, SystemExit) as error:
            print(f"{name}: {what} failed: {error}", flush=True)


def weight_bytes(folder: Path, shape: dict[str, Any]) -> int:
    """Read in a step of one token: all but the embedding, which is looked up, unless it is the head as well."""
    size = (folder / "model.safetensors").stat().st_size
    return size if shape["tie_word_embeddings"] else size - 2 * shape["vocab_size"] * shape["hidden_size"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--layers", type=int, help="fewer than the shape has, to try the script")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--answer", type=int, default=128, help="tokens")
    parser.add_argument("--tokens", type=int, default=64, help="decode steps that a median is of")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quantizations", nargs="*", default=["int4", "int8", "fp8"])
    parser.add_argument("--copy-bytes", type=int, default=2**32)
    parser.add_argument("--seconds", type=float, default=440, help="after these nothing new is begun")
    parser.add_argument("--folder", type=Path, help="keeps the weights (some 18 GB) for the next run")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    if options.device == "auto" and not torch.cuda.is_available():
        print("PyTorch finds no GPU here. --device cpu --layers 1 tries the script itself.")
        raise SystemExit(2)
    chip = torch.cuda.get_device_name() if options.device != "cpu" else "CPU"
    print(f"{chip}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}", flush=True)
    root = options.folder or Path(tempfile.mkdtemp(prefix="tollgate-"))
    table = Table()
    bench = Bench(options, table)
    for name in options.models:
        bench._try("all", lambda name: bench.model(name, root / f"{name}-{options.layers or 'all'}"), name)
        if options.json:
            options.json.write_text(json.dumps({"chip": chip, "rows": table.rows}, indent=1))
        if options.markdown:
            options.markdown.write_text(table.markdown(chip))


if __name__ == "__main__":
    main()
