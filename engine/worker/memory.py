"""Memory: predicted for a model, free on the device, used by this process."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from pathlib import Path

import torch

from engine.errors import StartupError
from engine.heap import return_freed
from engine.weights.safetensors import open_file
from engine.weights.source import gguf_file
from kernels.native.linear import available

_BITS = {"int8": 8.03, "w8a8": 8.03, "fp8": 8.03, "int6": 6.25, "int4": 5.0, "int4-64": 4.5, "int4-128": 4.25}
"""Bits of a quantized weight, its share of the scales included."""
_ALONE = ("embed_tokens", "lm_head", "norm", "kv_b_proj")
"""Tensors by these names are not quantized, or seldom."""
_EMBEDDING = "token_embd.weight"
_ALONE_GGUF = (_EMBEDDING, "ffn_gate_inp.weight")
_CPU = torch.device("cpu")


def predict_weights(
    folder: Path, dtype: torch.dtype, quantization: str | None, device: torch.device = _CPU
) -> int:
    """Bytes that a folder's weights will take on ``device``, by the headers of its files alone; 0 if there are none.

    Raises ``ModelUnavailable`` if one of them is broken.
    """
    if file := gguf_file(folder):
        return _predict_gguf(file, dtype, quantization, device)
    total = 0.0
    for path in folder.glob("*.safetensors"):
        with open_file(path) as file:
            for name in file.keys():  # noqa: SIM118 -- it is no dict
                part = file.get_slice(name)
                count = _product(part.get_shape())
                plain = part.get_dtype() in ("F64", "F32", "F16", "BF16")
                if plain and quantization and len(part.get_shape()) > 1 and not _alone(name):
                    total += count * _BITS[quantization] / 8
                else:
                    total += count * (dtype.itemsize if plain else _stored(part.get_dtype()))
    return int(total)


def _predict_gguf(path: Path, dtype: torch.dtype, quantization: str | None, device: torch.device) -> int:
    # Imported here: other models need none of it.
    from engine.weights.dequantize import GROUPED, PLAIN
    from engine.weights.gguf import Gguf

    tensors = Gguf(path, texts=False).tensors
    on_cpu = device.type == "cpu"
    # Where the file is quantized, tensors that do not keep its 4 bits get 8.
    small = any(stored.type not in PLAIN for stored in tensors.values())
    method = quantization or ("int8" if small else None)
    total = 0.0
    for name, stored in tensors.items():
        count = _product(stored.shape)
        if name == _EMBEDDING and on_cpu and stored.type not in PLAIN:
            continue  # its rows are read from the file
        alone = len(stored.shape) < 2 or name.endswith((*_ALONE_GGUF, "norm.weight"))
        if quantization is None and stored.type in GROUPED and not alone:
            total += count * _BITS["int4"] / 8
        else:
            total += count * (_BITS[method] / 8 if method and not alone else dtype.itemsize)
    if method and "output.weight" not in tensors:
        total += _product(tensors[_EMBEDDING].shape) * _BITS[_head(method, on_cpu)] / 8
    return int(total)


def _head(method: str, on_cpu: bool) -> str:
    """How the LM head is kept where layers are by ``method``: see ``WeightLoader.quantized``."""
    if method in ("int8", "fp8"):
        return method
    return "int6" if on_cpu and available() else "int8"


def trim() -> None:
    """Frees what is garbage, and returns it to the system."""
    gc.collect()
    return_freed()


def check_room(needed: int, device: torch.device, quantization: str | None) -> None:
    """Raises ``StartupError`` if ``needed`` bytes are more than the device has left."""
    left = free(device)
    if needed > left:
        advice = "" if quantization else " --quantization int8 or int4 makes it smaller."
        raise StartupError(
            f"The weights need {needed / 2**30:.1f} GiB, but {device} has {left / 2**30:.1f} GiB left.{advice}"
        )


def free(device: torch.device) -> int:
    """Bytes that can be allocated without swapping."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return min(int(line.split()[1]) * 1024, _group_left())
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def taken(device: torch.device) -> int:
    """Bytes that this process uses: resident on a CPU, allocated on a GPU."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _group_left() -> int:
    """Bytes that a container's control group still allows (https://docs.kernel.org/admin-guide/cgroup-v2.html)."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        return int(limit) - int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return 1 << 62


def _product(shape: Iterable[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _alone(name: str) -> bool:
    return any(part in name for part in _ALONE)


def _stored(dtype: str) -> float:
    return {"I64": 8, "I32": 4, "U32": 4, "I16": 2}.get(dtype, 1)
