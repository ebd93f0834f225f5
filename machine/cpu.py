"""Which CPUs hetero may use: one per physical performance core, within affinity, cpuset and quota."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from hetero.machine.cgroup import groups
from hetero.machine.files import cpu_list_text, parse_cpu_list, read_cpu_list, read_int, read_text

_SYS_CPU = "sys/devices/system/cpu"
_FAST_ENOUGH = 0.7
"""Share of the largest cpu_capacity from which a core counts as a performance core."""


@dataclass(frozen=True, slots=True)
class UsableCpus:
    """`cpus`: one logical CPU per usable core. `spare`: further allowed CPUs, best first, for explicit requests."""

    cpus: tuple[int, ...]
    spare: tuple[int, ...]
    visible: int
    reason: str
    notes: tuple[str, ...]
    online: frozenset[int]
    physical_cores: int
    performance_cores: int
    threads_per_core: int


@dataclass(frozen=True, slots=True)
class _Quota:
    cpus: float
    text: str


def usable_cpus(root: Path = Path("/")) -> UsableCpus:
    """Count the CPUs below `root`: floor(min(physical performance cores allowed, quota)), at least one."""
    affinity = _affinity(root)
    online = _online(root) or affinity or frozenset({0})
    allowed, allowed_text = _allowed(root, online, affinity)
    cores = _cores(root, online | allowed)
    one_each = [min(core & allowed) for core in cores if core & allowed]
    fast, fast_text = _performance_cpus(root, allowed)
    preferred = [cpu for cpu in one_each if cpu in fast] or one_each
    quota = _tightest_quota(root)
    count = len(preferred)
    why: list[str] = []
    if len(one_each) < len(cores):
        why.append(allowed_text)
    if count < len(one_each):
        why.append(fast_text)
    notes: tuple[str, ...] = ()
    if quota is not None and quota.cpus < count:
        count = max(1, math.floor(quota.cpus))
        why = [quota.text]
        if quota.cpus < 1:
            notes = (f"{quota.text} grants less than one CPU: even one thread will be paused at times",)
    if not why and len(cores) < len(online):
        why.append("one thread per core")
    reason = f"{count} of {len(cores)} cores usable" + (f" ({'; '.join(why)})" if why else "")
    cpus = tuple(preferred[:count])
    ranked = [*preferred, *(cpu for cpu in one_each if cpu not in preferred), *sorted(allowed)]
    spare = tuple(cpu for cpu in dict.fromkeys(ranked) if cpu not in cpus)
    every_fast, _ = _performance_cpus(root, online | allowed)
    fast_cores = sum(bool(core & every_fast) for core in cores)
    counts = (len(cores), fast_cores, max(map(len, cores)))
    return UsableCpus(cpus, spare, len(online), reason, notes, online, *counts)


def cpu_model(root: Path = Path("/")) -> str:
    """The CPU's name as the kernel gives it."""
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model") and value.strip():
            return value.strip()
    return read_text(root / "proc/device-tree/model") or platform.machine()


def _online(root: Path) -> frozenset[int]:
    listed = read_cpu_list(root / _SYS_CPU / "online")
    if listed:
        return listed
    lines = (read_text(root / "proc/cpuinfo") or "").splitlines()
    numbers = (line.partition(":")[2].strip() for line in lines if line.startswith("processor"))
    return frozenset(int(number) for number in numbers if number.isdigit())


def _affinity(root: Path) -> frozenset[int]:
    """CPUs this process may be scheduled on, empty if unknown."""
    if root == Path("/"):
        return frozenset(os.sched_getaffinity(0))
    for line in (read_text(root / "proc/self/status") or "").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return parse_cpu_list(line.partition(":")[2])
    return frozenset()


def _allowed(root: Path, online: frozenset[int], affinity: frozenset[int]) -> tuple[frozenset[int], str]:
    """CPUs left by affinity mask and cpusets, and the name of whichever leaves fewest."""
    # lxcfs renumbers /sys/.../online but not the affinity mask: where they share nothing, the mask is right.
    allowed = (affinity & online) or affinity or online
    text = f"affinity mask {cpu_list_text(allowed)}, Cpus_allowed_list of /proc/self/status"
    for group in groups(root, "cpuset"):
        names = ("cpuset.cpus.effective",) if group.version == 2 else ("cpuset.effective_cpus", "cpuset.cpus")
        for name in names:
            listed = read_cpu_list(group.path / name)
            # The mask is within the cpuset on a real system; naming the cpuset then tells where to change it.
            if listed and listed & allowed and (listed & allowed < allowed or listed == allowed < online):
                allowed &= listed
                text = f"{group.shown}/{name} {cpu_list_text(listed)}"
    return allowed, text


def _cores(root: Path, cpus: frozenset[int]) -> list[frozenset[int]]:
    """The physical cores as sets of logical CPUs, in order; a CPU without topology is a core of its own."""
    cores: dict[frozenset[int], None] = {}
    for cpu in sorted(cpus):
        topology = root / _SYS_CPU / f"cpu{cpu}" / "topology"
        siblings = read_cpu_list(topology / "core_cpus_list") or read_cpu_list(topology / "thread_siblings_list")
        cores[(siblings | {cpu}) & cpus] = None
    return list(cores)


def _performance_cpus(root: Path, allowed: frozenset[int]) -> tuple[frozenset[int], str]:
    """The fast CPUs among `allowed` on a hybrid (all of them elsewhere), and the file that told."""
    listed = read_cpu_list(root / "sys/devices/cpu_core/cpus")
    if listed:
        return listed & allowed, f"performance cores {cpu_list_text(listed)}, /sys/devices/cpu_core/cpus"
    found = {cpu: read_int(root / _SYS_CPU / f"cpu{cpu}" / "cpu_capacity") for cpu in allowed}
    capacity = {cpu: value for cpu, value in found.items() if value is not None}
    if len(capacity) < len(allowed):
        return allowed, ""
    bar = _FAST_ENOUGH * max(capacity.values())
    fast = frozenset(cpu for cpu, value in capacity.items() if value >= bar)
    return fast, f"performance cores {cpu_list_text(fast)}, /{_SYS_CPU}/cpu*/cpu_capacity"


def _tightest_quota(root: Path) -> _Quota | None:
    """The smallest CFS quota of all groups above this process; None if no group has one."""
    quotas: list[_Quota] = []
    for group in groups(root, "cpu"):
        if group.version == 2:
            name = "cpu.max"
            fields = (read_text(group.path / name) or "max").split()
        else:
            name = "cpu.cfs_quota_us"
            fields = [read_text(group.path / name) or "-1", read_text(group.path / "cpu.cfs_period_us") or ""]
        # "max" or -1 is no quota; the period is 100 ms unless the file says otherwise.
        if fields and fields[0].isdigit() and int(fields[0]) > 0:
            period = int(fields[1]) if len(fields) > 1 and fields[1].isdigit() and int(fields[1]) else 100_000
            quotas.append(_Quota(int(fields[0]) / period, f"{group.shown}/{name} {fields[0]}/{period}"))
    return min(quotas, key=lambda quota: quota.cpus, default=None)
