"""One look at this computer: CPUs, memory, ISA tiers, GPUs. Reads files only; nothing here is measured."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from hetero.machine.cpu import cpu_model, usable_cpus
from hetero.machine.files import read_text
from hetero.machine.gpu import TorchDevices, find_gpus
from hetero.machine.memory import usable_memory
from hetero.machine.types import HeteroError, Machine, TierStatus


def probe(
    root: Path = Path("/"),
    quick: bool = True,
    *,
    device: str = "auto",
    torch_devices: Callable[[], TorchDevices] | None = None,
) -> Machine:
    """The facts about the computer below `root`, in well under a second.

    `device="cpu"` never asks torch; otherwise torch is imported, but only where an NVIDIA GPU is present.
    `quick` is accepted for callers that must not wait; all that is probed today is quick.
    """
    cpus = usable_cpus(root)
    memory = usable_memory(root)
    gpus = find_gpus(root, ask=device != "cpu", torch_devices=torch_devices)
    tiers, isa_tier, isa_reason = _isa()
    notes = [*cpus.notes, *gpus.notes, *_virtual_notes(root)]
    if isa_tier is None:
        notes.append(isa_reason)
    return Machine(
        cpu_model=cpu_model(root),
        cpus=cpus.cpus,
        visible_cpus=cpus.visible,
        cpu_reason=cpus.reason,
        memory_bytes=memory.usable,
        memory_total_bytes=memory.total,
        memory_reason=memory.reason,
        tiers=tiers,
        isa_tier=isa_tier,
        gpus=gpus.names,
        notes=tuple(notes),
        disk_free_bytes=_disk_free(),
        spare_cpus=cpus.spare,
        isa_reason=isa_reason,
        gpu_reason=gpus.reason,
        gpu_memory_bytes=gpus.free_bytes,
    )


def _isa() -> tuple[tuple[TierStatus, ...], str | None, str]:
    """All tiers, the one in use and why. A machine without kernels can still be probed."""
    try:
        from hetero.native import choose_tier, cpu_tiers
    except ImportError as error:
        return (), None, f"no native kernels: {error}"
    tiers = cpu_tiers()
    try:
        chosen = choose_tier(None)
    except HeteroError as error:
        return tiers, None, f"{error.message}; {error.hint}" if error.hint else error.message
    reasons = [tier.reason for tier in tiers if tier.name == chosen]
    return tiers, chosen, reasons[0] if reasons else ""


def _virtual_notes(root: Path) -> list[str]:
    release = read_text(root / "proc/sys/kernel/osrelease") or read_text(root / "proc/version") or ""
    if "microsoft" in release.lower():
        return ["WSL: NUMA hidden by WSL, memory and CPUs are those given to the virtual machine"]
    flags = next((x for x in (read_text(root / "proc/cpuinfo") or "").splitlines() if x.startswith("flags")), "")
    if "hypervisor" in flags.split():
        return ["virtual machine: the host may hide CPU features and NUMA, and share cores and memory bandwidth"]
    return []


def _disk_free() -> int:
    """Free bytes where the user stands, 0 if that folder is gone."""
    try:
        return shutil.disk_usage(Path.cwd()).free
    except OSError:
        return 0
