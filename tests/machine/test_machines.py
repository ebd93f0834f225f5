"""Whole machines that have misled other programs, as trees of /proc and /sys: what the probe says of each."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from hetero.machine.gpu import TorchDevices
from hetero.machine.nvml import DriverGpu, DriverGpus
from hetero.machine.probe import probe
from hetero.machine.serialize import from_json, to_json
from hetero.machine.types import Machine
from hetero.native import tiers
from hetero.native.tiers import CpuLeaves, cpu_tiers
from tests.machine.trees import CPU, GIB, cgroup_v1, cgroup_v2, machine_tree, singles, smt_pairs

NODE = "sys/devices/system/node"
DRIVER: dict[str, object] = {
    "proc/driver/nvidia/version": "NVRM version: 580.159",
    "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de",
    "sys/bus/pci/devices/0000:01:00.0/class": "0x030200",
}
RTX = DriverGpu("RTX 5090", 32 * GIB, 31 * GIB, "12.0", 63e9)


def numa(root: Path, lists: Sequence[str], memory_kib: int = 96 << 20) -> Path:
    """Replace the tree's nodes by ones with these cpulists."""
    shutil.rmtree(root / NODE)
    for number, listed in enumerate(lists):
        folder = root / NODE / f"node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(listed + "\n")
        (folder / "meminfo").write_text(f"Node {number} MemTotal:       {memory_kib} kB\nNode {number} MemFree: 1 kB\n")
    (root / NODE / "possible").write_text("0-63\n")
    return root


def packages(cores: Sequence[Sequence[int]], sockets: int) -> dict[str, object]:
    """Which socket each core is on, in blocks of equal size."""
    size = len(cores) // sockets
    return {
        f"{CPU}/cpu{cpu}/topology/physical_package_id": number // size
        for number, core in enumerate(cores)
        for cpu in core
    }


