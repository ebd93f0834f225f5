"""One look at this computer: CPUs, memory, ISA tiers, GPUs. Reads files only; rates come from `machine.measure`."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hetero.machine.cpu import cpu_model, usable_cpus
from hetero.machine.gpu import Gpus, TorchDevices, find_gpus
from hetero.machine.memory import usable_memory
from hetero.machine.nvml import DriverGpus
from hetero.machine.topology import huge_pages, hypervisor, kernel_release, topology
from hetero.machine.types import HeteroError, Machine, TierStatus


def probe(
    root: Path = Path("/"),
    quick: bool = False,
    *,
    device: str = "auto",
    torch_devices: Callable[[], TorchDevices] | None = None,
    driver_gpus: Callable[[], DriverGpus] | None = None,
) -> Machine:
    """The facts about the computer below `root`, without any measured rate.

    `quick` never imports torch: GPUs are then those that the driver reports, not those that torch can use.
    `device="cpu"` asks neither.
    """
    cpus = usable_cpus(root)
    memory = usable_memory(root)
    tiers, isa_tier, isa_reason = _isa()
    layout = topology(root, cpus.online, memory.total)
    host = hypervisor(root)
    machine = Machine(
        cpu_model=cpu_model(root),
        cpus=cpus.cpus,
        visible_cpus=cpus.visible,
        cpu_reason=cpus.reason,
        memory_bytes=memory.usable,
        memory_total_bytes=memory.total,
        memory_reason=memory.reason,
        tiers=tiers,
        isa_tier=isa_tier,
        disk_free_bytes=_disk_free(),
        spare_cpus=cpus.spare,
        isa_reason=isa_reason,
        nodes=layout.nodes,
        sockets=layout.sockets,
        clustering=layout.clustering,
        physical_cores=cpus.physical_cores,
        performance_cores=cpus.performance_cores,
        threads_per_core=cpus.threads_per_core,
        cache_bytes=layout.cache_bytes,
        huge_pages=huge_pages(root),
        hypervisor=host,
        kernel=kernel_release(root),
        torch_cuda=_torch_has_cuda(),
    )
    gpus = find_gpus(root, device != "cpu", torch_devices, driver_gpus, use_torch=not quick)
    return _with_gpus(machine, gpus, [*cpus.notes, *gpus.notes, *_virtual_notes(host)])


def _with_gpus(machine: Machine, found: Gpus, notes: list[str]) -> Machine:
    """What was found of GPUs, and all notes, the one on missing kernels last."""
    return replace(
        machine,
        gpus=found.names,
        gpu_reason=found.reason,
        gpu_memory_bytes=found.free_bytes,
        devices=found.devices,
        notes=tuple(notes) + ((machine.isa_reason,) if machine.isa_tier is None else ()),
    )


def _torch_has_cuda() -> bool:
    """From the libraries that lie in torch's folder; torch itself is not imported."""
    spec = importlib.util.find_spec("torch")
    folders = spec.submodule_search_locations if spec is not None else None
    return any((Path(folder) / "lib" / "libtorch_cuda.so").exists() for folder in folders or ())


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


def _virtual_notes(host: str) -> list[str]:
    if host == "WSL":
        return ["WSL: NUMA hidden by WSL, memory and CPUs are those given to the virtual machine"]
    if host:
        return ["virtual machine: the host may hide CPU features and NUMA, and share cores and memory bandwidth"]
    return []


def _disk_free() -> int:
    """Free bytes where the user stands, 0 if that folder is gone."""
    try:
        return shutil.disk_usage(Path.cwd()).free
    except OSError:
        return 0
