"""Where and how a model computes: device, dtype and threads, as configured or chosen for this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from engine.errors import StartupError
from engine.models.registry import read_config
from kernels.launch import path

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SMALL = 100 * 2**20
"""Bytes of weights up to which a CPU computes in float32 and on one thread, where neither is configured."""


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise StartupError(f"--device must be auto, cpu, cuda or one such as cuda:1, not {name!r}.")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise StartupError(f"--device {name}, but PyTorch finds no GPU on this machine.")
    device = torch.device(name)
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise StartupError(
            f"--device {name}, but PyTorch finds {torch.cuda.device_count()} on this machine, from cuda:0."
        )
    return device


def gpu_uuids(device: torch.device, ranks: int = 1) -> tuple[str, ...]:
    """NVIDIA's names of the GPUs that ``ranks`` processes compute on, of which ``device`` is the first one's. Indices
    would not do: NVML knows nothing of ``CUDA_VISIBLE_DEVICES``."""
    if device.type != "cuda" or torch.version.hip:
        return ()
    first = torch.cuda.current_device() if device.index is None else device.index
    indices = range(ranks) if ranks > 1 else (first,)
    return tuple(str(torch.cuda.get_device_properties(index).uuid) for index in indices)


def check_kernels(device: torch.device) -> None:
    """Raises ``StartupError`` if ``TOLLGATE_KERNELS`` asks for what cannot be had on this device."""
    try:
        wanted = path()
    except ValueError as error:
        raise StartupError(str(error)) from error
    if wanted == "triton" and device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise StartupError(
            "TOLLGATE_KERNELS=triton on a CPU needs TRITON_INTERPRET=1 beside it, and is very slow: leave it out."
        )


def pick_dtype(name: str, folder: Path, device: torch.device) -> torch.dtype:
    """``auto``: what the checkpoint says, but float32 for a small model on a CPU, where it is faster, and exact."""
    if name != "auto":
        return _DTYPES[name]
    if device.type == "cpu" and _weight_bytes(folder) <= _SMALL:
        return torch.float32
    config = read_config(folder)
    return _DTYPES.get(config.get("dtype") or config.get("torch_dtype") or "", torch.bfloat16)


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """How many this process may keep busy, within its container's ``quota``, beyond which threads are throttled
    (https://docs.kernel.org/admin-guide/cgroup-v2.html)."""
    allowed = len(os.sched_getaffinity(0))
    try:
        most, period = quota.read_text().split()
        return max(1, min(allowed, round(int(most) / int(period))))
    except (OSError, ValueError):  # none, or "max"
        return allowed


def pick_threads(folder: Path) -> int:
    """One for a small model: its products do not repay waking a second thread, and the HTTP process needs a core
    too."""
    return 1 if _weight_bytes(folder) <= _SMALL else cores()


def _weight_bytes(folder: Path) -> int:
    sizes = (
        sum(file.stat().st_size for file in folder.glob(f"*.{kind}")) for kind in ("safetensors", "gguf")
    )
    return next(filter(None, sizes), 0)
