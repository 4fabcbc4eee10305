"""The header of a safetensors file, read without its tensors (https://github.com/huggingface/safetensors#format).

Eight bytes with the header's length, little-endian; the header, a JSON object of tensors by name; their bytes, one
after the other, without holes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import orjson

LENGTH = 8
"""Bytes that say how long the header is."""
MOST_HEADER = 8 * 2**20
"""Bytes; an adapter's has some 100 for each tensor."""
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Of an element, by its type. Low-rank matrices in fewer bits are not served."""


class NotSafetensors(ValueError):
    """What is wrong with the file, for whoever sent it."""


@dataclass(frozen=True, slots=True)
class TensorShape:
    dtype: str
    shape: tuple[int, ...]


def header_length(first: bytes) -> int:
    """By the first eight bytes of a file. Raises ``NotSafetensors``."""
    if len(first) < LENGTH:
        raise NotSafetensors("it is shorter than any safetensors file")
    length = int.from_bytes(first[:LENGTH], "little")
    if 2 <= length <= MOST_HEADER:
        return length
    if first[:4] == b"PK\3\4" or first[:1] == b"\x80":
        raise NotSafetensors("it is a pickle of PyTorch's; save it with safetensors")
    raise NotSafetensors(f"its header would have {length:,} bytes, and {MOST_HEADER:,} are the most")


def read_header(header: bytes, size: int) -> Mapping[str, TensorShape]:
    """The tensors of a file of ``size`` bytes, by name. Raises ``NotSafetensors``."""
    try:
        found = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise NotSafetensors(f"its header is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise NotSafetensors("its header is not a JSON object")
    about = found.pop("__metadata__", {})
    if not isinstance(about, dict) or not all(isinstance(one, str) for one in about.values()):
        raise NotSafetensors("its '__metadata__' is not texts by name")
    places: list[tuple[int, int]] = []
    tensors: dict[str, TensorShape] = {}
    for name, entry in found.items():
        tensors[name], place = _tensor(name, entry)
        places.append(place)
    places.sort()
    end = size - LENGTH - len(header)
    edges = [(0, 0), *places, (end, end)]
    if any(one[1] != other[0] for one, other in pairwise(edges)):
        raise NotSafetensors("its tensors do not fill it without holes and overlaps: it may not be whole")
    return tensors


def _tensor(name: str, entry: Any) -> tuple[TensorShape, tuple[int, int]]:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]} if all(
            type(one) is int and 0 <= one < 2**31 for one in shape
        ):
            pass
        case _:
            raise NotSafetensors(f"its header does not say what '{name[:80]}' is")
    if dtype not in _BYTES:
        raise NotSafetensors(f"'{name[:80]}' is of type {dtype[:16]}; {', '.join(_BYTES)} are served")
    if len(shape) > 8 or not 0 <= start <= end or end - start != math.prod(shape) * _BYTES[dtype]:
        raise NotSafetensors(f"the bytes of '{name[:80]}' do not fit its shape")
    return TensorShape(dtype, tuple(shape)), (start, end)
