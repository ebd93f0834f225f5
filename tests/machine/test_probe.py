"""The whole probe: virtual machines, GPUs that are dead, a real control group, and its JSON."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from hetero.machine.gpu import TorchDevices
from hetero.machine.probe import probe
from hetero.machine.serialize import from_json, to_json
from hetero.machine.types import UsageError
from tests.machine.trees import GIB, machine_tree, singles, write

DRIVER: dict[str, object] = {"proc/driver/nvidia/version": "NVRM version: 580.159"}
CARD: dict[str, object] = {
    "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de",
    "sys/bus/pci/devices/0000:01:00.0/class": "0x030200",
}
ERROR_804 = "Error 804: forward compatibility was attempted on non supported HW"


def must_not_ask() -> TorchDevices:
    raise AssertionError("torch was asked")


def test_wsl_without_numa_is_noted(tmp_path: Path) -> None:
    root = machine_tree(tmp_path, singles(192), files={"proc/version": "Linux version 6.6-microsoft-standard-WSL2"})
    machine = probe(root)
    assert len(machine.cpus) == 192
    assert any("NUMA hidden by WSL" in note for note in machine.notes)


@pytest.mark.parametrize(("flags", "noted"), [("fpu hypervisor avx2", True), ("fpu avx2", False)])
def test_virtual_machine_is_noted(tmp_path: Path, flags: str, noted: bool) -> None:
    notes = probe(machine_tree(tmp_path, singles(2), flags=flags)).notes
    assert any("virtual machine" in note for note in notes) == noted


def test_no_gpu_is_a_plain_fact(tmp_path: Path) -> None:
    audio: dict[str, object] = {
        "sys/bus/pci/devices/0000:01:00.1/vendor": "0x10de",
        "sys/bus/pci/devices/0000:01:00.1/class": "0x040300",
    }
    machine = probe(machine_tree(tmp_path, singles(2), files=audio), torch_devices=must_not_ask)
    assert machine.gpus == ()
    assert machine.gpu_reason.startswith("no NVIDIA device")
    assert not any("NVIDIA" in note for note in machine.notes)


def test_dead_driver_is_a_loud_note_with_cudas_words(tmp_path: Path) -> None:
    root = machine_tree(tmp_path, singles(2), files={**DRIVER, **CARD})
    machine = probe(root, torch_devices=lambda: TorchDevices(error=ERROR_804))
    assert machine.gpus == ()
    note = next(note for note in machine.notes if "NVIDIA" in note)
    assert ERROR_804 in note
    assert "PCI 0000:01:00.0" in note
    assert "reboot or reload nvidia-uvm" in note


def test_card_without_driver_is_noted_without_asking_torch(tmp_path: Path) -> None:
    machine = probe(machine_tree(tmp_path, singles(2), files=CARD), torch_devices=must_not_ask)
    assert any("no driver is loaded" in note for note in machine.notes)


def test_usable_gpu_is_named_with_its_free_memory(tmp_path: Path) -> None:
    root = machine_tree(tmp_path, singles(2), files={**DRIVER, **CARD})
    machine = probe(root, torch_devices=lambda: TorchDevices(("A", "B"), (24 * GIB, 8 * GIB)))
    assert (machine.gpus, machine.gpu_memory_bytes) == (("A", "B"), (24 * GIB, 8 * GIB))
    assert machine.gpu_reason == "A (24.0 GiB free), B (8.0 GiB free); the first is used, the others are not"


def test_device_cpu_never_asks_torch(tmp_path: Path) -> None:
    root = machine_tree(tmp_path, singles(2), files={**DRIVER, **CARD})
    assert probe(root, device="cpu", torch_devices=must_not_ask).gpus == ()


def test_gpu_of_wsl_is_found_without_pci(tmp_path: Path) -> None:
    root = write(machine_tree(tmp_path, singles(2)), {"dev/dxg": "", "usr/lib/wsl/lib/libcuda.so.1": ""})
    assert probe(root, torch_devices=lambda: TorchDevices(("A",), (GIB,))).gpus == ("A",)


def test_empty_tree_is_probed_without_a_crash(tmp_path: Path) -> None:
    machine = probe(tmp_path)
    assert machine.cpus == (0,)
    assert machine.memory_bytes == 0


def test_this_machine_agrees_with_the_scheduler() -> None:
    machine = probe(device="cpu")
    assert 1 <= len(machine.cpus) <= len(os.sched_getaffinity(0))
    assert set(machine.cpus) | set(machine.spare_cpus) == os.sched_getaffinity(0)
    assert 0 < machine.memory_bytes <= machine.memory_total_bytes
    assert machine.cpu_reason.startswith(f"{len(machine.cpus)} of ")


def test_affinity_of_this_process_is_respected() -> None:
    one = min(os.sched_getaffinity(0))
    out = run_probe(f"import os; os.sched_setaffinity(0, [{one}])")
    assert out["cpus"] == [one]


@pytest.fixture
def one_cpu_group() -> Iterator[Path]:
    """A real control group that grants one CPU, removed afterwards."""
    v1, v2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    name = f"hetero-test-{os.getpid()}"
    parent = v1 if (v1 / "cpu.cfs_quota_us").exists() or (v1 / "cgroup.procs").exists() else v2
    group = parent / name
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"NOT TESTED: no control group can be made here ({error})")
    try:
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text("100000")
        else:
            (group / "cpu.max").write_text("100000 100000")
    except OSError as error:
        group.rmdir()
        pytest.skip(f"NOT TESTED: this system's control groups take no CPU quota ({error})")
    yield group
    group.rmdir()


def test_real_quota_of_one_cpu_gives_one_thread(one_cpu_group: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("NOT TESTED: a quota of one CPU binds only where there are two")
    out = run_probe(f"import os; open({str(one_cpu_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))")
    assert len(out["cpus"]) == 1
    assert f"{one_cpu_group}/cpu." in out["cpu_reason"]
    assert "100000/100000" in out["cpu_reason"]


def run_probe(before: str) -> dict[str, object]:
    """The probe's JSON from a child process that first runs `before`."""
    code = (
        f"{before}\nimport json\nfrom hetero.machine.probe import probe\nfrom hetero.machine.serialize import to_json\n"
        "print(json.dumps(to_json(probe(device='cpu'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return dict(json.loads(done.stdout))


def test_json_round_trip(tmp_path: Path) -> None:
    root = machine_tree(tmp_path, singles(2), flags="hypervisor", files={**DRIVER, **CARD})
    machine = probe(root, torch_devices=lambda: TorchDevices(("A",), (GIB,)))
    text = json.dumps(to_json(machine))
    assert text.startswith('{"schema": "hetero.machine", "version": 2')
    assert from_json(json.loads(text)) == machine


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "other"}, "schema"),
        ({"version": 3}, "version"),
        ({"version": "2"}, "version"),
        ({"rates": {"int8_ops": {"value": -1, "unit": "op/s"}}}, "rates.int8_ops.value"),
        ({"rates": []}, "rates"),
        ({"nodes": [{"id": 0, "cpus": [0]}]}, "nodes.memory_bytes"),
        ({"devices": [{"name": "A"}]}, "devices.memory_total"),
        ({"cpus": "0-3"}, "cpus"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"visible_cpus": True}, "visible_cpus"),
        ({"tiers": [{"name": "avx2"}]}, "tiers.built"),
        ({"notes": [1]}, "notes"),
    ],
)
def test_bad_machine_files_are_usage_errors_that_name_the_key(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    data = {**to_json(probe(machine_tree(tmp_path, singles(2)))), **change}
    with pytest.raises(UsageError, match=said):
        from_json(data)


def test_machine_file_that_lacks_a_fact_is_refused(tmp_path: Path) -> None:
    data = to_json(probe(machine_tree(tmp_path, singles(2))))
    del data["cpus"]
    with pytest.raises(UsageError, match="cpus"):
        from_json(data)
    with pytest.raises(UsageError):
        from_json([])


@pytest.mark.parametrize("cuda", [False, True])
def test_a_torch_with_cuda_is_known_by_its_library(
    cuda: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / ("libtorch_cuda.so" if cuda else "libtorch_cpu.so")).touch()
    spec = ModuleSpec("torch", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert probe(quick=True, device="cpu").torch_cuda is cuda
