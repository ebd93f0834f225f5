"""NVIDIA GPUs: whether one is present by what the kernel shows, and whether torch can use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hetero.machine.files import read_text
from hetero.machine.units import size_text

_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"
_LOOKED = "looked at /proc/driver/nvidia, PCI vendor 0x10de and /dev/dxg"


@dataclass(frozen=True, slots=True)
class TorchDevices:
    """What torch can use: names and free bytes of its devices, or the error that keeps it from them."""

    names: tuple[str, ...] = ()
    free_bytes: tuple[int, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Gpus:
    """Usable GPUs and the sentence that explains them; `notes` warn about a GPU that cannot be used."""

    names: tuple[str, ...]
    free_bytes: tuple[int, ...]
    reason: str
    notes: tuple[str, ...]


def find_gpus(
    root: Path = Path("/"), ask: bool = True, torch_devices: Callable[[], TorchDevices] | None = None
) -> Gpus:
    """Look for NVIDIA GPUs below `root`; torch is imported only if there is one and `ask` is set."""
    present, driver = _present(root)
    if not present:
        return Gpus((), (), f"no NVIDIA device ({_LOOKED})", ())
    if not driver:
        text = f"NVIDIA GPU present ({present}) but no driver is loaded: /proc/driver/nvidia/version is absent"
        return Gpus((), (), text, (f"{text}. Everything runs on the CPU. Install or load the nvidia driver",))
    if not ask:
        return Gpus((), (), f"NVIDIA GPU present ({present}), not asked for", ())
    found = (torch_devices or ask_torch)()
    if not found.names:
        text = f"NVIDIA GPU present ({present}) but unusable: {found.error or 'torch sees no device'}"
        return Gpus((), (), text, (f"{text}. Everything runs on the CPU. {_remedy(found.error)}",))
    sizes = ", ".join(f"{n} ({size_text(b)} free)" for n, b in zip(found.names, found.free_bytes, strict=True))
    unused = "; the first is used, the others are not" if len(found.names) > 1 else ""
    return Gpus(found.names, found.free_bytes, sizes + unused, ())


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
        count = torch.cuda.device_count()
        names = tuple(torch.cuda.get_device_name(i) for i in range(count))
        free = tuple(int(torch.cuda.mem_get_info(i)[0]) for i in range(count))
    except (RuntimeError, AssertionError) as error:
        return TorchDevices(error=" ".join(str(error).split()))
    return TorchDevices(names, free)


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
