"""What quantized checkpoints of a real model lose: `python -m benchmarks.quantization MODEL FOLDER`.

MODEL is a model with plain weights, or a GGUF file, which is widened to float16 first. Each way is quantized into
FOLDER (`python -m engine quantize`), unless it lies there already, and compared with the unquantized model
(`python -m engine eval --reference`); the table is printed as it grows. The texts are made from ../shared/data, those
to calibrate on and those to examine on apart: other files or other rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "broad"
TASKS = Path(__file__).with_name("quantization_tasks.jsonl")
WAYS: dict[str, tuple[str, ...]] = {
    "rtn, 8 bits, groups of 128": ("rtn", "--bits", "8"),
    "gptq, 8 bits, groups of 128": ("gptq", "--bits", "8"),
    "smoothquant, 8 bits": ("smoothquant",),
    "rtn, 4 bits, groups of 64": ("rtn", "--group-size", "64"),
    "gptq, 4 bits, groups of 64": ("gptq", "--group-size", "64"),
    "awq, 4 bits, groups of 64": ("awq", "--group-size", "64"),
    "rtn, 4 bits, groups of 128": ("rtn",),
    "gptq, 4 bits, groups of 128": ("gptq",),
    "awq, 4 bits, groups of 128": ("awq",),
}
_CHARACTERS = {"code": 700, "prose": 1000, "German": 700, "Chinese": 350}
"""Of a text, which is some 200 tokens."""


def rows(name: str) -> Iterator[dict[str, Any]]:
    with (DATA / name).open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def merged(texts: Sequence[str], characters: int) -> Iterator[str]:
    """Posts are short: several make a text."""
    text = ""
    for one in texts:
        text += one + "\n"
        if len(text) >= characters:
            yield text[:characters]
            text = ""


def strata() -> dict[str, tuple[list[str], list[str]]]:
    """Texts to calibrate on, and texts to examine on."""
    prompts = [row for row in rows("prompts.jsonl") if not row["injection"]]
    posts = [row for row in rows("toxicity.jsonl") if not row["toxic"]]
    # Chunks of a repository stand side by side: halves are of different ones.
    code = [row["text"] for row in prompts if row["source"] == "source code"]
    half = len(code) // 2
    found = {
        "code": (code[:half], code[half + 10 :: 10]),
        "prose": tuple(
            [row["text"] for row in prompts if row["source"] == source and len(row["text"]) > 600]
            for source in ("T0 tasks", "T0 answers")
        ),
    }
    for stratum, language in (("German", "de"), ("Chinese", "zh")):
        own = list(
            merged([row["text"] for row in posts if row["language"] == language], _CHARACTERS[stratum])
        )
        found[stratum] = own[: len(own) // 2], own[len(own) // 2 :]
    return {
        name: tuple([text[: _CHARACTERS[name]] for text in part] for part in parts)  # type: ignore[misc]
        for name, parts in found.items()
    }


def write_texts(folder: Path, count: int) -> None:
    texts = strata()
    by_turns = chain.from_iterable(zip_longest(*(parts[0] for parts in texts.values())))
    write(folder / "calibration.jsonl", [{"text": text} for text in by_turns if text])
    exam = [{"text": text, "stratum": name} for name, parts in texts.items() for text in parts[1][:count]]
    tasks = [json.loads(line) for line in TASKS.read_text(encoding="utf-8").splitlines()]
    write(folder / "exam.jsonl", exam + tasks)


def write(path: Path, lines: Sequence[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def engine(*arguments: str) -> str:
    """Its output; a gate that says no is a result, too."""
    done = subprocess.run([sys.executable, "-m", "engine", *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode and not done.stdout:
        raise SystemExit(f"python -m engine {' '.join(arguments)} exited with {done.returncode}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=int, default=16, help="to examine on, of each stratum (default: 16)")
    parser.add_argument("--tokens", default="16384", help="to calibrate on (default: 16384)")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="ways whose names have one of these")
    parser.add_argument("--no-eval", action="store_true", help="quantize alone")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    write_texts(folder, options.texts)
    plain = folder / "plain"
    if not plain.exists():
        engine("quantize", options.model, "--method", "plain", "--out", str(plain))
    calibration = ["--calibration", str(folder / "calibration.jsonl"), "--tokens", options.tokens]
    ways = {
        name: way for name, way in WAYS.items() if not options.only or any(w in name for w in options.only)
    }
    folders = {name: folder / name.replace(", ", "-").replace(" ", "-") for name in ways}
    for name, (method, *flags) in ways.items():
        if not folders[name].exists():
            engine(
                "quantize", str(plain), "--method", method, *flags, *calibration, "--out", str(folders[name])
            )
    if not options.no_eval:
        named = [f"{name}={path}" for name, path in folders.items()]
        exam = ["--reference", str(plain), "--text", str(folder / "exam.jsonl")]
        print(engine("eval", "--model", *named, *exam))


if __name__ == "__main__":
    main()
