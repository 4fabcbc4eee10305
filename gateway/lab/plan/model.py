"""The model that was named: a folder or file of it, or its numbers."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.lab.plan.config_json import read_config
from gateway.lab.plan.errors import PlanError
from gateway.lab.plan.gguf_header import read_gguf
from gateway.lab.plan.numbers import count, parse_number
from gateway.lab.plan.shape import Attention, Mixture, ModelShape

EXAMPLE = "params=7B,layers=32,kv_heads=32,head_dim=128"
_NUMBERS = (
    *("params", "layers", "kv_heads", "head_dim", "heads", "hidden", "vocab", "active", "experts", "chosen"),
    *("window", "latent", "longest"),
)
_LONGEST_HEADER = 2**28


def read_model(given: str) -> ModelShape:
    """``given``: a folder with config.json, such a file, a GGUF file, or ``params=7B,layers=32,…``.

    Raises ``PlanError``.
    """
    path = Path(given)
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        if (path / "config.json").is_file():
            return _with_files(_read_json(path / "config.json", path.resolve().name), path)
        if len(ggufs) != 1 and not (ggufs and "-of-" in ggufs[0].name):
            raise PlanError(f"--model {given}: there is no config.json in it, and not one GGUF file")
        return read_gguf(ggufs[0])
    if path.is_file():
        return read_gguf(path) if path.suffix == ".gguf" else _read_json(path, path.resolve().parent.name)
    if "=" in given:
        return of_numbers(given)
    raise PlanError(
        f"--model {given}: there is no such file or folder. Give a folder with config.json, a GGUF file (of which the "
        f"header is read), or numbers: --model {EXAMPLE}"
    )


def of_numbers(given: str) -> ModelShape:
    """Raises ``PlanError``."""
    numbers: dict[str, int] = {}
    for part in given.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or key not in _NUMBERS:
            raise PlanError(f"--model: '{part}' is not one of {', '.join(f'{one}=…' for one in _NUMBERS)}")
        try:
            numbers[key] = round(parse_number(value))
        except ValueError as error:
            raise PlanError(f"--model: {key}: {error}") from None
    if missing := [key for key in ("params", "layers", "kv_heads", "head_dim") if numbers.get(key, 0) < 1]:
        raise PlanError(f"--model: {', '.join(missing)} must be given and more than 0, as in {EXAMPLE}")
    dim, layers, vocabulary = numbers["head_dim"], numbers["layers"], numbers.get("vocab", 0)
    heads = numbers.get("heads") or max(numbers["kv_heads"], numbers.get("hidden", 0) // dim)
    hidden = numbers.get("hidden") or heads * dim
    parameters, active = numbers["params"], numbers.get("active", numbers["params"])
    if active > parameters:
        raise PlanError(
            f"--model: {count(active)} active parameters of {count(parameters)}: the former are the fewer"
        )
    head = vocabulary * hidden
    mixture = None
    if numbers.get("experts", 0) > 1 or active < parameters:
        experts, chosen = numbers.get("experts", 0), numbers.get("chosen", 0)
        if not 1 <= chosen < experts or active >= parameters:
            raise PlanError(
                "--model: a mixture is params, active, experts and chosen together, as "
                "params=47B,active=13B,experts=8,chosen=2"
            )
        # total = rest + layers · experts · e, and active = rest + layers · chosen · e.
        expert = (parameters - active) // (layers * (experts - chosen))
        mixture = Mixture(experts, chosen, layers, expert)
    dense = parameters - head * 2 - (mixture.total if mixture else 0)
    if dense <= 0:
        raise PlanError(
            "--model: vocab, hidden and experts have more parameters than the model: one of them is wrong"
        )
    return ModelShape(
        name=given.partition(",")[0],
        hidden=hidden,
        layers=layers,
        windows=(numbers.get("window") or None,) * layers,
        attention=Attention(
            heads, 1 if numbers.get("latent") else numbers["kv_heads"], dim, numbers.get("latent") or None
        ),
        embedding=head,
        head=head,
        dense=dense,
        mixture=mixture,
        longest=numbers.get("longest", 0),
    )


def _read_json(path: Path, name: str) -> ModelShape:
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise PlanError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(raw, dict):
        raise PlanError(f"{path}: is no JSON object: a model's config.json is")
    try:
        return read_config(raw, str(path) if name in ("", ".") else name)
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise PlanError(f"{path}: holds a value that makes no sense: {error}") from None


def _with_files(shape: ModelShape, folder: Path) -> ModelShape:
    """With the bytes that its weights have, where they are there."""
    total = 0
    for path in folder.glob("*.safetensors"):
        for entry in _safetensors_header(path).values():
            begin, end = entry.get("data_offsets", (0, 0))
            total += end - begin
    return replace(shape, stored_bytes=total) if total else shape


def _safetensors_header(path: Path) -> dict[str, Any]:
    """https://huggingface.co/docs/safetensors: eight bytes of length, then JSON. Raises ``PlanError``."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _LONGEST_HEADER:
                raise ValueError("its header is longer than any")
            header = json.loads(file.read(length))
    except (OSError, ValueError, struct.error) as error:
        raise PlanError(f"{path}: cannot be read as safetensors: {error}") from None
    return {name: entry for name, entry in header.items() if name != "__metadata__"}
