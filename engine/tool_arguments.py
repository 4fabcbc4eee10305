"""The flags of ``python -m engine eval``, ``quantize``, ``train-draft``, ``verify`` and ``bench``."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_evaluation(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--model",
        nargs="+",
        default=["demo"],
        help="'demo' (the default), a folder, a .gguf file, or a Hugging Face hub id; with --reference also several, "
        "and NAME=MODEL",
    )
    add(
        "--reference",
        metavar="MODEL",
        help="compare with this model, unquantized (default: the same in float32)",
    )
    add("--text", type=Path, help='a text to predict, or JSON Lines with "text", "stratum" and "answer"')
    add("--count", type=int, default=300, help="held-out conversations of the demo model (default: 300)")
    add("--quantization", help="measure this alone: int8, w8a8, int4, int4-64 or int4-128 (default: all)")
    add("--kv-cache-dtype", choices=["int8", "fp8", "int4"], help="measure this alone (default: all)")
    add("--max-kl", type=float, default=0.15, metavar="NATS", help="a token, of each stratum (default: 0.15)")
    add("--max-perplexity", type=float, default=1.15, metavar="TIMES", help="the reference's (default: 1.15)")
    add("--min-agreement", type=float, default=0.7, metavar="SHARE", help="of the same token (default: 0.7)")
    add("--max-lost", type=float, default=0.2, metavar="SHARE", help="of exact answers (default: 0.2)")
    add("--json", action="store_true", help="print JSON instead of a table")


def add_rank(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--listen", required=True, metavar="HOST:PORT", help="as --nodes of the engine names it")
    add("--model", required=True, help="as --model of the engine: the same files, on this host")
    add(
        "--nodes-secret",
        required=True,
        type=Path,
        metavar="FILE",
        help="with the secret that the engine is given, too",
    )
    add("--device", help="such as cuda:1, where this host has several ranks (default: the first of its kind)")
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"])


def add_quantization(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        help="a folder, a .gguf file (which is widened first), or a Hugging Face hub id",
    )
    add(
        "--method",
        required=True,
        choices=["gptq", "awq", "smoothquant", "rtn", "plain"],
        help="rtn: rounded to nearest; plain: only widened",
    )
    add("--bits", type=int, help="4 or 8 with gptq and rtn, 4 with awq, 8 with smoothquant")
    add("--group-size", type=int, default=128, help="inputs that share a scale; -1: all (default: 128)")
    add(
        "--symmetric",
        action="store_true",
        help="gptq and rtn: without zero points, as Marlin kernels need it",
    )
    add("--calibration", type=Path, help='JSON Lines with "text", to observe activations on')
    add("--tokens", type=int, default=16384, help="of the calibration texts (default: 16384)")
    add("--length", type=int, default=512, help="of a calibration text, in tokens (default: 512)")
    add(
        "--dtype",
        default="float16",
        choices=["float16", "bfloat16", "float32"],
        help="of what is not quantized (default: float16)",
    )
    add("--out", type=Path, required=True, help="the folder to write, which must be new or empty")


def add_draft_training(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="'demo', a folder, a .gguf file, or a Hugging Face hub id")
    add(
        "--texts",
        type=Path,
        required=True,
        help='JSON Lines with "text", or with "prompt", which the model answers first',
    )
    add(
        "--out",
        type=Path,
        required=True,
        help="the head's folder; answers and a head that are there already are gone on with",
    )
    add(
        "--kind",
        choices=["eagle", "medusa"],
        default="eagle",
        help="of heads (default: eagle, which is EAGLE-3)",
    )
    add("--draft-vocab", type=int, default=8192, help="tokens that may be proposed (default: 8192)")
    add("--width", type=int, help="of an EAGLE head's MLP (default: the model's)")
    add(
        "--depth",
        type=int,
        default=3,
        help="draft tokens that follow from one another in training, or Medusa heads (default: 3)",
    )
    add("--steps", type=int, default=2000, help="most steps (default: 2000)")
    add("--seconds", type=float, default=3600, help="most seconds of training (default: 3600)")
    add("--rate", type=float, default=5e-4, help="the highest learning rate (default: 0.0005)")
    add("--length", type=int, default=512, help="tokens of a text, at most (default: 512)")
    add("--answer", type=int, default=256, help="tokens of an answer, at most (default: 256)")
    add("--threads", type=int, help="(default: as for serving)")


def add_verification(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="demo", help="'demo' (the default), a folder, or a Hugging Face hub id")
    add("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    add("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"], help="(default: auto)")
    add("--only", nargs="+", metavar="WORD", help="features whose names have one of these")
    add("--tokens", type=int, default=24, help="of each answer (default: 24)")
    add("--jobs", type=int, help="processes at a time (default: half the cores, 6 at most)")
    add("--seconds", type=float, default=280, help="begin nothing after these (default: 280)")
    add("--json", type=Path, help="write the rows there, as they come")
    add("--markdown", type=Path, help="write the table there, as it comes")


def add_bench(parser: argparse.ArgumentParser) -> None:
    models = ["qwen3-0.6b", "qwen3-1.7b", "llama-3-8b"]
    add = parser.add_argument
    add("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    add(
        "--models",
        nargs="+",
        choices=models,
        default=models,
        help="shapes, with random weights (default: all)",
    )
    add("--batches", nargs="+", type=int, help="answers at once (default: 1 8 64 256)")
    add("--prompt", type=int, help="tokens of a prompt (default: 256)")
    add("--answer", type=int, help="tokens of an answer (default: 128)")
    add("--rivals", nargs="+", choices=["vllm", "transformers", "none"], default=["vllm", "transformers"])
    add(
        "--variants",
        nargs="+",
        choices=["eager", "int4", "int8", "fp8", "none"],
        default=["eager", "int4", "int8", "fp8"],
        help="what is measured of the engine besides, with few answers",
    )
    add("--layers", type=int, help="fewer than the shape has")
    add("--seconds", type=float, default=540, help="begin no row after these (default: 540)")
    add("--folder", type=Path, help="keeps the weights for the next run (20 GB)")
    add(
        "--json",
        type=Path,
        help="write the rows there, as they come; those that stand there are not measured again",
    )
    add("--markdown", type=Path, help="write the table there, as it comes")
    add("--dry-run", action="store_true", help="with --device cpu: tiny shapes, to try the command")
