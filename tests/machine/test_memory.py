"""Usable memory: the host's or the tightest group's, without counting file cache as used."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetero.machine.memory import usable_memory
from tests.machine.trees import GIB, cgroup_v1, cgroup_v2, machine_tree, singles, write

UNLIMITED_V1 = 9223372036854771712


def v2_group(folder: str, limit: object, current: int, inactive: int = 0, active: int = 0) -> dict[str, object]:
    base = f"sys/fs/cgroup{folder}"
    return {
        f"{base}/memory.max": limit,
        f"{base}/memory.current": current,
        f"{base}/memory.stat": f"anon 1\ninactive_file {inactive}\nactive_file {active}",
    }


def tree(root: Path, *parts: dict[str, object]) -> Path:
    return machine_tree(root, singles(2), files={name: text for part in parts for name, text in part.items()})


def test_file_cache_counts_as_free(tmp_path: Path) -> None:
    group = v2_group("", 8 * GIB, 79 * GIB // 10, 7 * GIB, GIB // 2)
    found = usable_memory(tree(tmp_path, cgroup_v2(), group))
    assert found.usable == 8 * GIB - (79 * GIB // 10 - 7 * GIB - GIB // 2)
    assert found.reason == "7.6 GiB of 32.0 GiB usable (/sys/fs/cgroup/memory.max 8.0 GiB)"


def test_max_is_no_limit(tmp_path: Path) -> None:
    found = usable_memory(tree(tmp_path, cgroup_v2(), v2_group("", "max", 20 * GIB)))
    assert found.usable == 31 * GIB
    assert found.reason == "31.0 GiB of 32.0 GiB usable (MemAvailable in /proc/meminfo)"


def test_v1_sentinel_is_no_limit(tmp_path: Path) -> None:
    files: dict[str, object] = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED_V1,
        "sys/fs/cgroup/memory/memory.usage_in_bytes": GIB,
    }
    assert usable_memory(tree(tmp_path, cgroup_v1("memory"), files)).usable == 31 * GIB


@pytest.mark.parametrize("prefix", ["total_", ""])
def test_v1_limit_leaves_out_the_cache_of_its_subtree(tmp_path: Path, prefix: str) -> None:
    base = "sys/fs/cgroup/memory/box"
    files: dict[str, object] = {
        f"{base}/memory.limit_in_bytes": 4 * GIB,
        f"{base}/memory.usage_in_bytes": 3 * GIB,
        f"{base}/memory.stat": f"{prefix}inactive_file {GIB}\n{prefix}active_file {GIB}",
    }
    found = usable_memory(tree(tmp_path, cgroup_v1("memory", "/box"), files))
    assert found.usable == 3 * GIB
    assert "/sys/fs/cgroup/memory/box/memory.limit_in_bytes" in found.reason


def test_host_with_less_than_the_limit_binds(tmp_path: Path) -> None:
    root = tree(tmp_path, cgroup_v2(), v2_group("", 64 * GIB, GIB))
    assert usable_memory(root).usable == 31 * GIB


def test_tighter_parent_binds(tmp_path: Path) -> None:
    groups = (v2_group("/pod", 4 * GIB, 3 * GIB), v2_group("/pod/app", 16 * GIB, GIB))
    found = usable_memory(tree(tmp_path, cgroup_v2("/pod/app"), *groups))
    assert found.usable == GIB
    assert "/sys/fs/cgroup/pod/memory.max" in found.reason


def test_memory_high_bounds_too(tmp_path: Path) -> None:
    files: dict[str, object] = {"sys/fs/cgroup/memory.high": 2 * GIB}
    found = usable_memory(tree(tmp_path, cgroup_v2(), v2_group("", 8 * GIB, GIB), files))
    assert found.usable == GIB


def test_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    assert usable_memory(tree(tmp_path, cgroup_v2(), v2_group("", GIB, 2 * GIB))).usable == 0


def test_a_limit_of_the_address_space_binds(tmp_path: Path) -> None:
    name = "Max address space"
    status: dict[str, object] = {"proc/self/status": f"Name: hetero\nVmSize: {1 << 20} kB"}
    limit: dict[str, object] = {"proc/self/limits": f"Limit Soft Hard Units\n{name}  {3 * GIB}  unlimited  bytes"}
    found = usable_memory(tree(tmp_path / "limited", cgroup_v2(), status, limit))
    assert found.usable == 2 * GIB
    assert "(ulimit -v 3.0 GiB)" in found.reason
    limit = {"proc/self/limits": f"Limit Soft Hard Units\n{name}  unlimited  unlimited  bytes"}
    assert usable_memory(tree(tmp_path / "free", cgroup_v2(), status, limit)).usable == 31 * GIB


def test_kernel_without_memavailable_sums_what_can_be_dropped(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/meminfo": "MemTotal: 100 kB\nMemFree: 10 kB\nBuffers: 5 kB\nCached: 20 kB"})
    assert usable_memory(root).usable == 35 * 1024


def test_absent_proc_is_said(tmp_path: Path) -> None:
    found = usable_memory(tmp_path)
    assert found.usable == 0
    assert "/proc/meminfo cannot be read" in found.reason
