"""``python -m engine.fleet.predicting``: what models will take, in a process of its own, which may load torch.

Reads a JSON list of flags' lists from standard input, writes a JSON list: bytes, or what is wrong with the flags.
"""

from __future__ import annotations

import argparse
import json
import sys

from engine.arguments import add_serve
from engine.config import EngineConfig
from engine.errors import StartupError
from engine.options import read_options

BESIDE = 600 * 2**20
"""Bytes that a model's processes take on a CPU beside weights and KV cache: interpreter, torch, tokenizer
(docs/engine.md, *Operating it*)."""


def main() -> int:
    json.dump([predict(flags) for flags in json.load(sys.stdin)], sys.stdout)
    return 0


def predict(flags: list[str]) -> int | str:
    """Bytes of ``python -m engine serve`` with these flags, or why it would not start."""
    try:
        parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
        add_serve(parser)
        options = vars(parser.parse_args(flags))
        config = read_options(options)
        return _bytes(config.engine)
    except StartupError as error:
        return error.message


def _bytes(config: EngineConfig) -> int:
    from engine.worker.device import pick_device, pick_dtype
    from engine.worker.memory import predict_weights

    device = pick_device(config.device)
    dtype = pick_dtype(config.dtype, config.model, device)
    total = predict_weights(config.model, dtype, config.quantization, device)
    if config.draft_model is not None:
        total += predict_weights(config.draft_model, dtype, config.draft_quantization, device)
    return total + (config.kv_cache_memory or 0) + BESIDE


if __name__ == "__main__":
    sys.exit(main())