def caches(groups: Sequence[str], size: str) -> dict[str, object]:
    """Third-level caches, one for each list of CPUs, and second-level ones that must not be counted."""
    files: dict[str, object] = {}
    for listed in groups:
        for part in listed.split(","):
            first, _, last = part.partition("-")
            for cpu in range(int(first), int(last or first) + 1):
                files[f"{CPU}/cpu{cpu}/cache/index3/size"] = size
                files[f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_list"] = listed
                files[f"{CPU}/cpu{cpu}/cache/index2/size"] = "2048K"
    return files


def same_in_json(machine: Machine) -> bool:
    return from_json(json.loads(json.dumps(to_json(machine)))) == machine


def test_dual_epyc_with_interleaved_numbers_has_the_nodes_of_its_files(tmp_path: Path) -> None:
    cores = smt_pairs(64)
    lists = [",".join(str(cpu) for cpu in range(node, 128, 8)) for node in range(8)]
    complexes = [f"{8 * i}-{8 * i + 7},{64 + 8 * i}-{64 + 8 * i + 7}" for i in range(8)]
    files = packages(cores, 2) | caches(complexes, "32768K")
    root = machine_tree(tmp_path, cores, files=files)
    info = root / "proc/cpuinfo"
    info.write_text("vendor_id : AuthenticAMD\n" + info.read_text())
    machine = probe(numa(root, lists))
    assert [",".join(map(str, node.cpus)) for node in machine.nodes] == lists
    assert {node.memory_bytes for node in machine.nodes} == {96 * GIB}
    assert (machine.sockets, machine.clustering) == (2, "4 NUMA nodes per socket (NPS4)")
    assert (machine.physical_cores, machine.threads_per_core, len(machine.cpus)) == (64, 2, 64)
    assert machine.cache_bytes == 8 * 32 << 20
    assert same_in_json(machine)


def test_sapphire_rapids_with_clusters_has_eight_nodes_on_two_sockets(tmp_path: Path) -> None:
    cores = smt_pairs(64)
    lists = [f"{8 * n}-{8 * n + 7},{64 + 8 * n}-{64 + 8 * n + 7}" for n in range(8)]
    files = packages(cores, 2) | caches(["0-31,64-95", "32-63,96-127"], "107520K")
    machine = probe(numa(machine_tree(tmp_path, cores, files=files), lists))
    assert machine.nodes[1].cpus == (*range(8, 16), *range(72, 80))
    assert machine.clustering == "4 NUMA nodes per socket (SNC4)"
    assert machine.cache_bytes == 2 * 107520 << 10
    assert same_in_json(machine)


def test_memory_without_cpus_is_a_node_but_no_cluster(tmp_path: Path) -> None:
    cores = singles(8)
    machine = probe(numa(machine_tree(tmp_path, cores, files=packages(cores, 2)), ["0-3", "4-7", ""]))
    assert [len(node.cpus) for node in machine.nodes] == [4, 4, 0]
    assert machine.clustering == ""


def test_nodes_that_a_container_shows_empty_are_left_out(tmp_path: Path) -> None:
    machine = probe(numa(machine_tree(tmp_path, singles(4)), ["0-3", ""], memory_kib=0))
    assert [node.id for node in machine.nodes] == [0]


def test_arrow_lake_counts_its_eight_performance_cores(tmp_path: Path) -> None:
    files = {"sys/devices/cpu_core/cpus": "0-7", "sys/devices/cpu_atom/cpus": "8-19"}
    machine = probe(machine_tree(tmp_path, singles(20), files=files))
    assert machine.cpus == tuple(range(8))
    assert (machine.physical_cores, machine.performance_cores, machine.threads_per_core) == (20, 8, 1)
    assert "performance cores 0-7" in machine.cpu_reason


def test_i9_counts_cores_and_not_threads(tmp_path: Path) -> None:
    cores = [[2 * i, 2 * i + 1] for i in range(8)] + [[cpu] for cpu in range(16, 32)]
    files = {"sys/devices/cpu_core/cpus": "0-15", "sys/devices/cpu_atom/cpus": "16-31"}
    machine = probe(machine_tree(tmp_path, cores, files=files))
    assert machine.cpus == tuple(range(0, 16, 2))
    assert (machine.physical_cores, machine.performance_cores, machine.threads_per_core) == (24, 8, 2)


def test_wsl_has_one_node_and_says_why(tmp_path: Path) -> None:
    files = {"proc/version": "Linux version 6.6.87.2-microsoft-standard-WSL2", "proc/sys/kernel/osrelease": "6.6-WSL2"}
    root = machine_tree(tmp_path, singles(192), flags="fpu hypervisor", files=files)
    shutil.rmtree(root / NODE)
    machine = probe(root)
    assert (len(machine.nodes), machine.nodes[0].source) == (1, "assumed")
    assert (machine.hypervisor, machine.kernel) == ("WSL", "6.6-WSL2")
    assert any("NUMA hidden by WSL" in note for note in machine.notes)


def quota_files(text: str) -> dict[str, object]:
    return cgroup_v2() | {"sys/fs/cgroup/cpu.max": text}


@pytest.mark.parametrize(
    ("files", "threads", "named"),
    [
        (quota_files("765000 100000"), 7, "cpu.max 765000/100000"),
        (quota_files("max 100000"), 96, ""),
        (
            cgroup_v1("cpu", "/") | {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": 250000},
            2,
            "cpu.cfs_quota_us 250000/100000",
        ),
        (
            cgroup_v2("/a/b")
            | {"sys/fs/cgroup/a/b/cpu.max": "900000 100000", "sys/fs/cgroup/a/cpu.max": "400000 100000"},
            4,
            "/sys/fs/cgroup/a/cpu.max",
        ),
    ],
    ids=["docker", "no quota", "v1", "nested"],
)
def test_quota_of_ninety_six_cores_is_kept_and_named(
    tmp_path: Path, files: Mapping[str, object], threads: int, named: str
) -> None:
    machine = probe(machine_tree(tmp_path, singles(96), files=files))
    assert len(machine.cpus) == threads
    assert machine.cpu_reason.startswith(f"{threads} of 96 cores usable")
    assert named in machine.cpu_reason


def test_system_without_sys_is_one_node_of_what_the_kernel_lists(tmp_path: Path) -> None:
    root = machine_tree(tmp_path, singles(4))
    shutil.rmtree(root / "sys")
    machine = probe(root)
    assert [(node.id, node.cpus, node.source) for node in machine.nodes] == [(0, (0, 1, 2, 3), "assumed")]
    assert (machine.sockets, machine.cache_bytes, machine.huge_pages) == (1, 0, None)
    assert same_in_json(machine)


@pytest.fixture
def amx_without_palette(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPUID and XCR0 of a Sapphire Rapids in a virtual machine that hides the palette."""
    tiles = 1 << 22 | 1 << 24 | 1 << 25
    avx512 = {"leaf7_ebx": 1 << 5 | 1 << 16 | 1 << 17 | 1 << 30 | 1 << 31, "leaf7_ecx": 1 << 11, "leaf7_1_eax": 1 << 5}
    cpu = CpuLeaves(is_x86=1, leaf1_ecx=1 << 12 | 1 << 27 | 1 << 29, leaf7_edx=tiles, xcr0=0x602E7, **avx512)
    cpu_tiers.cache_clear()
    monkeypatch.setattr(tiers, "read_cpu", lambda: dataclasses.replace(cpu, max_palette=0))
    monkeypatch.delenv("HETERO_ISA", raising=False)
    yield
    cpu_tiers.cache_clear()


@pytest.mark.usefixtures("amx_without_palette")
def test_amx_without_a_palette_is_not_usable_and_the_reason_says_so(tmp_path: Path) -> None:
    machine = probe(machine_tree(tmp_path, singles(2)))
    amx = next(tier for tier in machine.tiers if tier.name == "amx")
    assert not amx.usable
    assert "no tile palette" in amx.reason
    assert machine.isa_tier in ("generic", "avx2", "avx512")


def test_dead_driver_is_loud_in_the_drivers_words_without_torch(tmp_path: Path) -> None:
    root = machine_tree(tmp_path, singles(2), files=DRIVER)
    words = "NVML error 18: Driver/library version mismatch"
    machine = probe(root, quick=True, torch_devices=_forbidden, driver_gpus=lambda: DriverGpus(error=words))
    assert machine.gpus == ()
    note = next(note for note in machine.notes if words in note)
    assert note.startswith(machine.gpu_reason)
    assert "reboot or reload nvidia-uvm" in note


def test_card_that_the_driver_lists_but_torch_refuses_is_shown_as_unusable(tmp_path: Path) -> None:
    root = machine_tree(tmp_path, singles(2), files=DRIVER)
    error = "Error 804: forward compatibility was attempted on non supported HW"
    machine = probe(root, torch_devices=lambda: TorchDevices(error=error), driver_gpus=lambda: DriverGpus((RTX,)))
    assert machine.gpus == ()
    assert [(gpu.name, gpu.usable, gpu.reason) for gpu in machine.devices] == [("RTX 5090", False, error)]


def test_quick_look_takes_the_drivers_word(tmp_path: Path) -> None:
    root = machine_tree(tmp_path, singles(2), files=DRIVER)
    second = dataclasses.replace(RTX, name="RTX 3060", link_bytes_per_s=0.0)
    machine = probe(root, quick=True, torch_devices=_forbidden, driver_gpus=lambda: DriverGpus((RTX, second)))
    assert machine.gpus == ("RTX 5090", "RTX 3060")
    assert machine.gpu_memory_bytes == (31 * GIB, 31 * GIB)
    first, other = machine.devices
    assert (first.memory_total, first.compute_capability, first.usable, first.reason) == (32 * GIB, "12.0", True, "")
    assert first.pcie_bytes_per_s is not None
    assert first.pcie_bytes_per_s.source == "assumed"
    assert (other.pcie_bytes_per_s, other.reason) == (None, "one GPU is used: the first")
    assert same_in_json(machine)


def test_links_of_hidden_or_reordered_cards_are_not_guessed(tmp_path: Path) -> None:
    root = machine_tree(tmp_path, singles(2), files=DRIVER)
    torch_sees = TorchDevices(("RTX 3060",), (11 * GIB,), "", (12 * GIB,), ("8.6",))
    machine = probe(root, torch_devices=lambda: torch_sees, driver_gpus=lambda: DriverGpus((RTX,)))
    assert [(gpu.name, gpu.memory_total, gpu.pcie_bytes_per_s) for gpu in machine.devices] == [
        ("RTX 3060", 12 * GIB, None)
    ]


def test_huge_pages_are_reported(tmp_path: Path) -> None:
    files = {
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "proc/meminfo": "MemTotal: 1024 kB\nMemAvailable: 512 kB\nHugePages_Total: 6\nHugePages_Free: 2\n"
        "Hugepagesize: 2048 kB",
    }
    pages = probe(machine_tree(tmp_path, singles(2), files=files)).huge_pages
    assert pages is not None
    assert (pages.transparent, pages.page_bytes, pages.total, pages.free) == ("madvise", 2 << 20, 6, 2)


@pytest.mark.parametrize(
    ("files", "flags", "name"),
    [
        ({}, "fpu", ""),
        ({}, "fpu hypervisor", "unknown"),
        ({"sys/hypervisor/type": "xen"}, "fpu hypervisor", "xen"),
        (
            {"sys/class/dmi/id/sys_vendor": "QEMU", "sys/class/dmi/id/product_name": "Standard PC"},
            "hypervisor",
            "QEMU Standard PC",
        ),
        ({"sys/class/dmi/id/sys_vendor": "Dell Inc."}, "fpu", ""),
    ],
)
def test_hypervisor_is_named(tmp_path: Path, files: Mapping[str, object], flags: str, name: str) -> None:
    assert probe(machine_tree(tmp_path, singles(2), flags=flags, files=files)).hypervisor == name


def _forbidden() -> TorchDevices:
    raise AssertionError("torch was asked")
