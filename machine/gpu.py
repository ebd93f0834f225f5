"""NVIDIA GPUs: whether one is present by what the kernel shows, and whether torch can use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hetero.machine.files import read_text
from hetero.machine.nvml import DriverGpus, ask_driver
from hetero.machine.types import Gpu, Measured
from hetero.machine.units import size_text

_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"
_LOOKED = "looked at /proc/driver/nvidia, PCI vendor 0x10de and /dev/dxg"
_ONLY_FIRST = "one GPU is used: the first"
_LINK_SHARE = 0.8
"""Of a link's nominal rate what copies reach."""


@dataclass(frozen=True, slots=True)
class TorchDevices:
    """What torch can use: names, free and total bytes, capabilities of its devices, or the error that prevents it."""

    names: tuple[str, ...] = ()
    free_bytes: tuple[int, ...] = ()
    error: str = ""
    total_bytes: tuple[int, ...] = ()
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gpus:
    """Usable GPUs and the sentence that explains them; `notes` warn about a GPU that cannot be used."""

    names: tuple[str, ...]
    free_bytes: tuple[int, ...]
    reason: str
    notes: tuple[str, ...]
    devices: tuple[Gpu, ...] = ()


def find_gpus(
    root: Path = Path("/"),
    ask: bool = True,
    torch_devices: Callable[[], TorchDevices] | None = None,
    driver_gpus: Callable[[], DriverGpus] | None = None,
    use_torch: bool = True,
) -> Gpus:
    """Look for NVIDIA GPUs below `root`.

    Where there is one and `ask` is set, the driver's library is asked, and then torch if `use_torch`: torch has the
    last word on what is usable, but takes seconds to import.
    """
    present, driver = _present(root)
    if not present:
        return Gpus((), (), f"no NVIDIA device ({_LOOKED})", ())
    if not driver:
        text = f"NVIDIA GPU present ({present}) but no driver is loaded: /proc/driver/nvidia/version is absent"
        return _unusable(text, "Install or load the nvidia driver", ())
    if not ask:
        return Gpus((), (), f"NVIDIA GPU present ({present}), not asked for", ())
    # The library of this system knows nothing of a fixture's driver.
    seen = (driver_gpus or (ask_driver if root == Path("/") else DriverGpus))()
    if use_torch:
        found = (torch_devices or ask_torch)()
        if found.names:
            return _usable(_merged(found, seen))
        error = found.error or "torch sees no device"
    elif seen.gpus:
        return _usable(_from_driver(seen))
    else:
        error = seen.error
    if not error:
        return Gpus((), (), f"NVIDIA GPU present ({present}), the driver's library is not installed", ())
    return _unusable(f"NVIDIA GPU present ({present}) but unusable: {error}", _remedy(error), _from_driver(seen, error))


def ask_torch() -> TorchDevices:
    """The CUDA devices that torch can initialise. Imports torch, which takes seconds."""
    try:
        import torch
    except ImportError as error:
        return TorchDevices(error=f"torch cannot be imported ({error})")
    if torch.version.cuda is None:
        return TorchDevices(error=f"torch {torch.__version__} is a build without CUDA")
    try:
        # is_available() would swallow the driver's error text; init() raises it.
        torch.cuda.init()
        count = range(torch.cuda.device_count())
        names = tuple(torch.cuda.get_device_name(i) for i in count)
        sizes = [torch.cuda.mem_get_info(i) for i in count]
        capabilities = tuple("{}.{}".format(*torch.cuda.get_device_capability(i)) for i in count)
    except (RuntimeError, AssertionError) as error:
        return TorchDevices(error=" ".join(str(error).split()))
    free, total = tuple(int(size[0]) for size in sizes), tuple(int(size[1]) for size in sizes)
    return TorchDevices(names, free, "", total, capabilities)


def _usable(devices: tuple[Gpu, ...]) -> Gpus:
    free = tuple(gpu.memory_free for gpu in devices)
    sizes = ", ".join(f"{gpu.name} ({size_text(gpu.memory_free)} free)" for gpu in devices)
    unused = "; the first is used, the others are not" if len(devices) > 1 else ""
    return Gpus(tuple(gpu.name for gpu in devices), free, sizes + unused, (), devices)


def _unusable(text: str, remedy: str, devices: tuple[Gpu, ...]) -> Gpus:
    return Gpus((), (), text, (f"{text}. Everything runs on the CPU. {remedy}",), devices)


def _merged(found: TorchDevices, seen: DriverGpus) -> tuple[Gpu, ...]:
    """torch's devices with the links that the driver knows, where both see the same cards."""
    links = [gpu.link_bytes_per_s for gpu in seen.gpus]
    if tuple(gpu.name for gpu in seen.gpus) != found.names:  # CUDA_VISIBLE_DEVICES hides or reorders cards
        links = [0.0] * len(found.names)
    totals = found.total_bytes or found.free_bytes
    capabilities = found.capabilities or ("",) * len(found.names)
    return tuple(
        Gpu(name, total, free, capability, _link(link), True, _ONLY_FIRST if i else "", "file")
        for i, (name, total, free, capability, link) in enumerate(
            zip(found.names, totals, found.free_bytes, capabilities, links, strict=True)
        )
    )


def _from_driver(seen: DriverGpus, error: str = "") -> tuple[Gpu, ...]:
    return tuple(
        Gpu(
            name=gpu.name,
            memory_total=gpu.memory_total,
            memory_free=gpu.memory_free,
            compute_capability=gpu.compute_capability,
            pcie_bytes_per_s=_link(gpu.link_bytes_per_s),
            usable=not error,
            reason=error or (_ONLY_FIRST if i else ""),
            source="file",
        )
        for i, gpu in enumerate(seen.gpus)
    )


def _link(nominal: float) -> Measured | None:
    return Measured(_LINK_SHARE * nominal, "B/s", "assumed", samples=0) if nominal else None


def _present(root: Path) -> tuple[str, bool]:
    """What shows that there is an NVIDIA GPU (empty: nothing does), and whether its driver is loaded."""
    driver = read_text(root / "proc/driver/nvidia/version") is not None
    for device in sorted(_children(root / "sys/bus/pci/devices")):
        is_display = (read_text(device / "class") or "").startswith(_DISPLAY_CLASS)
        if is_display and read_text(device / "vendor") == _NVIDIA:
            return f"PCI {device.name}", driver
    if driver:
        return "/proc/driver/nvidia", True
    # WSL2 passes the GPU through without PCI or a Linux driver.
    if (root / "dev/dxg").exists() and (root / "usr/lib/wsl/lib/libcuda.so.1").exists():
        return "/dev/dxg", True
    return "", False


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _remedy(error: str) -> str:
    if "without CUDA" in error or "imported" in error:
        return "Install a CUDA build of torch to use it"
    return "After a driver update reboot or reload nvidia-uvm; in a container start it with --gpus all"
