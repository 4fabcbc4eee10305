"""NVIDIA's management library (NVML), as far as an engine tells of its GPUs.

Bound by ctypes: it comes with the driver, so there is nothing to install, and nothing is loaded where there is no GPU.
Names, numbers and layouts: https://docs.nvidia.com/deploy/nvml-api/.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

LIBRARY = "libnvidia-ml.so.1"

_NOT_FOUND = 6
_MISSING = frozenset((3, 13))
"""NOT_SUPPORTED and FUNCTION_NOT_FOUND: this GPU, this part of one (MIG) or this driver has no such figure."""
_TEMPERATURE_GPU = 0
_PCIE_SENT, _PCIE_RECEIVED = 0, 1
_NVLINK_SENT, _NVLINK_RECEIVED = 138, 139
_ALL_LINKS = 2**32 - 1
_UNSIGNED_INT = 1
"""The type of a field's value; the others that counters have are of 64 bits."""

T = TypeVar("T")


class NvmlError(Exception):
    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function}: NVML error {code}")
        self.code = code


@dataclass(frozen=True, slots=True)
class GpuSample:
    """``None``: the GPU or its driver does not tell."""

    name: str | None
    utilization: float | None
    """The share of the last moments (up to a second) in which a kernel ran."""
    memory_utilization: float | None
    """And in which its memory was read or written."""
    memory_used: int | None
    """Bytes."""
    memory_total: int | None
    pcie_received: float | None
    """Bytes/s, over 20 ms."""
    pcie_sent: float | None
    nvlink_received: int | None
    """Bytes over all links since the driver was loaded."""
    nvlink_sent: int | None
    temperature: int | None
    """Degrees Celsius."""
    power: float | None
    """Watts."""
    power_limit: float | None


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Value(ctypes.Union):
    _fields_ = (("short", ctypes.c_uint), ("long", ctypes.c_ulonglong))


class _Field(ctypes.Structure):
    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("kind", ctypes.c_uint),
        ("result", ctypes.c_int),
        ("value", _Value),
    )


class Nvml:
    """Raises OSError where there is no such library, and ``NvmlError`` for what it answers, on each call."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._library = ctypes.CDLL(library)
        self._call("nvmlInit_v2")

    def close(self) -> None:
        self._call("nvmlShutdown")

    def sample(self, uuid: str) -> GpuSample:
        """Of the GPU, or the part of one, that CUDA calls so. Takes some 50 ms, and longer while the driver is busy."""
        device = self._device(uuid)
        chip = _known(lambda: self._chip(device)) or device
        use = _known(lambda: self._read("nvmlDeviceGetUtilizationRates", device, _Utilization()))
        memory = _known(lambda: self._read("nvmlDeviceGetMemoryInfo", device, _Memory()))
        pcie = [
            _known(lambda way=way: self._number("nvmlDeviceGetPcieThroughput", device, way))  # type: ignore[misc]
            for way in (_PCIE_RECEIVED, _PCIE_SENT)
        ]
        power = _known(lambda: self._number("nvmlDeviceGetPowerUsage", chip))
        limit = _known(lambda: self._number("nvmlDeviceGetEnforcedPowerLimit", chip))
        return GpuSample(
            name=_known(lambda: self._name(device)),
            utilization=None if use is None else use.gpu / 100,
            memory_utilization=None if use is None else use.memory / 100,
            memory_used=None if memory is None else memory.used,
            memory_total=None if memory is None else memory.total,
            pcie_received=None if pcie[0] is None else pcie[0] * 1000.0,
            pcie_sent=None if pcie[1] is None else pcie[1] * 1000.0,
            nvlink_received=_known(lambda: self._nvlink(device, _NVLINK_RECEIVED)),
            nvlink_sent=_known(lambda: self._nvlink(device, _NVLINK_SENT)),
            temperature=_known(lambda: self._number("nvmlDeviceGetTemperature", chip, _TEMPERATURE_GPU)),
            power=None if power is None else power / 1000,
            power_limit=None if limit is None else limit / 1000,
        )

    def _device(self, uuid: str) -> ctypes.c_void_p:
        device = ctypes.c_void_p()
        try:
            self._call("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}".encode(), ctypes.byref(device))
        except NvmlError as error:
            if error.code != _NOT_FOUND:
                raise
            self._call("nvmlDeviceGetHandleByUUID", f"MIG-{uuid}".encode(), ctypes.byref(device))
        return device

    def _chip(self, part: ctypes.c_void_p) -> ctypes.c_void_p | None:
        """The GPU of which it is a part: that has a temperature. None if it is one itself."""
        is_part = self._number("nvmlDeviceIsMigDeviceHandle", part)
        if not is_part:
            return None
        chip = ctypes.c_void_p()
        self._call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", part, ctypes.byref(chip))
        return chip

    def _name(self, device: ctypes.c_void_p) -> str:
        name = ctypes.create_string_buffer(96)
        self._call("nvmlDeviceGetName", device, name, ctypes.c_uint(len(name)))
        return name.value.decode(errors="replace")

    def _nvlink(self, device: ctypes.c_void_p, field: int) -> int:
        asked = _Field(field=field, scope=_ALL_LINKS)
        self._call("nvmlDeviceGetFieldValues", device, ctypes.c_int(1), ctypes.byref(asked))
        if asked.result:
            raise NvmlError("nvmlDeviceGetFieldValues", asked.result)
        kibibytes = asked.value.short if asked.kind == _UNSIGNED_INT else asked.value.long
        return int(kibibytes) * 1024

    def _number(self, function: str, device: ctypes.c_void_p, *options: int) -> int:
        number = ctypes.c_uint()
        self._call(function, device, *map(ctypes.c_uint, options), ctypes.byref(number))
        return number.value

    def _read(self, function: str, device: ctypes.c_void_p, into: T) -> T:
        self._call(function, device, ctypes.byref(into))  # type: ignore[arg-type]
        return into

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NvmlError(name, 13) from None
        if code := function(*arguments):
            raise NvmlError(name, code)


def _known(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except NvmlError as error:
        if error.code not in _MISSING:
            raise
        return None
