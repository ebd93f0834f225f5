"""How the machine is built: NUMA nodes, sockets, caches, huge pages, and what it runs on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hetero.machine.files import read_cpu_list, read_int, read_text
from hetero.machine.types import HugePages, Node

_SYS_CPU = "sys/devices/system/cpu"
_SYS_NODE = "sys/devices/system/node"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Topology:
    """The fields of the same names of `Machine`."""

    nodes: tuple[Node, ...]
    sockets: int
    clustering: str
    cache_bytes: int


def topology(root: Path, cpus: frozenset[int], memory_total: int) -> Topology:
    """What the files below `root` say about the online `cpus`; without NUMA files all of it is one node."""
    nodes = _nodes(root, cpus)
    packages = {read_int(root / _SYS_CPU / f"cpu{cpu}/topology/physical_package_id") for cpu in cpus} - {None}
    sockets = max(1, len(packages))
    return Topology(
        nodes=nodes or (Node(0, tuple(sorted(cpus)), memory_total, "assumed"),),
        sockets=sockets,
        clustering=_clustering(root, nodes, sockets),
        cache_bytes=_last_level_caches(root, cpus),
    )


def huge_pages(root: Path) -> HugePages | None:
    """The state of transparent and explicit huge pages; None on a kernel without either."""
    setting = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    chosen = setting[setting.find("[") + 1 : setting.find("]")] if "[" in setting else ""
    fields: dict[str, int] = {}
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        first = value.split()[:1]
        if key.startswith("Huge") and first and first[0].isdigit():
            fields[key] = int(first[0])
    if not chosen and "HugePages_Total" not in fields:
        return None
    page = fields.get("Hugepagesize", 0) * 1024
    return HugePages(chosen, page, fields.get("HugePages_Total", 0), fields.get("HugePages_Free", 0))


def hypervisor(root: Path) -> str:
    """The name of what this system runs on: `WSL`, the maker of the virtual machine, or empty on bare metal."""
    release = f"{read_text(root / 'proc/sys/kernel/osrelease') or ''} {read_text(root / 'proc/version') or ''}"
    if "microsoft" in release.lower():
        return "WSL"
    kind = read_text(root / "sys/hypervisor/type")
    flags = next((x for x in (read_text(root / "proc/cpuinfo") or "").splitlines() if x.startswith("flags")), "")
    if "hypervisor" not in flags.split():
        return kind or ""
    maker = read_text(root / "sys/class/dmi/id/sys_vendor") or ""
    product = read_text(root / "sys/class/dmi/id/product_name") or ""
    return kind or " ".join(f"{maker} {product}".split()) or "unknown"


def kernel_release(root: Path) -> str:
    """The running kernel's release, empty if it cannot be read."""
    release = read_text(root / "proc/sys/kernel/osrelease")
    if release:
        return release
    words = (read_text(root / "proc/version") or "").split()
    return words[2] if len(words) > 2 else ""


def _nodes(root: Path, cpus: frozenset[int]) -> tuple[Node, ...]:
    """The online nodes. CPU numbers are taken from the files: on some machines they alternate between nodes."""
    found = []
    try:
        folders = list((root / _SYS_NODE).iterdir())
    except OSError:
        return ()
    for folder in folders:
        number = folder.name.removeprefix("node")
        if not folder.name.startswith("node") or not number.isdigit():
            continue
        listed = read_cpu_list(folder / "cpulist")
        memory = 0
        for line in (read_text(folder / "meminfo") or "").splitlines():
            words = line.replace(":", " ").split()
            if "MemTotal" in words[:3] and words[-2].isdigit():
                memory = int(words[-2]) * 1024
        found.append(Node(int(number), tuple(sorted(listed & cpus)), memory))
    # Containers may see nodes of which they have no CPU and no memory.
    return tuple(sorted((node for node in found if node.cpus or node.memory_bytes), key=lambda node: node.id))


def _clustering(root: Path, nodes: tuple[Node, ...], sockets: int) -> str:
    """Says so where a socket is more than one node; nodes of memory alone (CXL, HBM) do not count."""
    with_cpus = [node for node in nodes if node.cpus]
    per_socket = len(with_cpus) // sockets
    if per_socket < 2 or len(with_cpus) % sockets:
        return ""
    name = "NPS" if "AuthenticAMD" in (read_text(root / "proc/cpuinfo") or "") else "SNC"
    return f"{per_socket} NUMA nodes per socket ({name}{per_socket})"


def _last_level_caches(root: Path, cpus: frozenset[int]) -> int:
    """Bytes of all last-level caches that serve `cpus`, each counted once; 0 if no file tells."""
    sizes: dict[frozenset[int], int] = {}
    seen: set[int] = set()
    for cpu in sorted(cpus):
        if cpu in seen:
            continue
        for index in range(4, -1, -1):
            folder = root / _SYS_CPU / f"cpu{cpu}/cache/index{index}"
            size = _size(read_text(folder / "size") or "")
            if size:
                shared = read_cpu_list(folder / "shared_cpu_list") | {cpu}
                sizes[shared] = size
                seen |= shared
                break
    return sum(sizes.values())


def _size(text: str) -> int:
    number, unit = text[:-1], text[-1:]
    return int(number) * _UNITS[unit] if unit in _UNITS and number.isdigit() else 0
