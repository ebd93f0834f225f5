"""What NVIDIA's driver library tells of its GPUs: a look of milliseconds, where torch takes seconds."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_GENERATION_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}
"""Bytes per second and lane of each PCIe generation."""


@dataclass(frozen=True, slots=True)
class DriverGpu:
    """One GPU: memory in bytes, `major.minor` capability, and what its PCIe link could carry (0: unknown)."""

    name: str
    memory_total: int
    memory_free: int
    compute_capability: str
    link_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class DriverGpus:
    """All GPUs, or the driver's own words why there are none; both empty where the library is not installed."""

    gpus: tuple[DriverGpu, ...] = ()
    error: str = ""


class _NvmlError(Exception):
    """A call that failed, with the library's text."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def ask_driver(library: str = _LIBRARY) -> DriverGpus:
    """Ask the driver library, which is part of every driver. Never raises; imports nothing of CUDA."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return DriverGpus()
    try:
        _call(nvml, "nvmlInit_v2")
    except _NvmlError as problem:
        return DriverGpus(error=str(problem))
    try:
        count = ctypes.c_uint()
        _call(nvml, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        return DriverGpus(tuple(_gpu(nvml, i) for i in range(count.value)))
    except _NvmlError as problem:
        return DriverGpus(error=str(problem))
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> DriverGpu:
    handle, memory, name = ctypes.c_void_p(), _Memory(), ctypes.create_string_buffer(96)
    _call(nvml, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    _call(nvml, "nvmlDeviceGetName", handle, name, ctypes.c_uint(len(name)))
    _call(nvml, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call(nvml, "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
    # The largest, not the current link: idle cards slow theirs down.
    generation = _optional(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle)
    width = _optional(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle)
    return DriverGpu(
        name.value.decode("utf-8", "replace"),
        int(memory.total),
        int(memory.free),
        f"{major.value}.{minor.value}",
        _GENERATION_BYTES.get(generation, 0.0) * width,
    )


def _optional(nvml: Any, function: str, handle: ctypes.c_void_p) -> int:
    """An unsigned fact that virtual GPUs do not have, 0 then."""
    value = ctypes.c_uint()
    try:
        _call(nvml, function, handle, ctypes.byref(value))
    except _NvmlError:
        return 0
    return value.value


def _call(nvml: Any, function: str, *arguments: Any) -> None:
    try:
        code = int(getattr(nvml, function)(*arguments))
    except AttributeError as problem:
        raise _NvmlError(f"the driver's {_LIBRARY} has no {function}") from problem
    if code:
        nvml.nvmlErrorString.restype = ctypes.c_char_p
        text = nvml.nvmlErrorString(code) or b"no text"
        raise _NvmlError(f"NVML error {code}: {text.decode('utf-8', 'replace')}")
