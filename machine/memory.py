"""How much memory hetero may use: the smaller of what the host has free and what every control group leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hetero.machine.cgroup import Group, groups
from hetero.machine.files import read_int, read_text
from hetero.machine.units import size_text

_NO_LIMIT = 1 << 60
"""v1 writes "no limit" as a number just below 2^63, rounded to the page size."""


@dataclass(frozen=True, slots=True)
class UsableMemory:
    """Bytes usable now, bytes of the host, and which file set the bound."""

    usable: int
    total: int
    reason: str


def usable_memory(root: Path = Path("/")) -> UsableMemory:
    """min(MemAvailable, what the address space still holds, max - (current - file cache) of every group above)."""
    info = _fields(read_text(root / "proc/meminfo"))
    total = info.get("MemTotal", 0) * 1024
    available = info.get("MemAvailable")
    if available is None:
        # Kernels before 3.14 and some sandboxes: free plus what can be dropped.
        available = info.get("MemFree", 0) + info.get("Buffers", 0) + info.get("Cached", 0)
    usable, why = available * 1024, "MemAvailable in /proc/meminfo"
    if not info:
        why = "/proc/meminfo cannot be read"
    for found in (_address_space(root), *(_headroom(group) for group in groups(root, "memory"))):
        if found is not None and found[0] < usable:
            usable, why = found
    return UsableMemory(usable, total, f"{size_text(usable)} of {size_text(total)} usable ({why})")


def _address_space(root: Path) -> tuple[int, str] | None:
    """What the process may still map under `ulimit -v`, and the name of that limit; None without one."""
    for line in (read_text(root / "proc/self/limits") or "").splitlines():
        words = line.removeprefix("Max address space").split()
        if line.startswith("Max address space") and words and words[0].isdigit():
            taken = _fields(read_text(root / "proc/self/status")).get("VmSize", 0) * 1024
            return max(0, int(words[0]) - taken), f"ulimit -v {size_text(int(words[0]))}"
    return None


def _headroom(group: Group) -> tuple[int, str] | None:
    """What `group` still lets its processes take, and the name of the limit; None without a limit."""
    v2 = group.version == 2
    # Above memory.high the kernel stalls the process, so it bounds as memory.max does.
    names = ("memory.max", "memory.high") if v2 else ("memory.limit_in_bytes",)
    limits = [(value, name) for name in names if (value := read_int(group.path / name)) is not None]
    limit, name = min(limits, default=(_NO_LIMIT, ""))
    if limit >= _NO_LIMIT:
        return None
    current = read_int(group.path / ("memory.current" if v2 else "memory.usage_in_bytes")) or 0
    stat = _fields(read_text(group.path / "memory.stat"))
    # v1 counts the group alone without the prefix and the whole subtree, as usage_in_bytes does, with it.
    cache = sum(stat.get(key if v2 else f"total_{key}", stat.get(key, 0)) for key in ("inactive_file", "active_file"))
    headroom = max(0, limit - max(0, current - cache))
    return headroom, f"{group.shown}/{name} {size_text(limit)}"


def _fields(text: str | None) -> dict[str, int]:
    """`key value` or `key: value kB` lines as a dictionary."""
    result: dict[str, int] = {}
    for line in (text or "").splitlines():
        parts = line.replace(":", " ").split()
        if len(parts) >= 2 and parts[1].isdigit():
            result[parts[0]] = int(parts[1])
    return result
