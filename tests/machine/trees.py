"""Fixture trees of /proc and /sys, written by code so that each test shows the machine it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

GIB = 1 << 30
CPU = "sys/devices/system/cpu"


def write(root: Path, files: Mapping[str, object]) -> Path:
    """Write `files` (path below `root` -> content) and return `root`."""
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def machine_tree(
    root: Path,
    cores: Sequence[Sequence[int]],
    *,
    allowed: str | None = None,
    online: str | None = None,
    model: str = "Fixture CPU",
    flags: str = "fpu avx2",
    files: Mapping[str, object] | None = None,
) -> Path:
    """A machine whose physical cores are the given sets of logical CPUs, 31 GiB of 32 free, one NUMA node."""
    cpus = sorted(cpu for core in cores for cpu in core)
    listed = online or f"0-{cpus[-1]}"
    tree: dict[str, object] = {
        f"{CPU}/online": listed,
        "sys/devices/system/node/node0/cpulist": listed,
        "proc/cpuinfo": "\n".join(f"processor : {c}\nmodel name : {model}\nflags : {flags}\n" for c in cpus),
        "proc/self/status": f"Name: x\nCpus_allowed_list:\t{allowed or listed}",
        "proc/meminfo": f"MemTotal: {32 << 20} kB\nMemFree: 1 kB\nMemAvailable: {31 << 20} kB",
        "proc/version": "Linux version 6.1.0",
    }
    for core in cores:
        for cpu in core:
            tree[f"{CPU}/cpu{cpu}/topology/thread_siblings_list"] = ",".join(map(str, core))
    return write(root, {**tree, **(files or {})})


def singles(n: int) -> list[list[int]]:
    """`n` cores without SMT."""
    return [[cpu] for cpu in range(n)]


def smt_pairs(n: int) -> list[list[int]]:
    """`n` cores whose second threads are numbered after all first ones."""
    return [[cpu, cpu + n] for cpu in range(n)]


def cgroup_v2(group: str = "/", mount_root: str = "/") -> dict[str, object]:
    """The /proc files of a process in `group` of a v2 hierarchy."""
    return {
        "proc/self/cgroup": f"0::{group}",
        "proc/self/mountinfo": f"31 23 0:28 {mount_root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw",
    }


def cgroup_v1(controllers: str, group: str = "/", mount_root: str = "/") -> dict[str, object]:
    """The /proc files of a process in `group` of one v1 hierarchy, mounted under its controllers' name."""
    return {
        "proc/self/cgroup": f"4:{controllers}:{group}\n0::/",
        "proc/self/mountinfo": (
            f"33 31 0:30 {mount_root} /sys/fs/cgroup/{controllers} rw,nosuid shared:9 - cgroup cgroup rw,{controllers}"
        ),
    }
