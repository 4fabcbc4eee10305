"""The header of a GGUF file: its metadata, and the sizes of its tensors (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

Read from the file's beginning alone; long lists, such as the vocabulary, are passed over.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from gateway.lab.plan.errors import PlanError
from gateway.lab.plan.shape import Attention, Mixture, ModelShape

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_KEPT = 4096
"""Entries of a list that are kept; longer ones are passed over."""
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_BITS: Mapping[int, float] = {
    0: 32,
    1: 16,
    30: 16,
    28: 64,
    24: 8,
    25: 16,
    26: 32,
    27: 64,
    2: 4.5,
    3: 5,
    6: 5.5,
    7: 6,
    8: 8.5,
    10: 2.625,
    11: 3.4375,
    12: 4.5,
    13: 5.5,
    14: 6.5625,
    15: 9.125,
    16: 2.0625,
    17: 2.3125,
    18: 3.0625,
    19: 1.5625,
    20: 4.5,
    21: 3.4375,
    22: 2.5625,
    23: 4.25,
    29: 1.75,
    34: 1.6875,
    35: 2.0625,
    39: 4.25,
}
"""Bits of a number, by the number of its type in ggml.h: the bytes of a block by the numbers in it."""
_ALTERNATING = {"gemma2": 2, "gemma3": 6, "cohere2": 4, "gpt-oss": 2}
"""Architectures in which the last of so many layers sees everything, and the others a window."""
_WINDOWED = ("llama", "phi3", "starcoder2")
"""All of whose layers have the window, where there is one."""


class Header:
    """Of a file, or of all files of a model in several."""

    def __init__(self, path: Path) -> None:
        """Raises ``PlanError``."""
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, tuple[int, float]] = {}
        """By name: how many numbers, and bytes."""
        for part in _parts(path):
            try:
                with part.open("rb") as file:
                    self._read(file)
            except (OSError, struct.error, UnicodeDecodeError, ValueError, MemoryError) as error:
                raise PlanError(f"{part}: cannot be read as GGUF: {error or 'it is cut off'}") from None
        self.architecture = str(self.metadata.get("general.architecture", ""))

    def number(self, key: str, default: int | None = None) -> int:
        """A value of the architecture, of a list its largest. Raises ``PlanError``."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if isinstance(value, list) and value:
            value = max(value)
        if not isinstance(value, int) or value < 0:
            raise PlanError(f"the GGUF header has no {self.architecture}.{key}: is it a language model?")
        return value

    def _read(self, file: BinaryIO) -> None:
        if file.read(4) != b"GGUF":
            raise ValueError("it does not begin with 'GGUF'")
        version, tensors, pairs = struct.unpack("<IQQ", file.read(20))
        if version not in (2, 3):
            raise ValueError(f"version {version} is not known; 2 and 3 are")
        for _ in range(pairs):
            key = self._string(file)
            value = self._value(file, self._scalar(file, 4))
            self.metadata.setdefault(key, value)
        for _ in range(tensors):
            name = self._string(file)
            shape = struct.unpack(f"<{(rank := self._scalar(file, 4))}Q", file.read(8 * rank))
            kind, _ = struct.unpack("<IQ", file.read(12))
            if kind not in _BITS:
                raise ValueError(f"{name} has the type {kind}, which is not known")
            count = math.prod(shape)
            self.tensors[name] = count, count * _BITS[kind] / 8

    def _scalar(self, file: BinaryIO, kind: int) -> Any:
        layout = "<" + _SCALARS[kind]
        return struct.unpack(layout, file.read(struct.calcsize(layout)))[0]

    def _string(self, file: BinaryIO) -> str:
        length = self._scalar(file, 10)
        if length > 2**24:
            raise ValueError("a text in it is longer than any")
        return file.read(length).decode()

    def _value(self, file: BinaryIO, kind: int) -> Any:
        if kind == _STRING:
            return self._string(file)
        if kind != _ARRAY:
            if kind not in _SCALARS:
                raise ValueError(f"a value has the type {kind}, which is not known")
            return self._scalar(file, kind)
        inner, count = struct.unpack("<IQ", file.read(12))
        if inner in _SCALARS and count > _KEPT:
            file.seek(count * struct.calcsize("<" + _SCALARS[inner]), 1)
            return None
        if inner == _STRING and count > _KEPT:
            for _ in range(count):
                file.seek(self._scalar(file, 10), 1)
            return None
        return [self._value(file, inner) for _ in range(count)]


def read_gguf(path: Path) -> ModelShape:
    """Raises ``PlanError``."""
    header = Header(path)
    if "token_embd.weight" not in header.tensors:
        raise PlanError(f"{path}: there is no token_embd.weight in it: it holds no language model")
    layers, hidden = header.number("block_count"), header.number("embedding_length")
    heads = header.number("attention.head_count")
    sizes = {name: count for name, (count, _) in header.tensors.items()}
    embedding, tied = sizes["token_embd.weight"], "output.weight" not in sizes
    matrices = {
        name: count for name, count in sizes.items() if name.startswith("blk.") and count > 16 * hidden
    }
    # What routes is no expert, and neither is what all tokens go through.
    routed = {name: count for name, count in matrices.items() if "_exps" in name}
    mixture = None
    if routed:
        count = header.number("expert_count")
        sparse = len({name.split(".")[1] for name in routed})
        mixture = Mixture(
            count, header.number("expert_used_count"), sparse, sum(routed.values()) // (sparse * count)
        )
    latent = header.number("attention.kv_lora_rank", 0)
    if latent:
        attention = Attention(heads, 1, header.number("rope.dimension_count"), latent)
    else:
        attention = Attention(
            heads,
            header.number("attention.head_count_kv", heads),
            header.number("attention.key_length", hidden // heads),
        )
    return ModelShape(
        name=str(header.metadata.get("general.name") or path.stem),
        hidden=hidden,
        layers=layers,
        windows=_windows(header, layers),
        attention=attention,
        embedding=embedding,
        head=embedding,
        dense=sum(matrices.values()) - sum(routed.values()),
        tied=tied,
        mixture=mixture,
        longest=header.number("context_length", 0),
        stored=_FILE_TYPE,
        stored_bytes=round(sum(size for _, size in header.tensors.values())),
    )


_FILE_TYPE = "as stored"
"""The precision of a GGUF file is its own mixture."""


def _windows(header: Header, layers: int) -> tuple[int | None, ...]:
    window = header.number("attention.sliding_window", 0)
    if header.architecture == "gemma2":
        window = window or 4096
    if not window:
        return (None,) * layers
    pattern = header.metadata.get(f"{header.architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, list) and len(pattern) == layers:
        return tuple(window if slides else None for slides in pattern)
    period = pattern if isinstance(pattern, int) else _ALTERNATING.get(header.architecture)
    if period:
        return tuple(window if (layer + 1) % period else None for layer in range(layers))
    return (window if header.architecture in _WINDOWED else None,) * layers


def _parts(path: Path) -> list[Path]:
    found = _PART.fullmatch(path.name)
    if found is None:
        return [path]
    count = int(found[3])
    return [path.with_name(f"{found[1]}-{part:05}-of-{count:05}.gguf") for part in range(1, count + 1)]
