"""The engine on real weights: beside transformers and llama.cpp, beside itself alone, and in long contexts.

    python -m benchmarks.real_weights $(python scripts/models.py qwen2.5-coder-0.5b) [--prompts 40] [--parts paths]

Parts:

- ``float32``: the file widened to float32, which transformers reads, too.
- ``served``: as ``python -m engine serve`` keeps it by default, 4-bit codes and activations in 8 bits.
- ``llama.cpp``: the same file by llama.cpp (``pip install llama-cpp-python``), where its tokens are checked, too.
- ``paths``: the engine as served in chunks, in batches, with prefix hits, adapters and a quantized KV cache, beside the
  same engine with one prompt at a time, whole.
- ``needles``: facts in a text of ``--context`` tokens.

Distributions, and what is done, are kept in ``--work``; a second run goes on. The exit status is 1 where the engine in
float32 is further than ``--max-kl`` from transformers, or a path further than its limit.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.real_weights import compare, needles, paths, sources
from benchmarks.real_weights.texts import Text, read
from engine.evaluation.ways import FULL, Way
from engine.quantizer.checkpoint import new_folder
from engine.quantizer.recipe import checked
from engine.quantizer.run import quantize
from engine.verify.lora import write_random
from engine.weights.source import locate
from engine.worker.device import pick_dtype

PARTS = ("float32", "served", "llama.cpp", "paths", "needles")
_ADAPTERS = ("a", "b")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file, or a folder")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--prompts", type=int, default=200, help="the first so many")
    parser.add_argument("--length", type=int, default=512, help="tokens of a prompt, at most")
    parser.add_argument("--continued", type=int, default=40, help="prompts of the paths")
    parser.add_argument(
        "--context", type=int, nargs="+", default=[16_000, 32_000], help="tokens of the needles' texts"
    )
    parser.add_argument("--dtype", default="auto", help="of the engine as served")
    parser.add_argument("--work", type=Path, help="default: .tollgate/real-weights/MODEL")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--max-kl", type=float, default=1e-6, help="nats a token, of the engine in float32")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    model = options.model.resolve()
    work = options.work or Path(".tollgate/real-weights") / model.stem
    work.mkdir(parents=True, exist_ok=True)
    folder = locate(str(model))
    wide = _widened(folder, work / "wide") if model.is_file() else folder
    texts = read(folder, options.prompts, options.length)
    wrong = []
    if predicting := [part for part in PARTS[:3] if part in options.parts]:
        wrong += _beside_transformers(model, folder, wide, work, texts, predicting, options)
    if "paths" in options.parts:
        adapters = tuple((name, _adapter(work / name, wide, seed)) for seed, name in enumerate(_ADAPTERS))
        alone = paths.Alone(folder, options.dtype, adapters)
        _print(f"\n{paths.HEAD}")
        for way in paths.WAYS:
            found = alone.beside(way, [text.tokens for text in texts[: options.continued]])
            _print(found.line())
            if found.wrong:
                wrong.append(f"{way.name}: {found.kl:.1e} nats a token, the limit is {way.limit:g}")
    if "needles" in options.parts:
        _print(f"\n{needles.HEAD}")
        for context in options.context:
            for answer in needles.ask(folder, options.dtype, context, options.threads):
                _print(answer.line())
    for line in wrong:
        _print(f"WRONG: {line}")
    return int(bool(wrong))


def _beside_transformers(
    model: Path,
    folder: Path,
    wide: Path,
    work: Path,
    texts: list[Text],
    parts: list[str],
    options: argparse.Namespace,
) -> list[str]:
    """What is wrong."""
    reference = compare.Reference(work / "transformers")
    reference.fill(texts, partial(sources.transformers, wide))
    served = Way("served", pick_dtype(options.dtype, folder, torch.device("cpu")))
    predictions: dict[str, compare.Predict] = {
        "float32": partial(sources.engine, wide, FULL),
        "served": partial(sources.engine, folder, served),
        "llama.cpp": partial(sources.llama_cpp, model, threads=options.threads),
    }
    wrong = []
    _print(f"{model.stem}\n\n{compare.HEAD}")
    for part in parts:
        found = compare.rows(work / f"{part}.jsonl", reference, texts, predictions[part])
        for line in compare.table(part, found):
            _print(line)
        kl = compare.mean_kl(found)
        if part == "float32" and not kl <= options.max_kl:
            wrong.append(f"float32: {kl:.1e} nats a token, the limit is {options.max_kl:g}")
    return wrong


def _widened(folder: Path, target: Path) -> Path:
    if not target.exists():
        with new_folder(target) as scratch:
            quantize(folder, scratch, checked("plain", None, -1, False), [], dtype=torch.float32)
    return target


def _adapter(folder: Path, model: Path, seed: int) -> Path:
    return folder if folder.exists() else write_random(folder, model, seed)


def _print(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
