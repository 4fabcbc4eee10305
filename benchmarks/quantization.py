"""What quantization costs a real model: `python -m benchmarks.quantization`.

    python -m benchmarks.quantization                            # Qwen2.5-Coder-0.5B, which is fetched
    python -m benchmarks.quantization --only AWQ GPTQ            # rows whose names have one of these
    python -m benchmarks.quantization --table                    # what is known; nothing is computed

MODEL is widened to float16 first where it is a GGUF file, and each row is compared with that in float32: checkpoints
of `python -m engine quantize`, ways to load plain weights, and quantized caches. Rows and checkpoints are kept in
FOLDER: a run can be interrupted and goes on where it ended. Of the texts of benchmarks/real_weights each second is to
calibrate on, and the others are to examine on. The gate is that of `python -m engine eval` at its limits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from benchmarks.processes import completed
from engine.evaluation.gate import Limits
from engine.evaluation.report import Result
from engine.evaluation.run import evaluate
from engine.evaluation.samples import read_texts
from engine.evaluation.ways import Way
from engine.weights.source import locate

ROOT = Path(__file__).resolve().parents[1]
MODEL = "qwen2.5-coder-0.5b"
LIMITS = Limits(0.15, 1.15, 0.7, 0.2)
TEXTS = Path(__file__).parent / "real_weights" / "prompts.jsonl"
TASKS = Path(__file__).with_name("quantization_tasks.jsonl")


@dataclass(frozen=True)
class Row:
    name: str
    checkpoint: tuple[str, ...] = ()
    """What it is written by, ``engine quantize --method``; none: the plain weights."""
    load: str | None = None
    """``--quantization``"""
    cache: str = "auto"
    """``--kv-cache-dtype``"""
    file: bool = False
    """The file that was given, as the engine loads it."""

    @property
    def folder(self) -> str:
        return "-".join(self.checkpoint).replace("--", "")


ROWS = (
    Row("plain, float32"),
    Row("the file as it is", file=True),
    Row("rounded to nearest, 4 bits, groups of 128", ("rtn",)),
    Row("GPTQ, 4 bits, groups of 128", ("gptq",)),
    Row("AWQ, 4 bits, groups of 128", ("awq",)),
    Row("SmoothQuant, W8A8", ("smoothquant",)),
    Row("W8A8 while loading", load="w8a8"),
    Row("int8 while loading", load="int8"),
    Row("int4 while loading, groups of 32", load="int4"),
    Row("cache in int8", cache="int8"),
    Row("cache in fp8", cache="fp8"),
    Row("cache in int4", cache="int4"),
    Row("rounded to nearest, 4 bits, groups of 64", ("rtn", "--group-size", "64")),
    Row("GPTQ, 4 bits, groups of 64", ("gptq", "--group-size", "64")),
    Row("AWQ, 4 bits, groups of 64", ("awq", "--group-size", "64")),
    Row("rounded to nearest, 8 bits, groups of 128", ("rtn", "--bits", "8")),
    Row("GPTQ, 8 bits, groups of 128", ("gptq", "--bits", "8")),
)


def rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def texts() -> tuple[list[str], dict[str, list[str]]]:
    """Texts to calibrate on, the strata by turns, and texts to examine on, by stratum."""
    strata: dict[str, list[str]] = {}
    for row in rows(TEXTS):
        strata.setdefault(row["stratum"], []).append(row["text"])
    calibration = list(chain.from_iterable(zip(*(found[1::2] for found in strata.values()), strict=True)))
    return calibration, {name: found[::2] for name, found in strata.items()}


def write_texts(folder: Path, count: int) -> None:
    calibration, strata = texts()
    write(folder / "calibration.jsonl", [{"text": text} for text in calibration])
    exam = [{"text": text, "stratum": name} for name, found in strata.items() for text in found[:count]]
    write(folder / "exam.jsonl", exam + list(rows(TASKS)))


def write(path: Path, lines: Sequence[Mapping[str, str]]) -> None:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


class Known:
    """Rows that were measured on an examination, in a file: one a line."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "rows.jsonl"
        self._exam = hashlib.sha256((folder / "exam.jsonl").read_bytes()).hexdigest()[:16]
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        rows = map(json.loads, lines)
        self.rows: dict[str, dict[str, Any]] = {row["name"]: row for row in rows if row["exam"] == self._exam}

    def add(self, result: Result, disk: int) -> None:
        row = {"exam": self._exam, "disk": disk, **result.json()}
        self.rows[result.name] = row
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def fetched(name: str) -> Path:
    """The model's file: it is downloaded if it is not there."""
    command = [sys.executable, str(ROOT / "scripts" / "models.py"), name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return Path(done.stdout.strip())


def quantize(model: Path, out: Path, method: str, *flags: str) -> None:
    command = ["quantize", str(model), "--method", method, *flags, "--out", str(out)]
    if not out.exists() and completed([sys.executable, "-m", "engine", *command]):
        raise SystemExit(f"python -m engine {' '.join(command)} failed")


def table(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Of the rows that are known, in their order."""
    known = [(row, rows[row.name]) for row in ROWS if row.name in rows]
    if not known:
        return
    strata = [name for name in known[0][1]["strata"] if name != "all"]
    heads = (
        "weights, cache",
        "MiB",
        "KL, nats a token",
        *strata,
        "perplexity, times",
        "same token",
        "answers",
    )
    yield f"| {' | '.join(heads)} | gate |"
    yield "|---|" + "--:|" * (len(strata) + 5) + "---|"
    for row, found in known:
        total = found["strata"]["all"]
        by_stratum = [f"{found['strata'][name]['kl']['value']:.3f}" for name in strata]
        failed = sorted({line.split(":")[0] for line in found["beyond"]}, key=[*strata, "all"].index)
        yield " | ".join(
            [
                f"| {row.name}",
                f"{found['disk'] / 2**20:.0f}" if found["disk"] else "",
                _range(total["kl"], ".3f"),
                *by_stratum,
                _range(total["ratio"], ".3f"),
                _range(total["agreement"], ".1%"),
                f"{total['exact']['value']:.1%}" if total["exact"] else "",
                f"fails: {', '.join(failed)} |" if failed else "passes |",
            ]
        )
    yield ""
    yield "Answers found word by word, with 95 % of resamples:"
    yield ""
    yield f"| weights, cache | {' | '.join(strata)} |"
    yield "|---|" + "--:|" * len(strata)
    for row, found in known:
        each = [found["strata"][name]["exact"] for name in strata]
        yield f"| {row.name} | {' | '.join(_range(one, '.0%') if one else '' for one in each)} |"


def _range(figure: Mapping[str, float], form: str) -> str:
    return f"{figure['value']:{form}} ({figure['low']:{form}}–{figure['high']:{form}})"


def size_on_disk(folder: Path) -> int:
    files = [folder] if folder.is_file() else folder.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help=f"a folder or a .gguf file (default: {MODEL})")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=ROOT / "models" / "quantization", help="what is kept"
    )
    parser.add_argument(
        "--texts", type=int, default=25, help="to examine on, of each stratum (default: 25, all)"
    )
    parser.add_argument("--tokens", default="8192", help="to calibrate on (default: 8192)")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="rows whose names have one of these")
    parser.add_argument("--table", action="store_true", help="only print what is known")
    parser.add_argument("--threads", type=int, help="of the examination (default: all cores)")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    write_texts(folder, options.texts)
    known = Known(folder)
    wanted = [
        row
        for row in ROWS
        if not options.only or any(word.lower() in row.name.lower() for word in options.only)
    ]
    new = [row for row in wanted if row.name not in known.rows]
    if new and not options.table:
        measure(new, Path(options.model or fetched(MODEL)), folder, known, options.tokens, options.threads)
    print("\n".join(table(known.rows)))


def measure(
    rows: Sequence[Row], model: Path, folder: Path, known: Known, tokens: str, threads: int | None
) -> None:
    plain = folder / "plain"
    quantize(model, plain, "plain")
    calibration = ["--calibration", str(folder / "calibration.jsonl"), "--tokens", tokens]
    disk: dict[str, int] = {}
    ways = []
    for row in rows:
        own: Path = plain
        if row.file:
            own = model
        elif row.checkpoint:
            own = folder / row.folder
            quantize(plain, own, *row.checkpoint, *calibration)
        disk[row.name] = size_on_disk(own) if row.load is None else 0
        kept = locate(str(own))
        ways.append(Way(row.name, quantization=row.load, kv_cache_dtype=row.cache, folder=kept))
    if threads:
        torch.set_num_threads(threads)

    def report(result: Result) -> None:
        known.add(result, disk[result.name])
        print(f"{result.name}: KL {result.strata['all'].kl.value:.4f}", file=sys.stderr, flush=True)

    evaluate(plain, read_texts(plain, folder / "exam.jsonl"), ways, LIMITS, report)


if __name__ == "__main__":
    main()
