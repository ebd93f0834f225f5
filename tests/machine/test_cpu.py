"""Usable CPUs on machines and in containers that other tools count wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetero.machine.cpu import UsableCpus, cpu_model, usable_cpus
from tests.machine.trees import CPU, cgroup_v1, cgroup_v2, machine_tree, singles, smt_pairs, write


def counted(root: Path, cores: list[list[int]], *trees: dict[str, object], allowed: str | None = None) -> UsableCpus:
    files = {name: content for tree in trees for name, content in tree.items()}
    return usable_cpus(machine_tree(root, cores, allowed=allowed, files=files))


def test_v2_quota_is_floored_and_named(tmp_path: Path) -> None:
    found = counted(tmp_path, singles(96), cgroup_v2(), {"sys/fs/cgroup/cpu.max": "765000 100000"})
    assert found.cpus == tuple(range(7))
    assert found.reason == "7 of 96 cores usable (/sys/fs/cgroup/cpu.max 765000/100000)"
    assert found.visible == 96
    assert found.spare == tuple(range(7, 96))


def test_v2_max_is_no_quota(tmp_path: Path) -> None:
    found = counted(tmp_path, singles(96), cgroup_v2(), {"sys/fs/cgroup/cpu.max": "max 100000"})
    assert len(found.cpus) == 96
    assert found.reason == "96 of 96 cores usable"


def test_tighter_parent_of_a_nested_group_binds(tmp_path: Path) -> None:
    files: dict[str, object] = {
        "sys/fs/cgroup/pod/cpu.max": "200000 100000",
        "sys/fs/cgroup/pod/app/cpu.max": "800000 100000",
        "sys/fs/cgroup/pod/app/leaf/cpu.max": "max 100000",
    }
    found = counted(tmp_path, singles(96), cgroup_v2("/pod/app/leaf"), files)
    assert found.reason == "2 of 96 cores usable (/sys/fs/cgroup/pod/cpu.max 200000/100000)"


def test_tighter_child_of_a_nested_group_binds(tmp_path: Path) -> None:
    files: dict[str, object] = {
        "sys/fs/cgroup/pod/cpu.max": "800000 100000",
        "sys/fs/cgroup/pod/app/cpu.max": "150000 50000",
    }
    assert len(counted(tmp_path, singles(96), cgroup_v2("/pod/app"), files).cpus) == 3


def test_container_whose_host_path_is_not_visible_uses_the_mount_point(tmp_path: Path) -> None:
    files: dict[str, object] = {"sys/fs/cgroup/cpu.max": "400000 100000"}
    for group in ("/system.slice/docker-1.scope", "/../../docker-1.scope"):
        assert len(counted(tmp_path, singles(96), cgroup_v2(group), files).cpus) == 4


def test_container_with_its_own_group_mounted_reads_below_that_root(tmp_path: Path) -> None:
    files: dict[str, object] = {
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": 400000,
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": 100000,
        "sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us": 100000,
        "sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_period_us": 50000,
    }
    found = counted(tmp_path, singles(8), cgroup_v1("cpu,cpuacct", "/docker/1/inner", "/docker/1"), files)
    assert found.reason == "2 of 8 cores usable (/sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us 100000/50000)"


def test_v1_quota_of_minus_one_is_none(tmp_path: Path) -> None:
    files: dict[str, object] = {
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": -1,
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100000,
    }
    assert len(counted(tmp_path, singles(8), cgroup_v1("cpu"), files).cpus) == 8


def test_quota_without_mountinfo_is_found_at_the_usual_place(tmp_path: Path) -> None:
    found = counted(tmp_path, singles(8), {"sys/fs/cgroup/cpu.max": "300000 100000"})
    assert len(found.cpus) == 3


def test_quota_below_one_cpu_gives_one_thread_and_a_note(tmp_path: Path) -> None:
    found = counted(tmp_path, singles(4), cgroup_v2(), {"sys/fs/cgroup/cpu.max": "50000 100000"})
    assert found.cpus == (0,)
    assert "less than one CPU" in found.notes[0]


def test_quota_wider_than_the_machine_changes_nothing(tmp_path: Path) -> None:
    found = counted(tmp_path, singles(4), cgroup_v2(), {"sys/fs/cgroup/cpu.max": "900000 100000"})
    assert found.reason == "4 of 4 cores usable"


def test_cpuset_is_named(tmp_path: Path) -> None:
    files: dict[str, object] = {"sys/fs/cgroup/cpuset.cpus.effective": "8-11"}
    found = counted(tmp_path, singles(96), cgroup_v2(), files, allowed="8-11")
    assert found.cpus == (8, 9, 10, 11)
    assert found.reason == "4 of 96 cores usable (/sys/fs/cgroup/cpuset.cpus.effective 8-11)"


def test_v1_cpuset_narrows_a_wider_mask(tmp_path: Path) -> None:
    files: dict[str, object] = {"sys/fs/cgroup/cpuset/box/cpuset.cpus": "2,5"}
    found = counted(tmp_path, singles(8), cgroup_v1("cpuset", "/box"), files)
    assert found.cpus == (2, 5)
    assert "/sys/fs/cgroup/cpuset/box/cpuset.cpus 2,5" in found.reason


def test_affinity_mask_is_named(tmp_path: Path) -> None:
    found = counted(tmp_path, singles(2), allowed="1")
    assert found.cpus == (1,)
    assert found.reason == "1 of 2 cores usable (affinity mask 1, Cpus_allowed_list of /proc/self/status)"


def test_arrow_lake_without_smt_uses_its_eight_performance_cores(tmp_path: Path) -> None:
    found = counted(tmp_path, singles(20), {"sys/devices/cpu_core/cpus": "0-7", "sys/devices/cpu_atom/cpus": "8-19"})
    assert found.cpus == tuple(range(8))
    assert found.reason == "8 of 20 cores usable (performance cores 0-7, /sys/devices/cpu_core/cpus)"


def test_i9_uses_one_thread_of_each_performance_core(tmp_path: Path) -> None:
    cores = [[2 * i, 2 * i + 1] for i in range(8)] + [[cpu] for cpu in range(16, 32)]
    found = counted(tmp_path, cores, {"sys/devices/cpu_core/cpus": "0-15", "sys/devices/cpu_atom/cpus": "16-31"})
    assert found.cpus == (0, 2, 4, 6, 8, 10, 12, 14)
    assert found.spare == (*range(16, 32), 1, 3, 5, 7, 9, 11, 13, 15)


def test_efficiency_cores_are_used_where_the_mask_leaves_no_other(tmp_path: Path) -> None:
    found = counted(tmp_path, singles(20), {"sys/devices/cpu_core/cpus": "0-7"}, allowed="8-19")
    assert found.cpus == tuple(range(8, 20))


def test_performance_cores_of_arm_are_told_by_capacity(tmp_path: Path) -> None:
    capacity = [290, 290, 290, 290, 860, 860, 860, 1024]
    found = counted(tmp_path, singles(8), {f"{CPU}/cpu{i}/cpu_capacity": c for i, c in enumerate(capacity)})
    assert found.cpus == (4, 5, 6, 7)
    assert "cpu_capacity" in found.reason


def test_smt_machine_counts_physical_cores(tmp_path: Path) -> None:
    found = counted(tmp_path, smt_pairs(16))
    assert found.cpus == tuple(range(16))
    assert found.reason == "16 of 16 cores usable (one thread per core)"
    assert found.visible == 32


def test_mask_with_only_second_threads_still_counts_their_cores(tmp_path: Path) -> None:
    assert counted(tmp_path, smt_pairs(4), allowed="4-7").cpus == (4, 5, 6, 7)


def test_core_cpus_list_is_read_where_siblings_list_is_absent(tmp_path: Path) -> None:
    root = machine_tree(tmp_path, singles(2))
    for cpu in (0, 1):
        (root / CPU / f"cpu{cpu}/topology/thread_siblings_list").unlink()
    write(root, {f"{CPU}/cpu{cpu}/topology/core_cpus_list": "0-1" for cpu in (0, 1)})
    assert usable_cpus(root).cpus == (0,)


def test_offline_cpus_are_not_counted(tmp_path: Path) -> None:
    root = machine_tree(tmp_path, singles(8), online="0-3,6", allowed="0-7")
    assert usable_cpus(root).cpus == (0, 1, 2, 3, 6)


@pytest.mark.parametrize("with_cpuinfo", [True, False])
def test_machine_without_sys_does_not_crash(tmp_path: Path, with_cpuinfo: bool) -> None:
    if with_cpuinfo:
        write(tmp_path, {"proc/cpuinfo": "processor : 0\n\nprocessor : 1"})
    assert usable_cpus(tmp_path).cpus == ((0, 1) if with_cpuinfo else (0,))


def test_cpu_model_is_the_kernels_name(tmp_path: Path) -> None:
    assert cpu_model(machine_tree(tmp_path, singles(1), model="AMD EPYC 9654")) == "AMD EPYC 9654"
